"""The demo of GRPO can't be won by form: what knows nothing earns little, whatever it says."""

import re
import runpy
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from pipeline.config.params import load_params
from pipeline.core.places import PROJECT
from pipeline.stages.train.grpo.rewards import Answer, open_rewards

ROWS = list(runpy.run_path(str(PROJECT / "examples/sums.py"))["rows"]())
SETTINGS = load_params(PROJECT / "recipes/demo-grpo.yaml").train.grpo
SUMS = sorted({row["answer"] for row in ROWS}, key=int)


def question(row: dict[str, Any]) -> str:
    return str(row["messages"][0]["content"])


def mean_reward(tmp_path: Path, answer: Callable[[dict[str, Any]], str]) -> float:
    with open_rewards(SETTINGS, tmp_path / "data/tokens") as rewards:
        return fmean(
            rewards.of(
                {"id": question(row), "messages": row["messages"], "reference": row["answer"]},
                [Answer(answer(row), True)],
            )[0][0]
            for row in ROWS
        )


def test_one_answer_to_all_questions_earns_next_to_nothing(tmp_path: Path) -> None:
    assert max(mean_reward(tmp_path, lambda _, said=one: said) for one in SUMS) <= 0.05


@pytest.mark.parametrize(
    "answer",
    [
        question,
        lambda row: re.findall(r"\d+", question(row))[0],
        lambda row: " + ".join(re.findall(r"\d+", question(row))),
        lambda row: ", ".join(SUMS),
        lambda row: "",
    ],
)
def test_nor_does_any_other_form(tmp_path: Path, answer: Callable[[dict[str, Any]], str]) -> None:
    assert mean_reward(tmp_path, answer) <= 0.05


@pytest.mark.parametrize("form", ["{0}", "The sum is {0}.", "17 + 10 = {0}\n", "**{0}**"])
def test_the_right_number_earns_all_in_whatever_form(tmp_path: Path, form: str) -> None:
    assert mean_reward(tmp_path, lambda row: form.format(row["answer"])) == 1
