"""quench judge, what is arithmetic: the verdict, what fits, names, keys of kept answers, the page."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from html_page import Page

from pipeline.chat.tokens import chat_request
from pipeline.commands.judge.command import common_points, spoilt
from pipeline.commands.judge.command import entry as judged_entry
from pipeline.commands.judge.files import Candidate, has_smaller_cache, held_out_rows, vocabulary
from pipeline.commands.judge.measure import (
    Served,
    kept_file,
    memory_values,
    parse_memory,
    room_of,
)
from pipeline.commands.judge.show import most_apart, render
from pipeline.commands.judge.verdict import Entry, decide, fastest_of, pairs_of
from pipeline.config.params import Params
from pipeline.config.sections import Serve
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.jsonl import write_rows
from pipeline.metrics.answer_speed import OtherLoad, Speed

GB = 1 << 30
LOAD = Serve(ctx_size=4096, threads=2, n_gpu_layers=0)
RIGHT, WRONG = [1.0] * 40, [0.0] * 40
FILE = Candidate(
    name="one",
    path=Path("one.gguf"),
    sha256="ab" * 32,
    copy=0,
    bytes=4 * GB,
    architecture="llama",
    parameters=8 * 10**9,
    bits_per_weight=4.3,
    types={"Q4_K": 200},
    positions=8192,
    per_token=131_072,
    vocabulary="v",
)


def entry(name: str, score: float, **changed: Any) -> Entry:
    found = Entry(name, score, 100, 200, fits=True, slowest=9.0, speed=10.0, fastest=11.0)
    return replace(found, **changed)


def test_the_better_file_that_fits_wins() -> None:
    pairs = pairs_of({"good": RIGHT, "bad": WRONG, "huge": RIGHT})
    entries = [entry("bad", 0.0), entry("good", 1.0), entry("huge", 1.0, fits=False)]
    verdict = decide(entries, pairs, 40, "8.00 GB")
    assert (verdict.best, verdict.alike) == ("good", ("good",))
    assert verdict.notes == ()  # the huge one is no better


def test_a_better_file_that_does_not_fit_is_named() -> None:
    pairs = pairs_of({"small": WRONG, "huge": RIGHT})
    entries = [entry("small", 0.0), entry("huge", 1.0, fits=False, memory=9 * GB)]
    verdict = decide(entries, pairs, 40, "8.00 GB")
    assert verdict.best == "small"
    assert [note for note in verdict.notes if "huge" in note and "9.00 GB" in note]


def test_files_that_rows_cannot_tell_apart_are_named() -> None:
    pairs = pairs_of({"a": RIGHT, "b": [0.0, *RIGHT[1:]], "c": WRONG})
    small = entry("b", 0.975, bytes=50, slowest=20.0, speed=21.0, fastest=22.0)
    verdict = decide([entry("a", 1.0), small, entry("c", 0.0)], pairs, 40, "8.00 GB")
    assert set(verdict.alike) == {"a", "b"}
    assert (verdict.smallest, verdict.fastest) == ("b", "b")


def test_a_speed_that_other_load_spoilt_decides_nothing() -> None:
    calm, busy = served(None), served(None)
    busy.others.append(OtherLoad(share=0.4, idle=0.0))
    values = {
        name: {"served": one.as_values(), "bytes": 1, "memory": {"total_bytes": 1, "fits": True}}
        for name, one in (("calm", calm), ("busy", busy))
    }
    calm_one, busy_one = (judged_entry(name, one, [1.0]) for name, one in values.items())
    fast = replace(calm_one, slowest=99.0, speed=99.0, fastest=99.0)
    assert fastest_of([fast, replace(calm_one, name="slow")]) == "calm"
    assert fastest_of([fast, busy_one]) is None
    assert [note for note in spoilt(values) if "busy" in note and "calm" not in note]
    assert spoilt({"calm": values["calm"]}) == []


def test_speeds_that_overlap_name_no_fastest_file_and_equal_sizes_no_smallest() -> None:
    pairs = pairs_of({"a": RIGHT, "b": RIGHT})
    verdict = decide([entry("a", 1.0), entry("b", 1.0, speed=10.5)], pairs, 40, "8.00 GB")
    assert (verdict.smallest, verdict.fastest) == (None, None)
    assert verdict.notes  # 40 rows without a difference leave room for one of 7 points
    many = pairs_of({"a": RIGHT * 5, "b": RIGHT * 5})
    assert not decide([entry("a", 1.0), entry("b", 1.0)], many, 200, "8.00 GB").notes


def test_a_file_that_loses_to_one_like_the_best_is_not_like_it() -> None:
    """A and C can't be told apart, nor A and B; B beats C."""
    b, c = [0.70] * 60 + [0.5] * 40, [0.60] * 60 + [0.5] * 40
    a = [1.0, 0.26] * 50
    points = {"A": a, "B": b, "C": c}
    entries = [entry(name, sum(each) / 100) for name, each in points.items()]
    assert decide(entries, pairs_of(points), 100, "8 GB").alike == ("A", "B")


