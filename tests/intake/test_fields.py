"""Mappings of `curate.fields`: what settings may say, what becomes of rows, and what is told of a mapping
that does nothing. Rows with their outcomes are in tests/world/rows/other-names.
"""

import gzip
import json
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from curating import Project, given, lines
from draws import draws
from hypothesis import given as given_rows
from hypothesis import settings
from hypothesis import strategies as st
from pydantic import ValidationError

from pipeline.chat.rows import OTHERS, BadRow
from pipeline.config.field_sources import (
    ASSISTANT,
    OF_TURNS_ALONE,
    ROLES_KEY,
    ROW_TARGETS,
    TARGETS,
    USER,
    Constant,
    Template,
    source_of,
)
from pipeline.config.field_sources import Path as KeyPath
from pipeline.core.errors import ConfigError
from pipeline.core.jsonl import BadLine
from pipeline.core.places import PROJECT
from pipeline.intake.files.files import is_table
from pipeline.intake.rows.chats import TOOLS
from pipeline.intake.rows.fields import MAPPED, UNMAPPED, RowMapper
from pipeline.intake.rows.formats import ANSWERS_OF_PAIRS, FORMAT_KEYS, to_row
from pipeline.intake.rows.letter_case import with_known_keys
from pipeline.intake.rows.pairs import PREFERRED
from pipeline.intake.rows.reasoning import READ
from pipeline.intake.rows.unread import PROMPT_KEYS
from pipeline.stages.curate.mapped import columns_sentences, fields_sentences

PAIR = {"prompt": "nl", "completion": "bash"}
ROWS = [{"nl": f"Show file {number}.", "bash": f"cat {number}", "id": number} for number in range(3)]
VALUES = {"category", "domain", "kto_tag", "label", "reward", "score"}


def mapped(row: dict[str, Any], file: str = "a.jsonl", format: str = "auto", **fields: Any) -> dict[str, Any]:
    return RowMapper(fields, format, is_table=is_table(file)).apply(row, Counter())


def test_every_key_that_a_format_reads_is_a_target() -> None:
    read = {*FORMAT_KEYS, *ANSWERS_OF_PAIRS, *PREFERRED, *PROMPT_KEYS, *TOOLS, *READ, *VALUES, OTHERS}
    assert read == set(ROW_TARGETS)
    assert set(TARGETS) - read == {USER, ASSISTANT, *OF_TURNS_ALONE, ROLES_KEY}


@pytest.mark.parametrize(
    ("target", "stated", "source"),
    [
        ("user", "Question", KeyPath("Question")),
        ("user", "What is asked?", KeyPath("What is asked?")),
        ("user", "a.b", KeyPath("a.b")),
        ("user", "{a}: {b.c}{{}}", Template((("", "a"), (": ", "b.c"), ("{", None), ("}", None)))),
        ("user", {"text": "{x}"}, Constant("{x}")),
        ("system", "You are a shell.", Constant("You are a shell.")),
        ("system", "One\ntwo", Constant("One\ntwo")),
        ("system", "You are a shell", KeyPath("You are a shell")),
        ("system", "For {name}.", Template((("For ", "name"), (".", None)))),
        ("system", "prompt.", KeyPath("prompt.")),
    ],
)
def test_what_a_source_is(target: str, stated: Any, source: Any) -> None:
    assert source_of(target, stated) == source


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "give a mapping"),
        ("nl", "give a mapping"),
        ({"promt": "nl"}, "did you mean prompt?"),
        ({"zzz": "nl"}, "Other names"),
        ({"prompt": 3}, "prompt is 3"),
        ({"prompt": " "}, "prompt is ' '"),
        ({"prompt": {"texts": "a"}}, "a constant is written {text"),
        ({"prompt": "{a"}, "prompt is no template"),
        ({"prompt": "a}"}, "prompt is no template"),
        ({"prompt": "{a!r}"}, "prompt is no template"),
        ({"prompt": "{a:>3}"}, "prompt is no template"),
        ({"prompt": "{}"}, "prompt is no template"),
        ({"prompt": "{{a}}"}, "names no key"),
        ({"user": "a", "prompt": "b"}, "user and prompt say the same"),
        ({"user": "a", "assistant": "b", "output": "c"}, "assistant and output say the same"),
        ({"assistant": "b"}, "needs user"),
        ({"messages": "m", "user": "a", "content": "b"}, "name either"),
        ({"roles": {"bot": "asistant"}}, "did you mean assistant?"),
        ({"roles": {"bot": "assistant", "Bot ": "user"}}, "twice"),
        ({"roles": []}, "roles is []"),
    ],
)
def test_a_wrong_mapping_is_refused_in_words(fields: Any, words: str) -> None:
    with pytest.raises(ValidationError) as error:
        given(fields={"*": fields})
    assert words in str(error.value)
    assert error.value.errors()[0]["loc"][:2] == ("fields", "*")


