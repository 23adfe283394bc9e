"""A dry run: the stages that would run, why, and how long that would take, on standard output.

With other settings than those of params.yaml (`quench run train.r=8 -n`) the plan is made here, without
Snakemake, which would have to write them first.
"""

from collections import Counter
from collections.abc import Collection
from pathlib import Path

from pipeline.config.params import Params
from pipeline.core.text import console
from pipeline.workflow.overview.states import overview
from pipeline.workflow.overview.times import forecast
from pipeline.workflow.view import events
from pipeline.workflow.view.reasons import Reason, context_of
from pipeline.workflow.view.run import Run, Stage
from pipeline.workflow.view.words import about

NOTHING = "Nothing to be done (all requested files are present and up to date)."  # as Snakemake says it


class DryView:
    """A table of the stages that would run."""

    def show(self, event: events.Event, run: Run) -> None:
        """Print the plan, and Snakemake's sentences."""
        if isinstance(event, events.Plan):
            print_plan(event)
        elif isinstance(event, events.Message):
            print(event.text)

    def draw(self, run: Run) -> None:
        """Do nothing: nothing runs."""

    def close(self) -> None:
        """Do nothing."""


def preview(root: Path, params: Params, targets: Collection[str]) -> events.Plan:
    """Return what would run with the settings `params`, up to `targets` (stages or files; all, if empty).

    Raises what `overview` does.
    """
    seen = overview(root, params, targets)
    counts = Counter(name.partition("@")[0] for name in seen.would_run)
    known = forecast(root, params)
    found = context_of(seen, counts)
    stages = [
        Stage(name, counts[name], known.of_stage(name), found.why.get(name, Reason())).planned
        for name in found.order
    ]
    return events.Plan(stages, found.up_to_date)


def print_plan(plan: events.Plan) -> None:
    """Print a plan as a table."""
    if not plan.stages:
        print(NOTHING)
        return
    width = max(map(len, [stage.stage for stage in plan.stages]))
    output = console(highlight=False)
    output.print(f"{'stage':<{width}}  jobs  {'time':<12}  why", markup=False)
    for stage in plan.stages:
        row = f"{stage.stage:<{width}}  {stage.jobs:>4}  {about(stage.seconds):<12}  {stage.why}"
        output.print(row.rstrip(), markup=False, soft_wrap=True)
    if plan.up_to_date:
        output.print(f"up to date: {', '.join(plan.up_to_date)}", markup=False, soft_wrap=True)
    known = [stage.seconds for stage in plan.stages if stage.seconds is not None]
    total = f"{about(sum(known))}" if len(known) == len(plan.stages) else "some of unknown length"
    jobs = sum(stage.jobs for stage in plan.stages)
    output.print(f"{jobs} job{'s' if jobs != 1 else ''}, {total}; this was a dry run, nothing was written")
