"""Weights of rewards: the three rules by hand, what is equal or missing weighs 1, and the mean is 1."""

import numpy as np
import pytest
from draws import draws
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.stages.preprocess.rewards import weighting

NONE = float("nan")


def weights(
    rule: str, rewards: list[float], tokens: list[int] | None = None, temperature: float = 1.0
) -> list:
    given_rewards, counts = np.array(rewards), np.array(tokens or [1] * len(rewards))
    return weighting(rule, given_rewards, counts, temperature).weights(given_rewards).tolist()


def test_the_rules_by_hand() -> None:
    assert weights("min_max", [-1.0, 0.0, 1.0]) == [0.0, 1.0, 2.0]
    assert weights("min_max", [0.0, 1.0], tokens=[3, 1]) == [0.0, 4.0]  # the mean is over tokens
    z = np.array([1 - 1.5**0.5, 1.0, 1 + 1.5**0.5]).clip(0)
    assert weights("z_score", [1.0, 2.0, 3.0]) == pytest.approx((z / z.mean()).tolist())
    raw = np.exp(np.array([-2.0, -1.0, 0.0]) / 0.5)
    assert weights("softmax", [1.0, 2.0, 3.0], temperature=0.5) == pytest.approx((raw / raw.mean()).tolist())
    assert weights("none", [1.0, 2.0, 3.0]) == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("rule", ["min_max", "z_score", "softmax"])
def test_equal_and_missing_rewards_weigh_exactly_one(rule: str) -> None:
    assert weights(rule, [0.3, 0.3, NONE]) == [1.0, 1.0, 1.0]
    assert weights(rule, [NONE, NONE]) == [1.0, 1.0]
    assert weights(rule, [NONE, 0.0, 1.0])[0] == 1.0
    assert weights(rule, []) == []


@settings(max_examples=draws(60))
@given(
    rule=st.sampled_from(["min_max", "z_score", "softmax"]),
    rows=st.lists(st.tuples(st.floats(-1e6, 1e6), st.integers(1, 999)), min_size=1, max_size=30),
)
def test_the_mean_is_one_and_a_better_chat_never_weighs_less(
    rule: str, rows: list[tuple[float, int]]
) -> None:
    rewards, tokens = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    found = weighting(rule, rewards, tokens).weights(rewards)
    assert np.isfinite(found).all()
    assert (found >= 0).all()
    assert np.average(found, weights=tokens) == pytest.approx(1.0, rel=1e-4)
    assert (np.diff(found[np.argsort(rewards)]) >= -1e-4).all()


def test_rows_for_monitoring_are_weighed_as_training_is() -> None:
    found = weighting("min_max", np.array([0.0, 1.0]), np.array([1, 1]))
    assert found.weights(np.array([0.5, 5.0, -5.0, NONE])).tolist() == [1.0, 2.0, 0.0, 1.0]