def test_a_mapping_stays_as_it_was_written() -> None:
    stated = {
        "*": {"user": "{a}", "assistant": "b", "system": "Be brief.", "images": None, "roles": {"x": "user"}}
    }
    assert given(fields=stated).model_dump(mode="json")["fields"] == stated


def test_a_key_with_dots_wins_over_a_path() -> None:
    row = {"a.b": "key", "a": {"b": "path", "c.d": [{"e": "deep"}]}, "z": "Z"}
    assert mapped(row, prompt="a.b") == {"prompt": "key", "a": row["a"], "z": "Z"}
    assert mapped(row, prompt="a.c.d.0.e")["prompt"] == "deep"
    assert mapped(row, prompt="a.c.d.1.e") is row
    assert mapped({"a": '{"b": ["x"]}'}, "a.csv", prompt="a.b.0") == {"prompt": "x"}


def test_keys_are_compared_as_formats_do() -> None:
    assert mapped({"Issue Title": "t"}, prompt="issue_title") == {"prompt": "t"}
    assert mapped({"question": "t"}, prompt="Question") == {"prompt": "t"}
    twice = {"issueTitle": "t", "Issue Title": "u"}
    assert mapped(twice, prompt="issue_title") is twice
    assert mapped(twice, prompt="Issue Title")["prompt"] == "u"


def test_cells_of_tables_are_parsed_below_their_target() -> None:
    turns = '[{"role": "user", "content": "a"}]'
    assert mapped({"log": turns}, "a.csv.gz", messages="log") == {"messages": json.loads(turns)}
    assert mapped({"log": turns}, "a.csv", prompt="log") == {"prompt": json.loads(turns)}
    assert mapped({"log": turns}, "a.jsonl", prompt="log") == {"prompt": turns}


def test_a_given_format_is_read_though_another_key_is_there() -> None:
    row = {"nl": "a", "bash": "b", "label": True}
    with pytest.raises(BadRow, match="label hides the mapping"):
        mapped(row, **PAIR)
    assert mapped(row, format="prompt_completion", **PAIR)["label"] is True
    assert mapped(row | {"label": None}, **PAIR)["prompt"] == "a"


def test_an_empty_answer_is_named_as_the_mapping_has_it(tmp_path: Path) -> None:
    project = Project(tmp_path, {"a.csv": b"Question,Command\nHow many?,\nWho?,ls\n"})
    project.run(fields={"*": {"user": "Question", "assistant": "Command"}})
    (reject,) = project.rejects()
    assert (reject["line"], reject["reason"]) == (1, "unknown_format")
    assert "assistant from Command" in reject["detail"]


def test_what_is_counted() -> None:
    found = Counter[str]()
    mapper = RowMapper(PAIR | {"reward": "stars", "domain": {"text": "x"}}, "auto", is_table=False)
    for row in (*ROWS, {"other": 1}, {"nl": "a"}):
        mapper.apply(dict(row), found)
    assert found == {MAPPED: 4, UNMAPPED: 1, "prompt": 4, "completion": 3}


