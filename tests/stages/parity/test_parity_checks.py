"""Parity's parts that need no process: what is measured, what conversations and strings hold, rewrites, the
cause named for each loss and rounding that was asked for.
"""

import json
import unicodedata
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from families import byte_folder
from parity_outputs import LIMITS, OTHER, THIRD, halves, output

from pipeline.chat.tokens import load_tokenizer
from pipeline.config.sections import AUTO, Parity
from pipeline.core.checks import Check
from pipeline.core.errors import DataError, ToolError
from pipeline.core.hashing import json_hash
from pipeline.metrics.divergence import compare
from pipeline.metrics.level_limits import level_limit
from pipeline.stages.parity.check import Measure, Probe, count_check, measured
from pipeline.stages.parity.divergence_checks import (
    gguf_check,
    level_bound,
    level_check,
    lora_check,
    merge_checks,
)
from pipeline.stages.parity.probe_inputs import Conversation, chosen, strings, synthetic, unicode_runs
from pipeline.stages.parity.rendering import Rewrites

BY_HAND = 1579  # strings of the corpus
UNUSED: Any = None
SOUND, DAMAGED, UNKNOWN = (Check("W", verdict, "said") for verdict in ("pass", "fail", "not measured"))


def test_what_is_measured_and_what_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(_: Any) -> Any:
        raise ToolError("Q-TEST-001", "not loaded\nat all")

    passes, fails = Check("X", "pass", "so"), Check("X", "fail", "so")
    sound = Probe("sound", {"a": "A"}, lambda checks: {"a": passes})
    broken = Probe("broken", {"b": "B"}, lambda checks: {"b": fails} if checks == {"a": passes} else {})
    refused = Probe("refused", {"c": "C"}, refuse)
    deep = Probe("deep", {"d": "D"}, lambda checks: {"d": passes}, "full")
    lacking = Probe("lacking", {"e": "E"}, refuse, lacking="no level")
    checks = measured([sound, broken, refused, deep, lacking], "standard")
    assert list(checks) == ["a", "b", "c", "d", "e"]
    assert (checks["c"].name, checks["c"].sentence, checks["e"].sentence) == ("C", "not loaded", "no level")
    assert [checks[key].verdict for key in "abcde"] == ["pass", "fail", *["not measured"] * 3]
    assert "deep" not in capsys.readouterr().err
    assert measured([deep], "full") == {"d": passes}
    assert "deep" in capsys.readouterr().err
    with pytest.raises(ToolError, match="Q-TEST-001: "):
        measured([sound, refused], "standard")


def test_a_check_that_compared_nothing_has_not_passed() -> None:
    assert count_check("X", "x", 0, 0, "").verdict == "not measured"
    passed, failed = count_check("X", "x", 0, 1, "", "why"), count_check("X", "x", 2, 3, "here", "why")
    assert (passed.verdict, passed.figure, passed.limit, passed.remedy) == ("pass", 0.0, 0.0, "")
    assert failed.sentence.endswith("here")
    assert (failed.verdict, failed.figure, failed.remedy, failed.unit) == ("fail", 2.0, "why", "differences")


