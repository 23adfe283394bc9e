"""How long the jobs of a run will take: by their last run, scaled by the plan if the settings have changed,
or by the plan alone, scaled by how this machine did so far.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from pipeline.config.params import Params
from pipeline.core.errors import QuenchError
from pipeline.core.usage import Usage, usages


@dataclass(frozen=True)
class Forecast:
    """The last run of each job ("quantize@Q4_K_M"), and the seconds that are planned for it."""

    used: Mapping[str, Usage] = field(default_factory=dict)
    planned: Mapping[str, float] = field(default_factory=dict)

    def seconds(self, job: str) -> float | None:
        """Return the seconds that a job will take; None if neither a run nor the plan knows."""
        now = self.planned.get(job)
        before = self.used.get(job)
        if before is None or before.seen.seconds is None:
            return None if now is None else now * self._factor
        if now and before.planned.seconds:
            return before.seen.seconds * now / before.planned.seconds
        return before.seen.seconds

    def of_stage(self, stage: str) -> float | None:
        """Return the seconds of a job of this stage on average; None if nothing is known of it."""
        names = [name for name in {*self.used, *self.planned} if name.partition("@")[0] == stage]
        known = [seconds for name in names if (seconds := self.seconds(name)) is not None]
        return sum(known) / len(known) if known else None

    @cached_property
    def _factor(self) -> float:
        """How many times as long as planned the jobs took that have run here."""
        both = [
            (usage.seen.seconds, usage.planned.seconds)
            for usage in self.used.values()
            if usage.seen.seconds and usage.planned.seconds
        ]
        return sum(seen for seen, _ in both) / sum(planned for _, planned in both) if both else 1.0


def forecast(root: Path, params: Params) -> Forecast:
    """Return the forecast for these settings. It reads records and imports no PyTorch."""
    return Forecast(usages(root), _planned(root, params))


def _planned(root: Path, params: Params) -> Mapping[str, float]:
    # Only a run that has something to do waits for these imports.
    from pipeline.core.hardware import first_gpu, main_memory
    from pipeline.planning.model.base import find_shape
    from pipeline.planning.plan import plan_run
    from pipeline.planning.stages import planned_stages

    try:
        card = (None if params.train.device == "cpu" else first_gpu()) or main_memory()
        # Building an architecture would import PyTorch.
        plan = plan_run(params, find_shape(params, root, build=False), root, card)
        return {name: needs.seconds for name, needs in planned_stages(params, plan) if needs.seconds}
    except (QuenchError, OSError):  # The base is not there yet, or nothing is planned for it.
        return {}