@pytest.mark.parametrize(
    "name", ["a.jsonl", "a.jsonl.gz", "a.json", "columns.json", "a.csv", "a.tsv", "a.parquet", "a.xlsx"]
)
def test_every_container_is_mapped(name: str, tmp_path: Path) -> None:
    project = Project(tmp_path, {})
    path = project.raw / name
    columns = {key: [row[key] for row in ROWS] for key in ("nl", "bash")}
    if name.endswith(".parquet"):
        import pyarrow
        from pyarrow.parquet import write_table

        write_table(pyarrow.table(columns), path)
    elif name.endswith(".xlsx"):
        openpyxl = pytest.importorskip("openpyxl")
        book = openpyxl.Workbook()
        for cells in (list(columns), *zip(*columns.values(), strict=True)):
            book.active.append(cells)
        book.save(path)
    elif name == "columns.json":
        path.write_text(json.dumps(columns))
    elif name.endswith(".json"):
        path.write_text(json.dumps(ROWS))
    elif name.endswith(".gz"):
        path.write_bytes(gzip.compress(lines(*ROWS)))
    elif name.endswith(".jsonl"):
        path.write_bytes(lines(*ROWS))
    else:
        separator = "\t" if name.endswith(".tsv") else ","
        table = [["nl", "bash"], *([row["nl"], row["bash"]] for row in ROWS)]
        path.write_text("".join(separator.join(map(str, cells)) + "\n" for cells in table))
    report = project.run(fields={name: {"user": "NL", "assistant": "bash"}}, drop_duplicates="none")
    said = [[turn["content"] for turn in row["messages"]] for row in project.rows()]
    assert said == [[row["nl"], row["bash"]] for row in ROWS]
    assert report["files"][name]["notes"]["mapped"] == 3
    assert "3" in (tmp_path / "reports/data.html").read_text().partition("mapped")[2][:10]


def test_a_mapping_that_fits_no_row_stops_the_stage(tmp_path: Path) -> None:
    project = Project(
        tmp_path, {"a.jsonl": lines(*ROWS), "b.jsonl": lines({"prompt": "a", "completion": "b"})}
    )
    with pytest.raises(ConfigError, match=r"Q-CURATE-020.*b\.jsonl: no row has nl .*prompt, completion"):
        project.run(fields={"*": PAIR})
    assert not (tmp_path / "data/final").exists()
    project.run(fields={"a.*": PAIR})


def test_a_source_that_no_row_has_stops_the_stage(tmp_path: Path) -> None:
    project = Project(tmp_path, {"a.jsonl": lines(*ROWS), "b.jsonl": lines(*ROWS)})
    with pytest.raises(ConfigError, match=r"Q-CURATE-020.*no row has You are a shell .*a constant"):
        project.run(fields={"*": PAIR | {"system": "You are a shell"}})
    with pytest.raises(ConfigError, match="no turn has a role or an author"):
        project.run(fields={"*": PAIR | {"roles": {"x": "user"}}})


def test_what_one_file_of_a_glob_lacks_is_said(tmp_path: Path) -> None:
    rows = [row | {"guide": "Be brief."} for row in ROWS]
    project = Project(tmp_path, {"a.jsonl": lines(*ROWS), "b.jsonl": lines(*rows)})
    fields = {"*": PAIR | {"system": "guide"}}
    report = project.run(fields=fields, drop_duplicates="none")
    assert report["files"]["a.jsonl"]["fields_lacking"] == ["system"]
    assert "fields_lacking" not in report["files"]["b.jsonl"]
    assert "no row has what curate.fields maps to system" in (tmp_path / "reports/data.html").read_text()
    (sentence,) = fields_sentences(report["files"], given(fields=fields))
    assert sentence.startswith("a.jsonl: no row has guide")


def test_shards_count_as_one_process_does(tmp_path: Path) -> None:
    rows = [row | ({"guide": "Be brief."} if row["id"] == 2 else {}) for row in ROWS] * 400
    project = Project(tmp_path, {"a.jsonl": lines(*rows)})
    report = project.run(processes=2, fields={"*": PAIR | {"system": "guide"}}, drop_duplicates="none")
    assert report["files"]["a.jsonl"]["notes"] == {"mapped": 1200}


def test_a_file_without_a_share_may_have_a_wrong_mapping(tmp_path: Path) -> None:
    project = Project(tmp_path, {"a.jsonl": lines(*ROWS), "b.jsonl": lines({"x": 1})})
    report = project.run(fields={"*": PAIR}, source_weights={"b.*": 0.0}, drop_duplicates="none")
    assert report["files"]["b.jsonl"]["kept"] == 0


