"""What a monitoring rule finds, and what a table of rules is."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from pipeline.core.checks import Check
from pipeline.stages.train.monitoring.curves import Run

# a rule's finding, whose name the monitor adds: sentence, then remedy and id
passed = partial(Check, "", "pass")
warning = partial(Check, "", "warn")  # what a run can go on with
failure = partial(Check, "", "fail")  # what ends a run
unknown = partial(Check, "", "not measured")

Rules = dict[str, Callable[[Run], Check]]


class RuleSets(NamedTuple):
    """The rules of a method: of every step, of every evaluation, and at the end."""

    step: Rules
    eval: Rules
    end: Rules