def test_logits_are_compared_on_held_out_chats_that_fit(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(byte_folder(tmp_path))

    def prompts(*lengths: int) -> list[str]:
        asked = [{"role": "user", "content": "a" * length} for length in lengths]
        rows: Any = [{"messages": [turn, {"role": "assistant", "content": "b"}]} for turn in asked]
        prompts = Measure(rows, Parity(rows=2), UNUSED, tmp_path).prompts(tokenizer)
        return [tokenizer.decode(prompt.ids) for prompt in prompts]

    assert prompts(4000, 9, 9, 9) == prompts(9) * 2
    with pytest.raises(DataError, match="Q-PARITY-003: "):
        prompts(4000)


def test_a_report_is_about_the_same_conversations_as_the_last() -> None:
    """Check that the conversations are the same, because a change of one changes what reports count."""
    assert json_hash([asdict(conversation) for conversation in synthetic()])[:12] == "dbbb40cc968a"
    for count, step in ((1, 200), (3, 66), (50, 4), (199, 1), (201, 1)):
        chats = chosen([{"messages": [], "tools": [{}]}] * 300, count)
        assert chats == [Conversation([], [{}], held_out=True)] * count + synthetic()[::step]


def test_the_corpus_is_what_it_was(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(byte_folder(tmp_path))
    corpus, runs = list(strings(tokenizer, ["a text"], 5000)), list(unicode_runs())[::20]
    tokens = [tokenizer.decode([number]) for number in range(0, len(tokenizer), 20)]
    last = BY_HAND + len(tokens) + len(runs)
    assert len(corpus) == 5000 and Parity().strings >= 100_000
    assert corpus[BY_HAND:last] == [unicodedata.normalize("NFC", text) for text in (*tokens, *runs)]
    assert json_hash(corpus[:BY_HAND])[:12] == "f349bc82979e"
    assert json_hash(corpus[last : last + 99])[:12] == "81200641e717"


def test_every_assigned_character_is_in_a_run() -> None:
    seen = set("".join(unicode_runs()))
    assert {"a", "ß", "中", "한", "🙂", "\u0300", "\u2028", "\U0001f1e9", "𓀀", "ﷺ"} <= seen
    assert not seen & {"\ud800", "\ue000", "\U000e0080"}
    categories = (unicodedata.category(chr(code)) for code in range(1, 0x110000))
    assert sum(category not in ("Cn", "Co", "Cs") for category in categories) == len(seen)


DESCRIBED = {"name": "f", "description": "d", "parameters": {"n": [1, True, "x"]}}
BARE = {"name": "f", "description": "", "parameters": {}}
REORDERED, STRICT = {"description": "d"} | DESCRIBED, DESCRIBED | {"strict": True}


@pytest.mark.parametrize(
    ("given", "shown"),
    [(DESCRIBED, DESCRIBED), (STRICT, DESCRIBED), (REORDERED, DESCRIBED), ({"name": "f"}, BARE)],
)
def test_a_tool_as_llama_server_shows_it(given: dict[str, Any], shown: dict[str, Any]) -> None:
    for tool in ({"type": "function", "function": given}, {"function": given, "type": "function"}):
        rewrites = Rewrites()
        assert json.dumps(rewrites.tool(tool)) == json.dumps({"type": "function", "function": shown})
        assert len(rewrites.reasons) == (list(given) != list(shown) or next(iter(tool)) == "function")


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
    assert '"a": 1.23457, "b": [0.5, 2, {"c": 1e-07}], ' in shown
    assert rewrites.put_back(changed["content"]) == turn["content"]
    assert Rewrites().turn({"role": "user"}) == {"role": "user"}


# --- causes ---


def level(weights: Check | None, after: Any, limits: Any = LIMITS) -> Check:
    """A Q4_K_M that says `after`, with what was found of its weights."""
    bound = level_bound("Q4_K_M", output(), limits, lambda: weights)
    return level_check("X", output().gguf, after, bound, output())


STRANGE = [np.full((8, 50), np.nan, np.float32)]
BOTH = ["outputs_sixteen", "outputs_trained"]


@pytest.mark.parametrize(
    ("merge_base", "models", "failed", "cause"),
    [
        ("16-bit", {}, [], ""),
        ("nf4", {}, [], ""),
        ("nf4", {"as_trained": STRANGE}, [], ""),
        ("16-bit", {"merged": OTHER, "untuned": OTHER}, BOTH, "the adapter was not merged"),
        ("16-bit", {"merged": OTHER, "trained": OTHER}, ["outputs_sixteen"], "merged into the NF4 base"),
        ("nf4", {"merged": OTHER, "sixteen": OTHER}, ["outputs_trained"], "merged into the 16-bit base"),
        ("16-bit", {"trained": OTHER}, ["outputs_trained"], "set merge.base to nf4"),
        ("nf4", {"sixteen": OTHER}, ["outputs_sixteen"], "set merge.base to 16-bit"),
        ("16-bit", {"merged": OTHER}, BOTH, "not this base with this adapter"),
        ("16-bit", {"merged": STRANGE}, BOTH, "too large for float16"),
        ("16-bit", {"sixteen": STRANGE}, ["outputs_sixteen"], "too large for float16"),
        ("16-bit", {"merged": [halves(8, 51)]}, BOTH, "not the same model"),
    ],
)
def test_causes_of_a_merge_that_lost_something(
    merge_base: str, models: dict[str, Any], failed: list[str], cause: str
) -> None:
    checks = merge_checks(output(**models), merge_base)
    assert [key for key, check in checks.items() if check.verdict == "fail"] == failed
    assert all(cause in checks[key].remedy for key in failed)
    for check in checks.values():
        assert check.figure is not None and np.isfinite(list(check.figures.values())).all()
        assert "nan" not in check.sentence


@pytest.mark.parametrize(
    ("check", "cause"),
    [
        (lambda: gguf_check(output(gguf=OTHER, untuned=OTHER), "X"), "is the untuned base"),
        (lambda: gguf_check(output(merged=OTHER, trained=THIRD), "X"), "the merged model is not"),
        (lambda: gguf_check(output(merged=OTHER, sixteen=THIRD), "X"), "the merged model is not"),
        (lambda: gguf_check(output(gguf=OTHER), "X"), "another model or is damaged"),
        (lambda: level(DAMAGED, OTHER), "may be damaged"),
        (lambda: level(UNKNOWN, OTHER), "may be damaged"),
        (lambda: level(None, OTHER), "may be damaged"),
        (lambda: level(SOUND, STRANGE), "too large for float16"),
        (lambda: lora_check(output(untuned=OTHER), OTHER, "16-bit"), "changes nothing"),
        (lambda: lora_check(output(sixteen=THIRD), output().gguf, "nf4"), "of another run"),
    ],
)
def test_causes_of_a_gguf_that_lost_something(check: Callable[[], Any], cause: str) -> None:
    assert check().verdict == "fail"
    assert cause in check().remedy


@pytest.mark.parametrize(
    ("gguf", "figure", "unit"),
    [(STRANGE, 8.0, "positions"), ([halves(8, 51)], 1.0, "tokens"), ([halves(8, 47)], 3.0, "tokens")],
)
def test_logits_that_can_not_be_compared_are_counted(gguf: Any, figure: float, unit: str) -> None:
    check = gguf_check(output(gguf=gguf), "X")
    assert (check.verdict, check.figure, check.limit, check.unit) == ("fail", figure, 0.0, unit)


# --- rounding that was asked for ---


def test_what_a_level_costs_is_a_warning_where_its_weights_passed() -> None:
    found = level(SOUND, OTHER)
    assert (found.verdict, found.limit) == ("warn", 0.7)
    assert found.figure is not None and found.figure > 0.7 and found.unit == "nats"
    assert found.figures.keys() == {"nmse", "kld_max", "same_top", "positions", "kld_trained"}
    assert "report.gate.max_kld" in found.remedy
    at_the_limit = SimpleNamespace(max_kld_level=found.figure)
    assert level(DAMAGED, OTHER, at_the_limit).verdict == "pass"
    published = level(SOUND, OTHER, SimpleNamespace(max_kld_level=AUTO))
    assert (published.verdict, published.limit) == ("warn", level_limit("Q4_K_M", None).kld)
    without_training = gguf_check(output(as_trained=STRANGE), "X")
    assert without_training.verdict == "pass" and "kld_trained" not in without_training.figures


def test_where_weights_were_not_checked_the_divergence_is_the_evidence_and_that_is_said() -> None:
    assert "not checked (said)" in level(UNKNOWN, OTHER).sentence
    assert "not checked, so" in level(None, OTHER).sentence
    assert "did not pass" in level(DAMAGED, OTHER).sentence
    assert level(UNKNOWN, output().gguf).verdict == "pass"


@pytest.mark.parametrize(
    ("merge_base", "models", "warned", "advised"),
    [
        ("16-bit", {"trained": OTHER}, "outputs_trained", ("merge.base to nf4", "max_kld_trained")),
        ("nf4", {"sixteen": OTHER}, "outputs_sixteen", ("merge.base to 16-bit", "16-bit base is meant")),
    ],
)
def test_what_nf4_costs_is_a_warning_where_the_merged_weights_passed(
    merge_base: str, models: dict[str, Any], warned: str, advised: tuple[str, str]
) -> None:
    outputs = output(**models, as_trained=THIRD, weights={"weights_merged": SOUND}, nf4=SOUND)
    checks = merge_checks(outputs, merge_base)
    wanted = dict.fromkeys(BOTH, "pass") | {warned: "warn"}
    assert {key: check.verdict for key, check in checks.items()} == wanted
    assert all(words in checks[warned].remedy for words in advised)
    assert checks[warned].limit == level_limit("nf4", None).kld
    rounding = compare(outputs.as_trained, outputs.trained).kld
    assert f"{rounding:.2g} nats" in checks["outputs_trained"].sentence


@pytest.mark.parametrize(
    ("merged", "nf4"), [(DAMAGED, SOUND), (None, SOUND), (SOUND, DAMAGED), (SOUND, UNKNOWN), (SOUND, None)]
)
def test_a_merge_is_explained_by_nf4_only_if_both_sides_were_checked(
    merged: Check | None, nf4: Check | None
) -> None:
    weights = {"weights_merged": merged} if merged else {}
    checks = merge_checks(output(trained=OTHER, weights=weights, nf4=nf4), "16-bit")
    assert [checks[key].verdict for key in BOTH] == ["pass", "fail"] and len(checks) == 2
    assert "merge.base" in checks["outputs_trained"].remedy


@pytest.mark.parametrize("merge_base", ["16-bit", "nf4"])
def test_an_exact_hand_over_fails_whatever_its_weights_say(merge_base: str) -> None:
    checks = merge_checks(output(merged=OTHER, weights={"weights_merged": SOUND}), merge_base)
    exact = "outputs_sixteen" if merge_base == "16-bit" else "outputs_trained"
    assert checks[exact].verdict == "fail"


def test_an_adapter_on_the_base_is_held_against_what_it_can_equal() -> None:
    """The merge's GGUF where it went into the 16-bit base, else the 16-bit base with the adapter."""
    assert lora_check(output(gguf=OTHER), OTHER, "16-bit").verdict == "pass"
    assert lora_check(output(gguf=OTHER, sixteen=THIRD), THIRD, "nf4").verdict == "pass"
