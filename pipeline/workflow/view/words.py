"""The words that all views for people use."""

from pipeline.workflow.view import events


def clock(seconds: float) -> str:
    """Return a duration as minutes and seconds, or with hours: "3:07", "1:02:30"."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def about(seconds: float | None) -> str:
    """Return a duration that is not certain: "about 3 min"; "" if it is unknown."""
    if seconds is None:
        return ""
    if seconds < 60:
        return f"about {max(round(seconds), 1)} s"
    if seconds < 90 * 60:
        return f"about {round(seconds / 60)} min"
    return f"about {seconds / 3600:.1f} h"


def plan_lines(plan: events.Plan) -> list[str]:
    """Return the plan in a sentence, and why the first of its stages run."""
    jobs = sum(stage.jobs for stage in plan.stages)
    names = [f"{stage.stage} ({stage.jobs})" if stage.jobs > 1 else stage.stage for stage in plan.stages]
    count = f"{jobs} job{'s' if jobs != 1 else ''} to do: {', '.join(names)}"
    if plan.up_to_date:
        count += f"; up to date: {', '.join(plan.up_to_date)}"
    own = [stage for stage in plan.stages if stage.changed]
    return [count, *(f"  {stage.stage}: {stage.why}" for stage in own)]


def end_lines(end: events.End) -> list[str]:
    """Return what came of a run, and what one does next; nothing if a job failed, which has the last word."""
    if end.failed:
        return []
    done = f"{end.done} of {end.done + end.failed + end.missing} jobs are done after {clock(end.seconds)}"
    restored = f", {end.restored} of them from DVC's cache" if end.restored else ""
    width = max((len(advice.command) for advice in end.next), default=0)
    return [f"{done}{restored}", *(f"  {advice.command:<{width}}  {advice.what}" for advice in end.next)]


def failed_lines(failed: events.Failed) -> list[str]:
    """Return how a job failed, where all its lines are, and the last ones of them."""
    where = f": {failed.log} has all it said" if failed.log and not failed.stopped else ""
    how = "was stopped" if failed.stopped else "failed"
    head = f"{failed.job} {how} after {clock(failed.seconds)}{where}"
    return [head, *(f"  {line}" for line in failed.lines)]