def test_only_rows_that_all_files_have_a_score_of_count() -> None:
    answers = {
        "A": [{"score": 0.5}, {"score": None}],
        "B": [{"score": 0.7}, {"score": 0.0}],
    }
    assert common_points(answers) == {"A": [0.5], "B": [0.7]}
    with pytest.raises(DataError, match="Q-JUDGE-012"):
        common_points({"A": [{"score": None}], "B": [{"score": 1.0}]})


def test_nothing_fits() -> None:
    entries = [entry("a", 1.0, fits=False), entry("b", 0.5, fits=False, memory=100)]
    verdict = decide(entries, pairs_of({"a": RIGHT, "b": WRONG}), 40, "1.00 GB")
    assert (verdict.best, verdict.alike) == (None, ())
    assert "b" in verdict.sentence


def test_memory_that_is_not_known_is_said() -> None:
    pairs = pairs_of({"a": RIGHT, "b": WRONG})
    verdict = decide([entry("a", 1.0, fits=None), entry("b", 0.0)], pairs, 40, "8.00 GB")
    assert verdict.best == "a"
    assert verdict.notes


def test_many_pairs_need_a_clearer_difference() -> None:
    """Six of six rows decide between two files, and no more between any two of five."""
    six = {"a": [1.0] * 6, "b": [0.0] * 6}
    assert pairs_of(six)[0].measurable
    five = six | {name: [1.0] * 6 for name in "cde"}
    assert not any(pair.measurable for pair in pairs_of(five))


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8 GB", 8 * GB),
        ("8", 8 * GB),
        ("7.5gb", 15 * GB // 2),
        (" 512 MB ", 512 << 20),
        ("2." + "0" * 400, 2 * GB),
    ],
)
def test_memory_is_read(text: str, size: int) -> None:
    assert parse_memory(text) == size
    assert room_of(text, LOAD)[0] == size


@pytest.mark.parametrize("text", ["", "much", "8 TB", "-1 GB", "0", "8 GB 3", "9" * 400, "9" * 5000])
def test_no_amount_of_memory(text: str) -> None:
    with pytest.raises(ConfigError, match="Q-JUDGE-008"):
        parse_memory(text)


def served(peak: int | None) -> Served:
    return Served(load_seconds=[1.0], speeds=[Speed(100.0, 10.0)], peak_memory=peak)


def test_memory_is_predicted_and_measured() -> None:
    """4 GB and 0.5 GB of cache, and the prompt cache of 0.5 GB on top of both."""
    found = memory_values(FILE, LOAD, 8 * GB, served(5 * GB))
    assert found["predicted_bytes"] == round(4.5 * GB * 1.1) + GB // 2
    assert found["total_bytes"] == 5 * GB + GB // 2
    assert found["fits"] is True
    assert memory_values(FILE, LOAD, 5 * GB, served(5 * GB))["fits"] is False


