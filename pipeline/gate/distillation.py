"""How much of the loss by quantizing the base the adapter or the trained scales repair: base and tuned model
against the file that the base was made from.

The share recovered is 1 − KLD after ÷ KLD before. Its 95 % interval is a percentile bootstrap over rows
(`pipeline.metrics.intervals`) of the quotient of both sums: the same rows are drawn for both, so what makes a
row hard for both cancels out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.config.sections import BASE, BASE_WITH_ADAPTER, ORIGINAL, served_of
from pipeline.gate.comparison import Evaluations
from pipeline.pages.formats import percent

PLACES = {"assistant": "where the assistant speaks", "all_tokens": "over all tokens"}
FEWEST = 5  # rows below which an interval would be too narrow


@dataclass(frozen=True)
class Recovery:
    """Mean KLD (nats) and share of same top tokens before and after, at some of the positions; `low` and
    `high` are None without rows to draw."""

    where: str
    before: float
    after: float
    top_before: float | None
    top_after: float | None
    rows: int
    low: float | None = None
    high: float | None = None
    by: str = "The adapter"  # what recovers

    @property
    def share(self) -> float | None:
        """1: all is recovered, 0: nothing, below it: worse than before; None if nothing was damaged."""
        return 1 - self.after / self.before if self.before else None

    @property
    def verdict(self) -> str:
        """better or worse if the entire interval is on one side of 0, else noise; unknown without an
        interval."""
        if self.low is None or self.high is None:
            return "unknown"
        return "better" if self.low > 0 else "worse" if self.high < 0 else "noise"

    @property
    def words(self) -> str:
        """The verdict in a few words."""
        found = {
            "better": "recovered, more than noise",
            "worse": "made worse, more than noise",
            "noise": "within the noise",
        }
        return found.get(self.verdict, f"no interval, which needs {FEWEST} rows")


def is_distillation(evaluations: Evaluations) -> bool:
    """Whether what is served was trained by distillation: then `evaluate` compares it with that file."""
    return (evaluations.get(served_of(evaluations) or "") or {}).get("reference") == ORIGINAL


def distillation(evaluations: Evaluations, seed: int) -> list[Recovery]:
    """Before (the base) and after (with the adapter, or tuned), at the assistant's tokens and at all; empty
    if one was not compared with the source."""
    served = served_of(evaluations) or ""
    before, after = (evaluations.get(model) or {} for model in (BASE, served))
    if not (before.get("reference") == after.get("reference") == ORIGINAL):
        return []
    found = []
    for name, where in PLACES.items():
        one, other = (of if name == "assistant" else of.get(name) or {} for of in (before, after))
        if one.get("kld_mean") is not None and other.get("kld_mean") is not None:
            by_row = [(of.get("by_row") or {}).get(name) for of in (before, after)]
            rows, low, high = interval_of(by_row[0], by_row[1], seed)
            tops = one.get("same_top"), other.get("same_top")
            by = "The adapter" if served == BASE_WITH_ADAPTER else "The tuned file"
            found.append(Recovery(where, one["kld_mean"], other["kld_mean"], *tops, rows, low, high, by))
    return found


def interval_of(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, seed: int
) -> tuple[int, float | None, float | None]:
    """How many rows both were measured on, and the 95 % interval of the share recovered; None without enough
    rows, or if they are other rows."""
    if not before or not after or before["tokens"] != after["tokens"]:
        return 0, None, None
    rows = len(before["kld"])
    if rows < FEWEST or not any(before["kld"]):
        return rows, None, None
    import numpy as np

    from pipeline.metrics.intervals import resampled_means

    # one seed and as many rows: the same draws
    damage, left = (resampled_means(of["kld"], seed) for of in (before, after))
    shares = 1 - left[damage > 0] / damage[damage > 0]
    if not shares.size:
        return rows, None, None
    low, high = np.percentile(shares, [2.5, 97.5])
    return rows, float(low), float(high)


def sentence(found: Recovery) -> str:
    """The finding in a sentence."""
    figures = f"mean KLD from {ORIGINAL} {found.before:.3g} before and {found.after:.3g} after"
    if found.share is None:
        return f"Nothing was lost {found.where}, so there is nothing to recover."
    spans = found.low is not None and found.high is not None
    interval = (
        f", 95 % interval {percent(found.low, 0)} to {percent(found.high, 0)} on {found.rows} rows"
        if spans
        else ""
    )
    done = "recovers {} of" if found.share >= 0 else "adds {} to"
    done = f"{found.by} {done.format(percent(abs(found.share), 0))} the damage"
    return f"{done} {found.where} ({figures}{interval}): {found.words}."
