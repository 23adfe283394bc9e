"""Few different answers and calls of tools that a row does not offer, in the report and on the data page."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from curating import Project, chat, lines, sentence
from html_page import lines_of
from make import quench
from tokenizer_folders import smollm_folder

from pipeline.config.params import Params
from pipeline.stages.curate.answers import LONGEST, MOST_ANSWERS, few_answers, near_equals
from pipeline.stages.curate.called_tools import misfitting_calls
from pipeline.stages.curate.clean import CleaningStats
from pipeline.stages.curate.phases import cleaning
from pipeline.stages.curate.stage import main

Rows = list[dict[str, Any]]
KEPT = {"drop_duplicates": "none", "val_fraction": 0.0, "test_fraction": 0.0}


def labelled(**labels: int) -> Rows:
    """Return rows with this many of each label."""
    answers = [label for label, rows in labels.items() for _ in range(rows)]
    return [chat(sentence(number, 12), answer) for number, answer in enumerate(answers)]


def calling(*names: str, offers: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return a row that calls these tools and offers those."""
    calls = [{"function": {"name": name, "arguments": {}}} for name in names]
    tools = [{"name": name, "parameters": {"type": "object", "properties": {}}} for name in offers]
    turns: Rows = [{"role": "user", "content": sentence(len(names), 12)}]
    turns += [{"role": "assistant", "content": "", "tool_calls": calls}]
    turns += [{"role": "tool", "content": "done"}] * len(names)
    turns += [{"role": "assistant", "content": sentence(7, 9)}]
    return {"messages": turns} | ({"tools": tools} if tools else {})


def test_few_answers_are_a_table_and_near_equals_are_named(tmp_path: Path) -> None:
    rows = labelled(technical=6, billing=4, Technical=2, **{"technical ": 2})
    project = Project(tmp_path, {"a.jsonl": lines(*rows)})
    report = project.run(**KEPT)
    assert [tuple(entry.values()) for entry in report["answers"]] == [
        ("technical", 6),
        ("billing", 4),
        ("Technical", 2),
        ("technical ", 2),
    ]
    page = lines_of((tmp_path / "reports/data.html").read_text())
    assert 'technical (6), Technical (2) and "technical " (2)' in page


@pytest.mark.parametrize(
    "labels",
    [
        {f"label {number}": 3 for number in range(MOST_ANSWERS + 1)},
        {"short": 3, "x" * (LONGEST + 1): 3},
        {sentence(number, 3): 1 for number in range(9)},
    ],
)
def test_of_many_or_long_answers_there_is_no_table(tmp_path: Path, labels: dict[str, int]) -> None:
    report = Project(tmp_path, {"a.jsonl": lines(*labelled(**labels))}).run(**KEPT)
    assert "answers" not in report


def test_answers_are_counted_alike_in_blocks_and_at_once() -> None:
    names = [f"label {number}" for number in range(MOST_ANSWERS + 1)] * 3
    stats = CleaningStats()
    for block in (names[:40], names[40:80], names[80:]):
        part = CleaningStats()
        part.answers.update(block)
        stats.update(part)
    assert few_answers(stats.answers) is None
    assert len(stats.answers) == 1 and stats.answers.total() == len(names)


def test_calls_of_tools_that_the_row_lacks_are_named_with_counts(tmp_path: Path) -> None:
    rows = [
        calling("get_order", offers=("get_order", "refund")),
        calling("getOrder", "getOrder", offers=("get_order",)),
        calling("getOrder", "refund", offers=("get_order",)),
        calling("get_order"),
        chat("Name the pier.", "The north pier."),
    ]
    project = Project(tmp_path, {"a.jsonl": lines(*rows)})
    report = project.run(**KEPT)
    assert report["calls"] == {
        "rows": 4,
        "without_tools": 1,
        "not_offered": {"getOrder": 2, "refund": 1},
        "places": {
            "without_tools": {"rows": 1, "first": ["a.jsonl:4"]},
            "not_offered": {"rows": 2, "first": ["a.jsonl:2", "a.jsonl:3"]},
        },
    }
    page = lines_of((tmp_path / "reports/data.html").read_text())
    assert "(a.jsonl lines 2 and 3): getOrder (2 rows) and refund (1 row)" in page
    assert "1 row calls tools and has no tools (a.jsonl line 4)" in page


def test_the_first_rows_with_faulty_calls_are_named_over_all_files_and_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaning, "BLOCK_LINES", 2)
    good, bad = calling("get_order", offers=("get_order",)), calling("getOrder", offers=("get_order",))
    table = io.StringIO()
    writer = csv.DictWriter(table, list(bad))
    writer.writeheader()
    writer.writerow({key: json.dumps(value) for key, value in bad.items()})
    files = {
        "a.jsonl": lines(bad, good, bad),
        "b.csv": table.getvalue().encode(),
        "c.jsonl": lines(good, bad, good, bad, bad, bad),
    }
    for processes in (1, 2):
        project = Project(tmp_path / str(processes), files)
        project.run(processes, **KEPT)
        page = lines_of((project.root / "reports/data.html").read_text())
        assert "(a.jsonl lines 1, 3, b.csv record 1, c.jsonl lines 2, 4 and 2 more)" in page


def test_parts_of_one_line_are_one_place(tmp_path: Path) -> None:
    turns = [turn for _ in range(6) for turn in calling("getOrder")["messages"]]
    project = Project(tmp_path, {"a.jsonl": lines({"messages": turns})})
    smollm_folder(tmp_path / "models/base")
    report = project.run(**KEPT, max_tokens=200, overlong="split")
    assert report["calls"]["without_tools"] > 1
    assert report["calls"]["places"] == {"without_tools": {"rows": 1, "first": ["a.jsonl:1"]}}