def test_the_mappings_of_the_docs_can_be_used() -> None:
    page = (PROJECT / "docs/data-formats.md").read_text().partition("## Other names")[2]
    stated = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])["curate"]["fields"]
    given(fields=stated)
    rows: dict[str, dict[str, Any]] = {
        "tickets/*.csv": {"question": "a", "Command": "b"},
        "forum.jsonl": {
            "thread": {
                "turns": [
                    {"speaker": "Guest", "text": {"value": "a"}},
                    {"speaker": "desk bot", "text": {"value": "b"}},
                ]
            }
        },
        "pairs.jsonl": {"ask": "a", "best": {"text": "b"}, "worst": {"text": "c"}},
        "bugs.jsonl": {"title": "a", "body": None, "fix": "b", "stars": 3, "image": "x.png"},
    }
    assert rows.keys() == stated.keys()
    for name, row in rows.items():
        value = RowMapper(stated[name], "auto", is_table=is_table(name)).apply(row, Counter())
        read = to_row(value, source=name, domain="x")
        said = [turn["content"] for turn in read["messages"] if turn["role"] != "system"]
        assert [*said, *(turn["content"] for turn in read.get("chosen", ()))] == ["a", "b"]


KEYS = st.sampled_from(
    ["nl", "bash", "turns", "who", "said", "role", "content", "messages", "prompt", "text"]
)
TEXTS = st.sampled_from(["ls", "bob", "", '[{"who": "bob", "said": "x"}]', '{"nl": 1}', "[", "user"])
CELLS = st.recursive(
    st.none() | st.integers() | st.booleans() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=10,
)
MAPPINGS: list[dict[str, Any]] = [
    PAIR,
    {"messages": "turns", "role": "who", "content": "said", "roles": {"bob": "user"}},
    {"messages": "turns.0", "user": "nl", "assistant": "bash"},
    {"user": "{nl}: {turns.0.said}", "assistant": "bash.nl", "system": "Be brief.", "text": None},
    {"role": "who.nl", "content": "{said}!", "author": "bash"},
    {"prompt": "turns", "chosen": "nl", "rejected": "bash", "roles": {"user": "assistant"}},
]


@given_rows(
    st.dictionaries(KEYS, CELLS, max_size=6), st.sampled_from(MAPPINGS), st.sampled_from(["csv", "jsonl"])
)
@settings(max_examples=draws(1000), deadline=None)
def test_whatever_the_row_it_is_mapped_or_refused(row: Any, fields: Any, ending: str) -> None:
    before = json.dumps(row)
    with suppress(BadLine):
        value = with_known_keys(
            RowMapper(fields, "auto", is_table=is_table(f"a.{ending}")).apply(row, Counter())
        )
        to_row(value, source="a:1", domain="a")
    assert json.dumps(row) == before


def test_columns_beside_texts_are_counted_and_named(tmp_path: Path) -> None:
    key = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    rows = [
        {"text": "One page.", "title": "One", "url": "x", "n": 0, "domain": "sea"},
        {"text": "Two pages.", "title": "Two", "url": None, "category": "sea", key: "1"},
        {"text": "A page without a title.", "title": " "},
    ]
    files = {"a.jsonl": lines(*rows), "b.jsonl": lines(*rows), "c.jsonl": lines(*ROWS)}
    project = Project(tmp_path, files)
    fields = {"b.jsonl": {"text": "{title}\n\n{text}"}, "c.jsonl": PAIR}
    report = project.run(drop_duplicates="none", fields=fields)
    left_out = report["files"]["a.jsonl"]["left_out_of_texts"]
    counts = {"title": 2, "url": 1, "n": 1, "category": 1}
    assert {name: left_out[name] for name in counts} == counts
    assert len(left_out) == 5 and key not in json.dumps(report)
    assert "title" not in report["files"]["b.jsonl"]["left_out_of_texts"]
    assert "left_out_of_texts" not in report["files"]["c.jsonl"]
    first, second = columns_sentences(report["files"])
    assert (
        first.startswith("a.jsonl: ")
        and "title (2 rows)" in first
        and "title" not in second.partition(";")[0]
    )


def test_ever_new_columns_beside_texts_are_counted_together(tmp_path: Path) -> None:
    rows = [{"text": f"Page {number}.", f"k{number}": 1} for number in range(70)]
    report = Project(tmp_path, {"a.jsonl": lines(*rows)}).run(drop_duplicates="none")
    left_out = report["files"]["a.jsonl"]["left_out_of_texts"]
    assert sum(left_out.values()) == 70 and left_out["others"] == 20
