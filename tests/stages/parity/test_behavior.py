"""parity checks.behavior: rigged models that end, never end or write control tokens, in real llama-server."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from families import byte_folder
from rigged import END, START, rigged

from pipeline.chat.tokens import load_tokenizer
from pipeline.config.products import ModelFiles
from pipeline.config.sections import Parity
from pipeline.core.checks import Check
from pipeline.llamacpp.tools import Llama, Toolchain
from pipeline.stages.parity import behavior
from pipeline.stages.parity.behavior import Answer, answers_end, behavior_checks, no_markers, questions
from pipeline.stages.parity.check import Measure

F16, LEVEL = "model-F16.gguf", "model-Q4_0.gguf"
ROWS = [{"messages": [{"role": "user", "content": "say it"}, {"role": "assistant", "content": "he"}]}] * 3


@pytest.fixture
def measure(tools: Toolchain, tmp_path: Path) -> Callable[..., dict[str, Check]]:
    """The parity checks of a 16-bit model that ends and of one more."""
    tokenizer = load_tokenizer(byte_folder(tmp_path / "folder"))
    f16 = rigged(tmp_path / F16)

    def run(*others: Path, first: Path = f16) -> dict[str, Check]:
        models = [ModelFiles(model) for model in (first, *others)]
        return behavior_checks(models, tokenizer, Measure(ROWS, Parity(rows=2), Llama(tools), tmp_path))

    return run


def test_a_good_model_passes(measure: Callable[..., dict[str, Check]]) -> None:
    checks = measure()
    assert {check.verdict for check in checks.values()} == {"pass"}
    assert checks["behavior_answers_end"].figures == {f"{F16} ended": 2.0}


def test_a_level_that_never_ends_is_caught(measure: Callable[..., dict[str, Check]], tmp_path: Path) -> None:
    never = rigged(tmp_path / LEVEL, stops=False)
    check = measure(never)["behavior_answers_end"]
    assert (check.verdict, check.figure) == ("fail", 1.0)
    assert check.remedy.startswith(f"{LEVEL} never ends")
    assert f"{LEVEL}: 0 of 2" in check.sentence
    alone = measure(never, first=never)["behavior_answers_end"]
    assert (alone.verdict, alone.figure) == ("not measured", None)
    assert "trained too little" in alone.sentence


def test_a_control_token_inside_an_answer_is_caught(
    measure: Callable[..., dict[str, Check]], tmp_path: Path
) -> None:
    """Which the text itself does not show: llama-server leaves control tokens out of it."""
    check = measure(rigged(tmp_path / LEVEL, START))["behavior_no_markers"]
    assert (check.verdict, check.figure) == ("fail", 2.0)
    assert check.remedy.startswith(f"{LEVEL} writes <|im_start|>")


def test_a_spelled_marker_is_one_too(tmp_path: Path) -> None:
    printed = Answer(True, "yes<|im_end|>", [65, END])
    answers = {"m.gguf": [printed, replace(printed, text="yes")]}
    tokenizer = load_tokenizer(byte_folder(tmp_path / "folder"))
    assert no_markers(answers, tokenizer).figure == 1.0
    assert answers_end({"m.gguf": []}, 9).verdict == "not measured"


def test_questions_end_before_an_answer_and_fit(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(byte_folder(tmp_path / "folder"))
    user, answer = {"role": "user", "content": "q"}, {"role": "assistant", "content": "x" * 20}
    tool = {"type": "function", "function": {"name": "f"}}
    rows: list[dict[str, Any]] = [
        {"messages": [user]},
        {"messages": [answer]},
        {"messages": [{"role": "user", "content": "q" * 300}, answer]},
        {"messages": [user, answer], "tools": [tool]},
        {"messages": [user, answer, user, answer]},
        {"messages": [user, answer]},
    ]
    asked, budget = questions(rows, tokenizer, 2, 512)
    assert [len(one["messages"]) for one in asked] == [1, 3]
    assert asked[0]["tools"] == [tool]
    assert budget == 2 * 20 + behavior.ROOM
    assert questions(rows, tokenizer, 2, 128)[1] == 64
    assert questions([], tokenizer, 2, 128)[0] == []
