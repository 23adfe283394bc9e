"""One check with its verdict: a line of `quench doctor`, of training's preflight and its monitor, of parity,
of the gate.

`str(check)` is the line on the terminal, `pipeline/pages/templates/checks.html.jinja` the row of a page.
"""

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

from pipeline.core import errors
from pipeline.core.catalog import catalog

Verdict = Literal["pass", "warn", "fail", "not measured"]


@dataclass(frozen=True)
class Check:
    """What was looked at, how it went and what to do unless it passed ("warn": it works, but).

    `id` is the error that a failed check is raised as. `figure`, `limit` and `unit` are None or "" if nothing
    was counted; `what` says what the figure is, and is "" if the sentence says it already. `figures` are
    further numbers, which have no limit. `key` names the check in records, `step` is the training step that
    it is about.
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
        return f"{self.verdict:12}  {self.name}: {self.found}" + (f" → {self.remedy}" if self.remedy else "")

    @property
    def found(self) -> str:
        """The figure against its limit, and the sentence."""
        return ", ".join(filter(None, (self.measured if self.what else "", self.sentence)))

    @property
    def measured(self) -> str:
        """The figure and its limit as text: `0.0104 nats (limit 0.1)`; "" without a figure."""
        if self.figure is None:
            return ""
        limit = "" if self.limit is None else f" (limit {figure_text(self.limit)})"
        return f"{figure_text(self.figure)}{self.unit and ' ' + self.unit}{limit}"

    def record(self, keys: Mapping[str, str]) -> dict[str, Any]:
        """The check as JSON: each of `keys` with the field that it names."""
        return {key: getattr(self, name) for key, name in keys.items()}


def overall(checks: Iterable[Check]) -> Literal["pass", "fail"]:
    """The verdict over several checks: one that fails is enough."""
    return "fail" if any(check.verdict == "fail" for check in checks) else "pass"


def refuse(checks: Iterable[Check]) -> None:
    """Raise the first failed check as the error named by its id, in one sentence; nothing if none failed."""
    failed = [check for check in checks if check.verdict == "fail"]
    if failed:
        first, others = failed[0], ", ".join(check.name for check in failed[1:])
        more = f" ({others} failed too)" if others else ""
        kind: type[errors.QuenchError] = getattr(errors, catalog()[first.id].error)
        sentence = ": ".join(filter(None, (first.name, first.found, first.remedy)))
        raise kind(first.id, f"{sentence}{more}")


def figure_text(value: Any) -> str:
    """A whole number, or three significant digits: 812, 0.0104, 1.2e-07; a dash if there is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "–"
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:.3g}"
