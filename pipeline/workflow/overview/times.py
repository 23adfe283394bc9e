"""How long the jobs of a run will take: by their last run, scaled by the plan if the settings have changed,
or by the plan alone, scaled by how this machine did so far.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

from pipeline.config.params import Params
from pipeline.core.errors import QuenchError
from pipeline.core.usage import Usage, usages


def expected_seconds(root: Path, params: Params, jobs: Collection[str]) -> dict[str, float | None]:
    """Return the seconds that each of `jobs` will take; None if neither a run nor the plan knows."""
    if not jobs:
        return {}
    usage_of = usages(root)
    planned = _planned(root, params)
    factor = _factor(usage_of)
    expected: dict[str, float | None] = {}
    for name in jobs:
        usage = usage_of.get(name)
        now = planned.get(name)
        if usage is None or usage.seen.seconds is None:
            expected[name] = None if now is None else now * factor
        elif now and usage.planned.seconds:
            expected[name] = usage.seen.seconds * now / usage.planned.seconds
        else:
            expected[name] = usage.seen.seconds
    return expected


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
    except QuenchError:  # The base is not there yet, or nothing is planned for it.
        return {}


def _factor(usage_of: Mapping[str, Usage]) -> float:
    """Return how many times as long as planned the jobs took that have run here."""
    both = [
        (usage.seen.seconds, usage.planned.seconds)
        for usage in usage_of.values()
        if usage.seen.seconds and usage.planned.seconds
    ]
    return sum(seen for seen, _ in both) / sum(planned for _, planned in both) if both else 1.0
