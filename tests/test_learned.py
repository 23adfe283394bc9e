"""Each method moves its own figure on the demo's pretrained model (`benchmarks/methods.py`)."""

from pathlib import Path

import pytest

from benchmarks.methods import measure

STEPS = 16
# minutes each on a pretrained model; CI has the same of a random one: test_preference.py (margins rise),
# test_weighted.py (answers of reward 0 are gone), test_grpo.py (the reward rises)
pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("method", ["dpo", "ipo", "kto", "orpo", "simpo"])
def test_held_out_pairs_are_told_right(method: str, tmp_path: Path) -> None:
    found = measure(tmp_path, method, STEPS)
    assert found["accuracy"] >= 0.7, found


def test_a_style_of_reward_0_is_gone_and_is_there_without_weights(tmp_path: Path) -> None:
    weighted, unweighted = (
        measure(tmp_path / method, method, STEPS)["chatty"] for method in ("weighted", "unweighted")
    )
    assert weighted == 0
    assert unweighted >= 0.5


def test_the_model_earns_more_reward_than_it_did(tmp_path: Path) -> None:
    found = measure(tmp_path, "grpo", 40)
    assert found["last"] >= found["first"] + 0.2, found
