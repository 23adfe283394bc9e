"""other_load: what others took of the machine, and when that spoils a speed."""

from dataclasses import replace
from typing import Any

import pytest

from pipeline.metrics.answer_speed import cpu_time, other_load

START = replace(cpu_time(), own=5.0, idle=100.0, total=1000.0)


def later(own: float, idle: float, total: float) -> Any:
    return replace(START, own=START.own + own, idle=START.idle + idle, total=START.total + total)


@pytest.mark.parametrize(
    ("own", "idle", "share", "disturbs"),
    [
        (19.6, 0.2, 0.01, False),  # two cores of our own and the system's daemons
        (13.0, 0.0, 0.35, True),  # one more process that wants a core
        (0.0, 20.0, 0.0, False),
        (2.0, 0.0, 0.9, True),
        (1.0, 14.0, 0.25, False),  # many cores, of which others use some: there are more to spare
    ],
)
def test_others_disturb_where_no_core_is_to_spare(
    own: float, idle: float, share: float, disturbs: bool
) -> None:
    found = other_load(START, later(own, idle, 20.0))
    assert found.share == pytest.approx(share)
    assert found.disturbs == disturbs
    assert found.as_values() == {"other_load": pytest.approx(share), "disturbed": disturbs}


def test_clocks_that_disagree_give_a_share() -> None:
    """The machine's time is counted in other ticks than a process's."""
    assert other_load(START, later(20.2, 0.0, 20.0)).share == 0.0
    assert other_load(START, START).share == 0.0


def test_this_machine_has_a_time() -> None:
    now = cpu_time()
    assert 0 < now.own < now.total
    assert 0 <= now.idle < now.total
