"""Measure how much of the loss by quantizing the base the adapter or the trained scales recover: base and
tuned model against the file that the base was made from.

The share recovered is 1 − KLD after ÷ KLD before. Its 95 % interval is a percentile bootstrap over rows
(`pipeline.metrics.statistics`) of the quotient of both sums. The same rows are drawn for both, so what makes
a row hard for both cancels out.
"""

from dataclasses import dataclass

from pipeline.config.products import product_of
from pipeline.config.sections import BASE, ORIGINAL
from pipeline.gate.evaluations import Evaluations, RowSums
from pipeline.pages.formats import percent

PLACES = {"assistant": "where the assistant speaks", "all_tokens": "over all tokens"}
FEWEST = 5  # fewest rows; with fewer an interval would be too narrow
WORDS = {
    "better": "recovered, more than noise",
    "worse": "made worse, more than noise",
    "noise": "within the noise",
    "unknown": f"no interval, which needs {FEWEST} rows",
}


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
    by: str = "The adapter"  # the part that recovers

    @property
    def share(self) -> float | None:
        """Share recovered. 1: all, 0: nothing, below 0: worse than before; None if nothing was damaged."""
        return 1 - self.after / self.before if self.before else None

    @property
    def verdict(self) -> str:
        """Verdict: better or worse if the entire interval is on one side of 0, otherwise noise; unknown
        without an interval.
        """
        if self.low is None or self.high is None:
            return "unknown"
        if self.low > 0:
            return "better"
        return "worse" if self.high < 0 else "noise"

    @property
    def words(self) -> str:
        """Return the verdict in a few words."""
        return WORDS[self.verdict]

    @property
    def sentence(self) -> str:
        """Result in a sentence."""
        figures = f"mean KLD from {ORIGINAL} {self.before:.3g} before and {self.after:.3g} after"
        if self.share is None:
            return f"Nothing was lost {self.where}, so there is nothing to recover."
        spans = self.low is not None and self.high is not None
        ends = f"{percent(self.low, 0)} to {percent(self.high, 0)} on {self.rows} rows"
        interval = f", 95 % interval {ends}" if spans else ""
        share = percent(abs(self.share), 0)
        verb = f"recovers {share} of" if self.share >= 0 else f"adds {share} to"
        return f"{self.by} {verb} the damage {self.where} ({figures}{interval}): {self.words}."


def distillation(evaluations: Evaluations) -> list[Recovery] | None:
    """Return the figures before (the base) and after (with the adapter, or tuned), at the assistant's tokens
    and at all; empty if the base was not compared with the source. None if the served model was not trained
    by distillation, because `evaluate` then compares it with the base's file.
    """
    product = product_of(evaluations)
    before, after = (evaluations.get(model or "") for model in (BASE, product.served))
    if after is None or after.reference != ORIGINAL:
        return None
    if before is None or before.reference != ORIGINAL:
        return []
    recoveries = []
    for name, where in PLACES.items():
        damaged, tuned = (of if name == "assistant" else of.all_tokens for of in (before, after))
        if damaged.kld_mean is not None and tuned.kld_mean is not None:
            rows_before, rows_after = ((of.by_row or {}).get(name) for of in (before, after))
            rows, low, high = interval_of(rows_before, rows_after)
            klds = (damaged.kld_mean, tuned.kld_mean)
            tops = (damaged.same_top, tuned.same_top)
            by = product.called.capitalize()
            recoveries.append(Recovery(where, *klds, *tops, rows, low, high, by))
    return recoveries


def interval_of(before: RowSums | None, after: RowSums | None) -> tuple[int, float | None, float | None]:
    """Return the number of rows that both were measured on, and the 95 % interval of the share recovered;
    None without enough rows, or if the rows differ.
    """
    if not before or not after or before.tokens != after.tokens:
        return 0, None, None
    rows = len(before.kld)
    if rows < FEWEST or not any(before.kld):
        return rows, None, None
    import numpy as np

    from pipeline.metrics.statistics import resampled_means

    # As many rows, so the same draws.
    damage = resampled_means(before.kld)
    rest = resampled_means(after.kld)
    shares = 1 - rest[damage > 0] / damage[damage > 0]
    if not shares.size:
        return rows, None, None
    low, high = np.percentile(shares, [2.5, 97.5])
    return rows, float(low), float(high)
