"""How long jobs take: as long as the last time, changed as the plan has changed since, or as planned."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.config.params import Params
from pipeline.core.errors import QuenchError
from pipeline.core.usage import Usage, usages


@dataclass(frozen=True)
class Forecast:
    """Seconds by job ("quantize@Q4_K_M"), of those that ran before and those that are planned."""

    used: Mapping[str, Usage] = field(default_factory=dict)
    planned: Mapping[str, float] = field(default_factory=dict)

    def seconds(self, job: str) -> float | None:
        """Return the seconds that a job will take; None if nothing is known of it."""
        now = self.planned.get(job)
        before = self.used.get(job)
        if before is None or before.seen.seconds is None:
            return now
        if now and before.planned.seconds:
            return before.seen.seconds * now / before.planned.seconds
        return before.seen.seconds

    def of_stage(self, stage: str) -> float | None:
        """Return the seconds of a job of this stage on average; None if nothing is known of it."""
        names = [name for name in {*self.used, *self.planned} if name.partition("@")[0] == stage]
        known = [seconds for name in names if (seconds := self.seconds(name)) is not None]
        return sum(known) / len(known) if known else None


def forecast(root: Path, params: Params | None) -> Forecast:
    """Return the forecast for these settings. It reads records and imports no PyTorch."""
    try:
        used = usages(root)
    except OSError:
        used = {}
    return Forecast(used, _planned(root, params) if params else {})


def _planned(root: Path, params: Params) -> dict[str, float]:
    from pipeline.core.hardware import first_gpu, main_memory
    from pipeline.planning.model.base import find_shape
    from pipeline.planning.plan import plan_run
    from pipeline.planning.stages import planned_stages

    try:
        card = (None if params.train.device == "cpu" else first_gpu()) or main_memory()
        plan = plan_run(params, find_shape(params, root, build=False), root, card)
        figures = dict(planned_stages(params, plan))
    except (QuenchError, OSError):  # The base isn't there yet, or is of a kind that isn't planned.
        return {}
    return {stage: need.seconds for stage, need in figures.items() if need.seconds is not None}