def test_a_cache_that_the_header_does_not_say_is_measured() -> None:
    windowed = replace(FILE, per_token=None)
    found = memory_values(windowed, LOAD, 8 * GB, served(5 * GB))
    assert (found["predicted_bytes"], found["total_bytes"]) == (None, 5 * GB + GB // 2)
    assert memory_values(windowed, LOAD, 8 * GB, served(None))["fits"] is None
    assert has_smaller_cache({"gemma3.attention.sliding_window": 512}, "gemma3")
    assert has_smaller_cache({"rwkv7.wkv.head_size": 64}, "rwkv7")
    assert not has_smaller_cache({"llama.attention.head_count": 4}, "llama")


def test_a_context_longer_than_the_model_knows_does_not_fit() -> None:
    short = replace(FILE, positions=2048)
    assert memory_values(short, LOAD, 100 * GB, served(5 * GB))["fits"] is False


def test_vocabularies_are_compared_by_their_tokens() -> None:
    one, other = {"tokenizer.ggml.tokens": ["ab", "c"]}, {"tokenizer.ggml.tokens": ["a", "bc"]}
    assert vocabulary(one) == vocabulary(dict(one))
    assert vocabulary(one) != vocabulary(other)


def test_answers_are_kept_by_bytes_and_settings(tmp_path: Path) -> None:
    settings = Params().evaluating

    def key(one: Candidate = FILE, load: Serve = LOAD, limit: int = 256, version: str = "1") -> Path:
        return kept_file(tmp_path, one, load, settings.model_copy(update={"max_new_tokens": limit}), version)

    assert key(replace(FILE, name="other", path=Path("other.gguf"))) == key()
    others = {
        key(replace(FILE, sha256="cd" * 32)),
        key(replace(FILE, copy=1)),  # the same bytes again are measured again
        key(load=LOAD.model_copy(update={"ctx_size": 8192})),
        key(limit=64),
        key(version="2"),
    }
    assert len(others | {key()}) == 6


def chat(*texts: str, **more: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {
        "messages": [{"role": roles[place % 2], "content": text} for place, text in enumerate(texts)]
    } | more


def test_rows_are_those_of_any_chat_file(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    write_rows(
        file, [chat("a", "b"), chat("only asked", "x", "y"), chat("c", "d", id="mine"), {"kind": "text"}]
    )
    assert {row["id"] for row in held_out_rows(file, 10)} == {"line-1", "mine"}


def called(**call: Any) -> dict[str, Any]:
    """A chat in which a tool is called, and answers."""
    ask, answer = chat("Weather?", "Rain.")["messages"]
    turn = {"role": "assistant", "content": None, "tool_calls": [{"type": "function", **call}]}
    return {"messages": [ask, turn, {"role": "tool", "content": "rain"}, answer]}


def test_tools_as_the_text_of_an_empty_list_and_an_id_of_null_are_none(tmp_path: Path) -> None:
    """As tables that were exported have them."""
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    file = tmp_path / "rows.jsonl"
    write_rows(file, [{"id": None, "messages": turns, "tools": "[]"}])
    assert held_out_rows(file, 1) == [{"id": "line-1", "messages": turns}]


@pytest.mark.parametrize("arguments", ['{"city": "Paris"}', {"city": "Paris"}])
def test_calls_of_tools_are_read_as_curate_reads_them(tmp_path: Path, arguments: Any) -> None:
    """OpenAI's form has the arguments as text."""
    row = called(id="c1", function={"name": "weather", "arguments": arguments})
    write_rows(tmp_path / "rows.jsonl", [row | {"tools": [{"name": "weather"}]}])
    (found,) = held_out_rows(tmp_path / "rows.jsonl", 10)
    assert found["messages"][1] == {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"type": "function", "id": "c1", "function": {"name": "weather", "arguments": {"city": "Paris"}}}
        ],
    }
    asked = chat_request(found["messages"], found["tools"])
    assert asked["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"city": "Paris"}'
    assert asked["tools"] == [{"type": "function", "function": {"name": "weather"}}]


def test_rows_of_data_final_stay_as_they_are(tmp_path: Path) -> None:
    """Answers are kept by the hash of their row."""
    function = {"name": "weather", "arguments": {"city": "Paris"}}
    row = {"id": "a", "kind": "chat", "domain": "d", **called(function=function, id="c1")}
    row["messages"][1] |= {"content": "", "train": False, "reasoning_content": "Hm."}
    row["messages"][2] |= {"tool_call_id": "c1", "name": "weather"}
    row |= {"tools": [{"type": "function", "function": {"name": "weather", "parameters": {}}}]}
    write_rows(tmp_path / "rows.jsonl", [row])
    assert held_out_rows(tmp_path / "rows.jsonl", 10) == [row]


@pytest.mark.parametrize(
    "row",
    [
        {"text": "no chat"},
        {"messages": []},
        {"messages": [{"role": "user"}, 3]},
        {"messages": [{"role": "user", "content": None}, {"role": "assistant", "content": "x"}]},
        chat("asked", "x", "y"),
        called(),
        called(function={"arguments": {}}),
        called(function={"name": "f", "arguments": "{no JSON"}),
        called(function={"name": "f", "arguments": [1]}),
        chat("asked", "x", tools=[3]),
    ],
)
def test_a_line_that_is_no_chat_is_named(tmp_path: Path, row: dict[str, Any]) -> None:
    write_rows(tmp_path / "rows.jsonl", [row])
    with pytest.raises(DataError, match="Q-JUDGE-006"):
        held_out_rows(tmp_path / "rows.jsonl", 10)


def answer(score: float | None, text: str = "a") -> dict[str, Any]:
    return {"id": "r", "prompt": "<p>", "reference": "r", "answer": text, "score": score, "stopped": True}


def test_rows_that_lie_furthest_apart_come_first() -> None:
    one, other = [answer(1.0), answer(1.0), answer(0.5)], [answer(1.0), answer(0.0), answer(0.4)]
    both = {"a": one, "b": other}
    assert most_apart(both, both) == [1, 2]
    third = both | {"c": [answer(0.0), answer(0.0), answer(0.0)]}
    assert most_apart(third, third) == [0, 1, 2]
    assert most_apart(third, both) == [1, 2, 0]


def test_the_page_is_whole_and_escapes_what_models_say() -> None:
    task = {"score": 0.5, "score_low": 0.4, "score_high": 0.6, "perfect": 0.1, "valid": 1.0, "stopped": 1.0}
    one = {
        "sha256": "ab",
        "same_bytes_as": None,
        "bytes": 4 * GB,
        "architecture": "llama",
        "parameters": 8 * 10**9,
        "bits_per_weight": 4.3,
        "tensor_types": {"Q4_K": 3},
        "memory": memory_values(FILE, LOAD, 8 * GB, served(5 * GB)),
        "served": served(5 * GB).as_values(),
        "task": task,
        "divergence": {"not_measured": "no reference"},
    }
    pairs = pairs_of({"a": RIGHT, "b": WRONG})
    report = {
        "verdict": {"sentence": "a is best.", "best": "a", "alike": ["a"], "notes": ["few rows"]},
        "files": {"a": one, "b": one},
        "pairs": [vars(pair) | {"measurable": pair.measurable} for pair in pairs],
        "rows": 2,
        "data": "test.jsonl",
        "scorers": ["rouge_l"],
        "max_new_tokens": 8,
        "ctx_size": 4096,
        "threads": 2,
        "n_gpu_layers": 0,
        "room_bytes": 8 * GB,
        "room": "8.00 GB",
        "reference": None,
        "machine": "m",
        "llama_cpp": "v",
    }
    html = render(report, {"a": [answer(1.0, "<script>x")], "b": [answer(0.0)]})
    page = Page(html)
    assert "a is best." in page.text
    assert "<script>x" in page.text  # as text
    assert all(tag != "script" for tag, _ in page.tags)
    assert {attributes["id"] for _, attributes in page.tags if "id" in attributes} >= {
        "files",
        "pairs",
        "answers",
    }
