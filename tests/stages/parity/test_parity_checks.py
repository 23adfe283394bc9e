"""Parity's parts that need no process: what a check says, what is measured, what conversations hold."""

import json
import random
import unicodedata
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import pytest

from pipeline.config.sections import Parity
from pipeline.core.errors import DataError, ToolError
from pipeline.core.hashing import json_hash
from pipeline.metrics.divergence import Divergence
from pipeline.stages.parity.check import (
    Measure,
    Probe,
    divergence_check,
    exact,
    first_difference,
    incomparable,
    measured,
)
from pipeline.stages.parity.conversations import chosen, made
from pipeline.stages.parity.corpus import ALL, by_hand, mix, single_tokens, strings, unicode_runs
from pipeline.stages.parity.rewrites import Rewrites


def divergence(strange: int = 0, widths: tuple[int, int] = (5, 5)) -> Divergence:
    return Divergence([0.25], 0.25, 0.5, 0.9, 0.1, 40, strange, widths)


def test_what_a_check_says() -> None:
    figures = {"nmse": 0.1, "kld_max": 0.5, "same_top": 0.9, "positions": 40.0}
    for cause, verdict in (("", "pass"), ("why", "fail")):
        check = divergence_check("X", divergence(), 0.3, "so", cause, {"more": 1.0})
        assert (check.verdict, check.remedy, check.figure, check.limit) == (verdict, cause, 0.25, 0.3)
        assert (check.name, check.unit, check.figures) == ("X", "nats", figures | {"more": 1.0})
        count = exact("X", 2 * bool(cause), "rows", "so", "why", "which")
        assert (count.verdict, count.remedy, count.what) == (verdict, cause, "which")
        assert (count.figure, count.limit, count.unit) == (2.0 * bool(cause), 0.0, "rows")
    for strange, figure, unit in ((3, 3.0, "positions"), (0, 4.0, "tokens")):
        check = incomparable("X", divergence(strange, (5, 9)), "so", "why")
        assert (check.verdict, check.figure, check.unit) == ("fail", figure, unit)
    words = first_difference("abcdefghijklmnopqrs", "abXdefghijklmnopqrs")
    assert all(part in words for part in ("at 2 ", "'cdefghijklmn'", "'Xdefghijklmn'"))


def test_what_is_measured_and_what_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(_: Any) -> Any:
        raise ToolError("Q-TEST-001", "it did not load\nat all")

    passes, fails = (exact("X", count, "rows", "so", "why", "which") for count in (0, 1))
    sound = Probe("sound", {"a": "A"}, lambda checks: {"a": passes})
    broken = Probe("broken", {"b": "B"}, lambda checks: {"b": fails} if checks == {"a": passes} else {})
    refused = Probe("refused", {"c": "C"}, refuse)
    deep = Probe("deep", {"d": "D"}, lambda checks: {"d": passes}, "full")
    lacking = Probe("lacking", {"e": "E"}, refuse, lacking="no level")
    checks = measured([sound, broken, refused, deep, lacking], "standard")
    assert list(checks) == ["a", "b", "c", "d", "e"]
    assert (checks["c"].name, checks["c"].sentence, checks["e"].sentence) == (
        "C",
        "it did not load",
        "no level",
    )
    assert [checks[key].verdict for key in "abcde"] == ["pass", "fail", *["not measured"] * 3]
    assert "deep" not in capsys.readouterr().err
    assert measured([deep], "full") == {"d": passes}
    assert "deep" in capsys.readouterr().err
    with pytest.raises(ToolError, match="Q-TEST-001: "):
        measured([sound, refused], "standard")
    with pytest.raises(DataError, match="Q-PARITY-003: "):
        Measure([], Parity(), cast(Any, None), Path()).prompts(None)


def test_a_report_is_about_the_same_conversations_as_the_last() -> None:
    """Who changes a conversation changes what reports count: then these digests change with it."""
    assert json_hash([asdict(conversation) for conversation in made()])[:12] == "dbbb40cc968a"
    for count, step in ((1, 200), (3, 66), (50, 4), (199, 1), (201, 1)):
        chats = chosen([{"messages": []}] * 300, count)
        assert [chat.held_out for chat in chats] == [True] * count + [False] * len(made()[::step])


class Spelled:
    """A tokenizer of 5,000 tokens whose texts are their numbers."""

    backend_tokenizer = property(lambda self: self)
    get_added_vocab = staticmethod(lambda: {"<|x|>": 4999, "<b>": 4998})

    def __len__(self) -> int:
        return 5000

    def decode_batch(self, batch: list[list[int]], *, skip_special_tokens: bool) -> list[str]:
        assert not skip_special_tokens
        return [str(number) for (number,) in batch]


def test_a_corpus_is_what_it_was_and_of_the_size_that_was_wished() -> None:
    tokens = list(single_tokens(Spelled()))
    assert tokens == [str(number) for number in range(5000)]
    hard = list(by_hand(Spelled()))
    assert json_hash(hard)[:12] == "ae126551f2c7"
    mixed = [mix(random.Random(seed), ["a text"], hard) for seed in range(40)]  # noqa: S311
    assert json_hash(mixed)[:12] == "4f36e150d478"
    fixed = [*hard, *tokens[::20], *list(unicode_runs())[::20]]
    corpus = list(strings(Spelled(), ["a text"], 5000))
    assert corpus[: len(fixed)] == [unicodedata.normalize("NFC", text) for text in fixed]
    assert len(corpus) == max(5000, len(fixed)) and Parity().strings >= ALL


@pytest.mark.parametrize(
    ("definition", "kept", "reasons"),
    [
        ({"name": "f", "description": "d", "parameters": {"n": [1, True, "x"]}}, {}, 0),
        ({"name": "f", "description": "d", "parameters": {}, "strict": True}, {}, 1),
        ({"description": "d", "name": "f", "parameters": {}}, {}, 1),
        ({"name": "f"}, {"description": "", "parameters": {}}, 1),
    ],
)
def test_a_tool_as_llama_server_shows_it(
    definition: dict[str, Any], kept: dict[str, Any], reasons: int
) -> None:
    rewrites = Rewrites()
    function = {key: value for key, value in definition.items() if key != "strict"} | kept
    shown = rewrites.tool({"type": "function", "function": definition})
    assert shown == {"type": "function", "function": function} and len(rewrites.reasons) == reasons
    assert list(shown["function"]) == ["name", "description", "parameters"]
    rewrites.tool({"function": definition, "type": "function"})
    assert len(rewrites.reasons) == 1


def test_a_turn_with_fractions_and_white_space_beyond_ascii() -> None:
    arguments = {"a": 1.23456789, "b": [0.5, 2.0, {"c": 1e-7}], "d": 3}
    call = {"id": "x", "function": {"name": "f", "arguments": arguments}}
    rewrites = Rewrites()
    turn = {"role": "user", "content": "\u00a0 x\u2003y\t", "reasoning_content": " x ", "tool_calls": [call]}
    changed = rewrites.turn(turn)
    assert len(rewrites.reasons) == 2 and changed["reasoning_content"] == " x "
    assert changed["content"].strip() == changed["content"].rstrip("\t") != turn["content"]
    assert changed["tool_calls"][0] | {"function": call["function"]} == call
    shown = rewrites.put_back(json.dumps(changed, ensure_ascii=False))
    assert '"a": 1.23457, "b": [0.5, 2, {"c": 1e-07}], "d": 3' in shown
    assert rewrites.put_back(changed["content"]) == turn["content"]
    assert Rewrites().turn({"role": "user"}) == {"role": "user"}
