"""The parts of GRPO against closed forms: seeds, alignment and rewards."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config.sections.training import Grpo
from pipeline.core.errors import DataError
from pipeline.core.places import PROJECT
from pipeline.stages.train.grpo.rewards import Answer, Rewards, open_rewards, seed_of
from pipeline.stages.train.grpo.rollouts import aligned

QUESTION = {"id": "0123456789abcdef", "domain": "sums", "prompt": "1 + 1?", "messages": [], "reference": "2"}


def test_each_completion_has_a_seed_of_its_own_that_is_the_same_again() -> None:
    seeds = {seed_of(42, step, row, member) for step in range(4) for row in range(4) for member in range(4)}
    assert len(seeds) == 64 and all(0 <= seed < 2**31 for seed in seeds)
    assert seed_of(42, 1, 2, 3) == 311299350 != seed_of(43, 1, 2, 3)


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=12))
def test_a_probability_is_never_given_to_another_token(tokens: list[tuple[int, bool]]) -> None:
    ids = [token for token, _ in tokens]
    entries = [(token, float(place)) for place, (token, listed) in enumerate(tokens) if listed]
    found = aligned(ids, entries)
    assert all(value is None or value == place for place, value in enumerate(found))
    if len(entries) == len(ids):
        assert found == [float(place) for place in range(len(ids))]


def test_a_probability_that_could_be_of_two_tokens_is_not_used() -> None:
    assert aligned([5, 7, 7, 9], [(5, -1.0), (7, -2.0), (9, -3.0)]) == [-1.0, None, None, -3.0]
    with pytest.raises(ValueError, match="8"):
        aligned([5, 7], [(8, -1.0)])


def test_a_reward_is_the_weighted_sum_of_scorers_and_own_functions(tmp_path: Path) -> None:
    (tmp_path / "rewards").mkdir(parents=True)
    (tmp_path / "rewards/own.py").write_text(
        "def short(reference, answer, row):\n    return len(answer) < 3\n"
    )
    settings = Grpo(rewards={"exact_match": 1.0, "python:own.py:short": -0.5})
    with open_rewards(settings, tmp_path) as rewards:
        found, points = rewards.of(QUESTION, [Answer("2", True), Answer("two", True), Answer("3", False)])
    assert found == [0.5, 0.0, -0.5]
    assert points == {"exact_match": [1.0, 0.0, 0.0], "python:own.py:short": [1.0, 0.0, 1.0]}


def test_a_program_rewards_too(tmp_path: Path) -> None:
    (tmp_path / "data/tokens").mkdir(parents=True)
    settings = Grpo(rewards={"external": 3.0}, external={"command": [str(PROJECT / "examples/scorer.py")]})
    with open_rewards(settings, tmp_path / "data/tokens") as rewards:
        found, _ = rewards.of(QUESTION, [Answer("2", True), Answer("nothing", True)])
    assert found[0] == 3.0 > found[1]


def test_of_several_accepted_answers_the_best_rewards(tmp_path: Path) -> None:
    (tmp_path / "data/tokens").mkdir(parents=True)
    command = {"command": [str(PROJECT / "examples/scorer.py")]}
    settings = Grpo(rewards={"exact_match": 1.0, "external": 1.0}, external=command)
    question = QUESTION | {"other_references": ["two"]}
    with open_rewards(settings, tmp_path / "data/tokens") as rewards:
        _, points = rewards.of(question, [Answer("2", True), Answer("two", True), Answer("3", True)])
    assert points["exact_match"] == [1.0, 1.0, 0.0]
    assert points["external"][0] == points["external"][1] > points["external"][2]


@pytest.mark.parametrize(
    "points", [(1.0, float("nan")), (1.0,), (1.0, None), (1.0, float("inf")), (1.0, "2")]
)
def test_points_that_are_no_number_for_each_answer_are_one_sentence(points: tuple[Any, ...]) -> None:
    rewards = Rewards({"given": lambda question, answers: points}, {"given": 2.0}, 5.0)
    with pytest.raises(DataError, match=r"Q-GRPO-003: train\.grpo\.rewards: given, row 0123456789abcdef"):
        rewards.of(QUESTION, [Answer("a", True), Answer("b", True)])


def test_a_reference_that_cant_be_scored_names_its_row() -> None:
    def refuses(question: Any, answers: Sequence[Answer]) -> list[float]:
        raise ValueError("its reference is no JSON")

    with pytest.raises(DataError, match=r"Q-GRPO-002.*0123456789abcdef: its reference is no JSON"):
        Rewards({"json": refuses}, {"json": 1.0}, 5.0).of(QUESTION, [Answer("a", True)])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rewards": {"external": 1.0}}, "grpo.external is null"),
        ({"external": {"command": ["score"]}}, "doesn't name external"),
        ({"rewards": {"judge": 1.0}}, "judge"),
        ({"rewards": {"exact_match": 0.0}}, "are 0"),
        ({"rewards": {"best": 1.0}}, "is not a scorer"),
    ],
)
def test_rewards_that_cant_be_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Grpo(**settings)
