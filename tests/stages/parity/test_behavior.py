"""parity checks.behavior: rigged models that end, never end or write control tokens, in real llama-server."""

from collections.abc import Callable
from contextlib import nullcontext
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
from pipeline.stages.parity.behavior import behavior_checks
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
    """The text itself does not show the token, because llama-server leaves control tokens out of it."""
    check = measure(rigged(tmp_path / LEVEL, START))["behavior_no_markers"]
    assert (check.verdict, check.figure) == ("fail", 2.0)
    assert check.remedy.startswith(f"{LEVEL} writes <|im_start|>")


class Canned:
    """A server that says this, of 65 and the end of turn; `requests` are what it was asked."""

    def __init__(self, text: str) -> None:
        self.text, self.requests = text, list[dict[str, Any]]()

    def post(self, path: str, request: dict[str, Any]) -> dict[str, Any]:
        self.requests.append(request)
        tokens = {"content": [{"id": 65}, {"id": END}]}
        return {"choices": [{"finish_reason": "stop", "message": {"content": self.text}, "logprobs": tokens}]}


@pytest.fixture
def canned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[Any, dict[str, Check]]]:
    """The requests and the parity checks on rows where each server says this."""
    tokenizer = load_tokenizer(byte_folder(tmp_path / "folder"))

    def run(rows: list[dict[str, Any]], text: str = "yes") -> tuple[Any, dict[str, Check]]:
        server = Canned(text)
        monkeypatch.setattr("pipeline.stages.parity.behavior.serving", lambda *_, **__: nullcontext(server))
        given = Measure(rows, Parity(rows=2), Llama(Toolchain(tmp_path, tmp_path)), tmp_path)
        checks = behavior_checks([ModelFiles(tmp_path / F16)], tokenizer, given)
        return sorted(server.requests, key=lambda one: len(one["messages"])), checks

    return run


@pytest.mark.parametrize(("text", "written"), [("yes<|im_end|>", 2.0), ("yes", 0.0)])
def test_a_spelled_marker_is_one_too(canned: Callable[..., Any], text: str, written: float) -> None:
    _, checks = canned(ROWS, text)
    assert checks["behavior_no_markers"].figure == written


def test_questions_end_before_an_answer_and_fit(canned: Callable[..., Any]) -> None:
    user, answer = {"role": "user", "content": "q"}, {"role": "assistant", "content": "x" * 20}
    tool = {"type": "function", "function": {"name": "f"}}
    rows: list[dict[str, Any]] = [
        {"messages": [user, answer, user]},
        {"messages": [answer]},
        {"messages": [{"role": "user", "content": "q" * 1020}, answer]},
        {"messages": [user, answer], "tools": [tool]},
        {"messages": [user, answer, user, answer]},
        {"messages": [user, answer]},
    ]
    (first, second), _ = canned(rows)
    assert [len(one["messages"]) for one in (first, second)] == [1, 3] and first["tools"] == [tool]
    # twice the longest answer and some more, and half of the context at most
    assert first["max_tokens"] == second["max_tokens"] == 2 * 20 + 64
    (long,), _ = canned([{"messages": [user, answer | {"content": "x" * 600}]}])
    assert long["max_tokens"] == 1024
    nothing, checks = canned(rows[:3])
    assert (nothing, checks["behavior_answers_end"].verdict) == ([], "not measured")