def asked(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with a question before its turns."""
    return row | {"messages": [{"role": "user", "content": sentence(3, 9)}, *row["messages"]]}


def test_data_check_names_the_lines_of_faulty_calls(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"berth": {"type": "integer"}}}
    fits, misfits = (asked(calling_with({"berth": berth}, schema)) for berth in (4, "four"))
    project = Project(tmp_path, {"a.jsonl": lines(fits, *[misfits] * 8, calling("get_order"))})
    shown = quench("data", "check", "--root", str(tmp_path), str(project.raw))
    printed = " ".join(shown.stdout.split())
    assert "a.jsonl: 1 row calls tools and has no tools (line 10): " in printed
    assert "do not allow or declare (lines 2, 3, 4, 5, 6 and 3 more): book (8 rows)" in printed


def test_rows_whose_tools_the_base_does_not_show_are_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [calling("get_order", offers=("get_order",)), chat("Name the pier.", "The north pier.")]
    rows.append(chat("Name the ferry.", "The white ferry.") | {"tools": rows[0]["tools"]})
    Project(tmp_path, {"a.jsonl": lines(*rows)})
    smollm_folder(tmp_path / "models/base")
    main(Params.model_validate({"curate": KEPT}), tmp_path)
    report = json.loads((tmp_path / "reports/data.json").read_text())
    assert (report["rows_kept"], report["calls"]["tools_not_shown"]) == (3, 2)
    assert capsys.readouterr().out.count("warning: 2 rows have tools") == 1
    assert "Beware: 2 rows have tools" in lines_of((tmp_path / "reports/data.html").read_text())


@pytest.mark.parametrize(
    ("answers", "named"),
    [
        ({"refund_status": 51, "refund-status": 1}, True),
        ({"payment_failed": 49, "payment_faild": 1}, True),
        ({"technical": 49, "techincal": 1}, True),
        ({"billing": 49, "billimg": 1}, True),
        ({"Rückgabe": 6, "Rueckgabe": 1}, True),
        ({"Réclamation": 6, "Reclamation": 1}, True),
        ({"refund": 49, "refnd": 1}, True),
        ({"level 1": 49, "level 2": 1}, False),
        ({"technical": 49, "topical": 1}, False),
        ({"payment_failed": 9, "payment_faild": 1}, False),
        ({"1": 40, "-1": 40, "10": 2}, False),
        ({"c": 40, "c++": 40, "c#": 3}, False),
        ({"+": 40, "-": 40}, False),
    ],
)
def test_spellings_of_one_answer_are_told_from_different_ones(answers: dict[str, int], named: bool) -> None:
    entries = [{"answer": answer, "rows": rows} for answer, rows in answers.items()]
    assert bool(near_equals(entries)) is named


@pytest.mark.parametrize(
    ("arguments", "fits"),
    [
        ({"berth": 4}, True),
        ({"berth": "four"}, False),
        ({"berth": 1.5}, False),
        ({}, False),
        ({"berth": 4, "side": "bow"}, False),
        ({"berth": 4, "mast": 2}, False),
    ],
)
def test_arguments_that_a_schema_does_not_allow_are_found(arguments: dict[str, Any], fits: bool) -> None:
    properties = {"berth": {"type": "integer"}, "side": {"enum": ["port", "starboard"]}}
    schema = {
        "type": "object",
        "properties": properties,
        "required": ["berth"],
        "additionalProperties": False,
    }
    assert bool(misfitting_calls(calling_with(arguments, schema))) is not fits


DECLARED = {"berth": {"type": "integer"}}
NESTED = {"type": "object", "properties": DECLARED}


@pytest.mark.parametrize(
    ("arguments", "schema", "fits"),
    [
        ({"berth": 4}, {"properties": DECLARED}, True),
        ({"berht": 4}, {"properties": DECLARED}, False),
        ({"berth": 4, "mast": 2}, {"properties": DECLARED, "required": ["berth"]}, False),
        ({"place": {"mast": 2}}, {"properties": {"place": NESTED}}, False),
        ({"places": [{"mast": 2}]}, {"properties": {"places": {"items": NESTED}}}, False),
        ({"mast": 2}, {"properties": DECLARED, "additionalProperties": True}, True),
        ({"mast": 2}, {"properties": DECLARED, "additionalProperties": {"type": "integer"}}, True),
        ({"mast": 2}, {"properties": DECLARED, "patternProperties": {"^m": {}}}, True),
        ({"mast": 2}, {"properties": DECLARED, "allOf": [{"properties": {"mast": {}}}]}, True),
        ({"place": {"mast": 2}}, {"properties": {"place": {"type": "object"}}}, True),
        ({"mast": 2}, {"type": "object", "properties": {}}, True),
    ],
)
def test_an_argument_that_no_property_declares_is_found_unless_the_schema_is_open(
    arguments: dict[str, Any], schema: Any, fits: bool
) -> None:
    assert bool(misfitting_calls(calling_with(arguments, schema))) is not fits


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "http://127.0.0.1:9/schema.json"},
        {"type": "no type"},
        {"properties": []},
        {"properties": {"berth": {"pattern": "(a+)+$"}}},
        "no schema",
    ],
)
def test_a_schema_that_is_none_or_refers_elsewhere_allows_all(schema: Any) -> None:
    assert not misfitting_calls(calling_with({"berth": "a" * 60 + "!"}, schema))


def calling_with(arguments: dict[str, Any], schema: Any) -> dict[str, Any]:
    """Return a row that calls a tool of this schema with these arguments."""
    call = {"type": "function", "function": {"name": "book", "arguments": arguments}}
    return {
        "messages": [{"role": "assistant", "content": "", "tool_calls": [call]}],
        "tools": [{"type": "function", "function": {"name": "book", "parameters": schema}}],
    }
