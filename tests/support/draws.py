"""The number of examples that a property is tried with, and of cases drawn from a long table: few in every
run, because each run draws others, and all with `--hypothesis-profile exhaustive`.
"""

import random
from collections.abc import Iterable
from typing import TypeVar

import hypothesis

Case = TypeVar("Case")
SHARE, LEAST = 4, 15  # a quarter of what its author asked for, and no fewer than these


def draws(asked: int) -> int:
    """The number of examples of a property whose author asked for `asked`."""
    return (
        asked
        if hypothesis.settings.get_current_profile_name() == "exhaustive"
        else min(asked, max(LEAST, asked // SHARE))
    )


def some(cases: Iterable[Case]) -> list[Case]:
    """As many of these as `draws` says."""
    every = list(cases)
    return random.sample(every, draws(len(every)))


def register() -> None:
    """A busy machine is no fault of the code, so there is no deadline: what must be fast says so itself."""
    hypothesis.settings.register_profile("quench", deadline=None, max_examples=draws(100))
    hypothesis.settings.register_profile("exhaustive", deadline=None)
    hypothesis.settings.load_profile("quench")
