"""One check with its verdict.

It is a line of `quench doctor`, of training's preflight and monitor, of parity, or of the gate. `str(check)`
is the line on the terminal. `pipeline/pages/templates/checks.html.jinja` is the row of a page.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, get_args

from pipeline.core import errors
from pipeline.core.catalog import catalog

Verdict = Literal["pass", "warn", "fail", "not measured", "not decided"]


@dataclass(frozen=True)
class Check:
    """A check's subject, its verdict, and the remedy unless it passed.

    "warn" means that it works with a reservation, "not decided" that what was measured is too little to tell
    on which side of the limit the figure is. `id` is the error that a failed check is raised as.
    `figure` and `limit` are None, and `unit` is "", if nothing was counted. `what` describes the figure; it
    is "" if the sentence already does. `figures` contains further numbers, without a limit. `key` names the
    check in records. `step` is the training step that the check is about.
    """

    name: str
    verdict: Verdict
    sentence: str
    remedy: str = ""
    id: str = ""
    _: KW_ONLY
    figure: float | None = None
    limit: float | None = None
    unit: str = ""
    what: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    key: str = ""
    step: int | None = None

    def __str__(self) -> str:
        remedy = f" → {self.remedy}" if self.remedy else ""
        return f"{self.verdict:12}  {self.name}: {self.found}{remedy}"

    @property
    def found(self) -> str:
        """The figure against its limit, and the sentence."""
        measured = self.measured if self.what else ""
        return ", ".join(filter(None, (measured, self.sentence)))

    @property
    def measured(self) -> str:
        """The figure and its limit as text: `0.0104 nats (limit 0.1)`; "" without a figure."""
        if self.figure is None:
            return ""
        limit = "" if self.limit is None else f" (limit {figure_text(self.limit)})"
        unit = f" {self.unit}" if self.unit else ""
        return f"{figure_text(self.figure)}{unit}{limit}"

    def record(self, keys: Mapping[str, str]) -> dict[str, Any]:
        """Return the check as JSON: each of `keys` with the value of the field that it names."""
        return {key: getattr(self, name) for key, name in keys.items()}


def overall(checks: Iterable[Check]) -> Literal["pass", "fail"]:
    """Return the verdict over all checks: "fail" if at least one of them failed."""
    return "fail" if any(check.verdict == "fail" for check in checks) else "pass"


def counts_text(checks: Iterable[Check]) -> str:
    """Return how many checks have each verdict: "14 passed, 1 warned, 3 not measured"."""
    verdicts = Counter(check.verdict for check in checks)
    words: dict[Verdict, str] = {"pass": "passed", "warn": "warned", "fail": "failed"}
    found = [verdict for verdict in get_args(Verdict) if verdicts[verdict]]
    return ", ".join(f"{verdicts[verdict]} {words.get(verdict, verdict)}" for verdict in found)


def refuse(checks: Iterable[Check]) -> None:
    """Raise the first failed check as the error named by its id, in one sentence.

    Do nothing if none failed.
    """
    failed = [check for check in checks if check.verdict == "fail"]
    if failed:
        first = failed[0]
        others = ", ".join(check.name for check in failed[1:])
        more = f" ({others} failed too)" if others else ""
        kind: type[errors.QuenchError] = getattr(errors, catalog()[first.id].error)
        sentence = ": ".join(filter(None, (first.name, first.found, first.remedy)))
        raise kind(first.id, f"{sentence}{more}")


def figure_text(value: Any) -> str:
    """Return a whole number, or three significant digits: 812, 0.0104, 1.2e-07.

    Return a dash if it is not a number.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "–"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:.3g}"
