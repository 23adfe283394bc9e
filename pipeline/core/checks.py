"""Lines that say whether something is ready: what `quench doctor` and training's preflight print."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from pipeline.core.errors import QuenchError, ToolError

State = Literal["ok", "warn", "fail", "not measured"]


@dataclass(frozen=True)
class Check:
    """One line: `state` is ok, warn (it works, but …), fail or not measured; `remedy` says what to do unless it is ok.

    `error` is what a failed check is raised as.
    """

    name: str
    state: State
    finding: str
    remedy: str = ""
    error: type[QuenchError] = ToolError

    def __str__(self) -> str:
        return f"{self.state:4}  {self.name}: {self.finding}" + (f" → {self.remedy}" if self.remedy else "")


def refuse(checks: Iterable[Check]) -> None:
    """Raise the first failed check as its own kind of error, in one sentence; nothing where none failed."""
    failed = [check for check in checks if check.state == "fail"]
    if failed:
        first, others = failed[0], ", ".join(check.name for check in failed[1:])
        more = f" ({others} failed too)" if others else ""
        raise first.error(f"{first.name}: {first.finding}: {first.remedy}{more}")
