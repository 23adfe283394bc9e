"""The rules for a run that learns the answers of an original.

Its loss is a divergence (nats) that is small from the start, and its gradient with it: no range is usual
there, only falling is.
"""

from pipeline.core.checks import Check
from pipeline.stages.train.monitoring.monitor import WINDOW, Rules, Run, median, passed, unknown
from pipeline.stages.train.monitoring.rules import EVERY_STEP, OTHER_LOSSES, zero_loss
from pipeline.stages.train.monitoring.run_rules import falling


def end_loss(run: Run) -> Check:
    """Where the divergence stands, for information."""
    if not run.losses:
        return unknown("no step yet")
    loss, weight = median(run.losses[-WINDOW:]), run.settings.sft_weight
    mixed = f", with {weight:.0%} of the usual loss on what the assistant says" if weight else ""
    return passed(f"{loss:.3g} in the last steps: nats between the level's answers and the original's{mixed}")


DISTILL_STEP: Rules = {
    **EVERY_STEP,
    **OTHER_LOSSES,
    "zero loss": zero_loss(
        "the level answers just as the file it was made from: name a lower one as base.level"
    ),
}
DISTILL_END: Rules = {
    "falling loss": falling(
        "nothing is recovered: raise train.r, train.learning_rate or the steps, or the level is as near to "
        "its original as it gets"
    ),
    "end loss": end_loss,
}
