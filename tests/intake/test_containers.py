"""Containers: which files are read, where rows begin and end, each row accounted for, in flat memory."""

import csv
import errno
import gzip
import io
import json
import os
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from curating import Project, chat, lines
from draws import draws
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.errors import DataError
from pipeline.core.jsonl import MAX_DEPTH, BadLine, dump_line, parse_line
from pipeline.intake.files import files
from pipeline.intake.files.containers import parsed, raw_lines
from pipeline.intake.files.files import files_below, refusal, size

Items = list[tuple[int, int | None, bytes | str]]
PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}
BOM = b"\xef\xbb\xbf"
BLOCK = 1 << 16  # bytes of an array that are read at a time


def read(path: Path, max_line_bytes: int = 100, notes: Counter[str] | None = None) -> Items:
    """Return the rows that `raw_lines` yields, with reasons as their codes."""
    notes = Counter() if notes is None else notes
    rows = raw_lines(path, path.name, max_line_bytes=max_line_bytes, notes=notes)
    return [
        (number, offset, row.code if isinstance(row, BadLine) else row) for number, offset, row, _ in rows
    ]


def read_bytes(folder: Path, name: str, data: bytes, **options: Any) -> Items:
    path = folder / name
    path.write_bytes(data)
    return read(path, **options)


LINES: dict[str, tuple[bytes, Items]] = {
    "nothing": (b"", []),
    "lines": (b'{"a": 1}\n{"b": 2}\n', [(1, 0, b'{"a": 1}'), (2, 9, b'{"b": 2}')]),
    "no newline at the end": (b"{}\n{}", [(1, 0, b"{}"), (2, 3, b"{}")]),
    "blank lines": (b"\n \t\n{}\n\r\n", [(1, 0, "blank"), (2, 1, "blank"), (3, 4, b"{}"), (4, 7, "blank")]),
    "CRLF": (b"{}\r\n{}\r\n", [(1, 0, b"{}"), (2, 4, b"{}")]),
    "a byte order mark": (BOM + b"{}\n{}\n", [(1, 0, b"{}"), (2, 6, b"{}")]),
    "other line breaks": (
        '"\u2028\u2029\x85\x0b\x0c\x1e"\n{}'.encode(),
        [(1, 0, '"\u2028\u2029\x85\x0b\x0c\x1e"'.encode()), (2, 14, b"{}")],
    ),
    "a long line": (b'{"a": "' + b"x" * 200 + b'"}\n{}\n', [(1, 0, "too_long"), (2, 210, b"{}")]),
    "garbage": (b"\xff\x00\n}{\n", [(1, 0, b"\xff\x00"), (2, 3, b"}{")]),
    "an array in the first line": (b'[1]\n{"a": 1}\n', [(1, 0, b"[1]"), (2, 4, b'{"a": 1}')]),
    "an object in two lines, then another": (
        b'{"a":\n1}\n{}\n',
        [(1, 0, b'{"a":\n1}'), (3, 9, b"{}")],
    ),
    "an object over several lines": (b' {\n "a": 1\n}\n', [(1, 1, b'{\n "a": 1\n}')]),
    "an object over as many as may be": (
        b"{\n" + b" " * 97 + b"}",
        [(1, 0, b"{\n" + b" " * 97 + b"}")],
    ),
    "an object over too many": (b"{\n" + b" " * 200 + b"}\n", [(1, 0, b"{"), (2, 2, "too_long")]),
    "an array": (
        b'[\n  {"a": [1, {}]},\n  {"b": "],[{\\""}\n]\n',
        [(1, 4, b'{"a": [1, {}]}'), (2, 22, b'{"b": "],[{\\""}')],
    ),
    "an array in one line": (b'[{"a": 1},{"b": 2}]', [(1, 1, b'{"a": 1}'), (2, 10, b'{"b": 2}')]),
    "an array behind a byte order mark": (BOM + b" \r\n[{}, 1]", [(1, 7, b"{}"), (2, 11, b"1")]),
    "an empty array": (b" [ ]\n\n", []),
    "an array with a long element": (
        b"[1, " + b"2" * 101 + b", 3]",
        [(1, 1, b"1"), (2, 4, "too_long"), (3, 107, b"3")],
    ),
    "an array with the longest element": (b"[" + b"2" * 100 + b"]", [(1, 1, b"2" * 100)]),
    "an array never closed": (b'[{"a": 1}, {"b"', [(1, 1, b'{"a": 1}'), (2, 11, "not_json")]),
    "an array closed by a brace": (b"[{}, 1}, {}]", [(1, 1, b"{}"), (2, 5, "not_json")]),
    "an array with a comma too many": (b"[{}, ]", [(1, 1, b"{}"), (2, 5, "not_json")]),
    "an array with a string never closed": (
        b'[{}, {"a": "b}, {"c": "d"}]',
        [(1, 1, b"{}"), (2, 5, "not_json")],
    ),
    "an array with a bad element": (b'[{}, {"a" 1}, {"b": 2}]', [(1, 1, b"{}"), (2, 5, "not_json")]),
    "an array with what JSON has no word for": (
        b'[{"a": NaN}, {"\xff": 1}, {}]',
        [(1, 1, b'{"a": NaN}'), (2, 13, b'{"\xff": 1}'), (3, 23, b"{}")],
    ),
    "an array and more": (b"[{}]\n[{}]\n", [(1, 0, b"[{}]"), (2, 5, b"[{}]")]),
    "an array over lines and more": (b"[\n{}]\n{}\n", [(1, 2, b"{}"), (2, 6, "not_json")]),
    "an array, an element a line": (b'[{"a": 1},\n{"b": 2}\n]', [(1, 1, b'{"a": 1}'), (2, 11, b'{"b": 2}')]),
    "an array with commas first": (
        b'[ 1\n, {"b": 2}\n, 3 ]',
        [(1, 2, b"1"), (2, 6, b'{"b": 2}'), (3, 17, b"3")],
    ),
    "an array of one": (b'[\n\n{"a": 1}\n\n]', [(1, 3, b'{"a": 1}')]),
    "an array of one over lines": (b"[-1.5e3\n]", [(1, 1, b"-1.5e3")]),
    "a date in brackets": (
        b'[2024-01-01] start\n\n"x"\n{}\n',
        [(1, 0, b"[2024-01-01] start"), (2, 19, "blank"), (3, 20, b'"x"'), (4, 24, b"{}")],
    ),
    "a word in brackets": (
        b"[INFO] start\r\n{}\n{}",
        [(1, 0, b"[INFO] start"), (2, 14, b"{}"), (3, 17, b"{}")],
    ),
    "a number in brackets": (b"[1/2] start\n{}\n", [(1, 0, b"[1/2] start"), (2, 12, b"{}")]),
    "an array that no comma follows": (
        b'["a"] start\n\n{"a": 1}\n{}\n',
        [(1, 0, b'["a"] start'), (2, 12, "blank"), (3, 13, b'{"a": 1}'), (4, 22, b"{}")],
    ),
    "a bracket alone": (b"[\n{}\n{}\n", [(1, 0, b"["), (2, 2, b"{}"), (3, 5, b"{}")]),
    "an array cut off": (b'[{"a": 1},\n{"b": 2}', [(1, 0, b'[{"a": 1},'), (2, 11, b'{"b": 2}')]),
}


@pytest.mark.parametrize("packing", PACK)
@pytest.mark.parametrize("suffix", [".jsonl", ".JSON"])
@pytest.mark.parametrize("case", LINES)
def test_rows_of_json(tmp_path: Path, case: str, suffix: str, packing: str) -> None:
    data, rows = LINES[case]
    assert read_bytes(tmp_path, "a.b" + suffix + packing, PACK[packing](data)) == rows


CSV: dict[str, tuple[bytes, list[Any]]] = {
    "nothing": (b"", []),
    "a header": (b"text\n", []),
    "text": (b'prompt,completion\r\n"a, ""b""\r\nc", d\r\n', [{"prompt": 'a, "b"\r\nc', "completion": " d"}]),
    "a byte order mark": (BOM + b'"prompt",x\n1,2\n', [{"prompt": "1", "x": "2"}]),
    "empty cells": (b'a,b,c\n,"",1\n,,\n', [{"c": "1"}, {}]),
    "a blank line": (b"a\n\n1", ["blank", {"a": "1"}]),
    "missing and spare cells": (b"a,b\n1\n1,2,3\n1,2\n", ["bad_shape", "bad_shape", {"a": "1", "b": "2"}]),
    "JSON": (
        b'messages,tools\n"[{""role"": ""user""}]"," {}"\n',
        [{"messages": [{"role": "user"}], "tools": {}}],
    ),
    "JSON that isn't": (
        b'messages\n[{\'role\': user}]\n"[{""a"": NaN}]"\nplain\n',
        ["not_json", "not_finite", {"messages": "plain"}],
    ),
    "turns or text": (
        b'prompt\n"[{""role"": 1}]"\n[INST] hi\n{name}\n"[{ oh"\n',
        [{"prompt": [{"role": 1}]}, {"prompt": "[INST] hi"}, {"prompt": "{name}"}, "not_json"],
    ),
    "labels and scores": (
        b"label,score\nTrue,1\n0,-.5e1\n",
        [{"label": "True", "score": "1"}, {"label": "0", "score": "-.5e1"}],  # for `number_of` to read
    ),
    "no UTF-8": (b'a\n\xe9\n"\xe9\nb"\n1\n', ["not_utf8", "not_utf8", {"a": "1"}]),
    "a bad quote in one line": (b'a,b\n"x"y,"z"\n1,2\n', ["not_csv", {"a": "1", "b": "2"}]),
    "a bad quote over lines": (b'a,b\n5" x,y\n7" x,y\n1,2\n3,4\n', ["not_csv", "not_csv"]),
    "a quote never closed": (b'a,b\n1,2\n"3,4\n5,6\n', [{"a": "1", "b": "2"}, "not_csv"]),
    "a long record": (b"a,b\n" + b"x" * 101 + b",2\n3,4\n", ["too_long", {"a": "3", "b": "4"}]),
    "a long record over lines": (b'a,b\n"' + b"x\n" * 60 + b'",2\n3,4\n', ["too_long", "not_csv"]),
    "the longest record": (
        b"a\n" + b"x" * 100 + b"\r\n" + b"X" * 101 + b"\n1\n",
        [{"a": "x" * 100}, "too_long", {"a": "1"}],
    ),
    "a last record over lines": (b'a\n"1\n2"', [{"a": "1\n2"}]),
    "a name with a semicolon": (b"a;b,c\n1,2\n", [{"a;b": "1", "c": "2"}]),
    "a column twice": (b"a,a\n1,2\n", ["bad_header"]),
    "an index and a column without a name": (
        b',"",a,,b\n7,x,1,,2\n8,y,1,3,2\n9,1,2\n',
        [{"a": "1", "b": "2"}, "bad_shape", "bad_shape"],
    ),
    "columns without names": (b",\n1,2\n", ["bad_header"]),
    "a blank header": (b"\na\n1\n", ["bad_header"]),
    "semicolons": (b'a;"b,;"\n"1\n;2";3,4\n1\n', [{"a": "1\n;2", "b,;": "3,4"}, "bad_shape"]),
    "tabs": (b"a\tb\r\n1\t\r\n", [{"a": "1"}]),
    "vertical bars": (b"a|b\n1|2\n", [{"a": "1", "b": "2"}]),
    "quotes are as strict with semicolons": (b'a;b\n"x"y;z\n1;2\n', ["not_csv", {"a": "1", "b": "2"}]),
    "a line for Excel": (BOM + b"sep=;\r\na,c;b\r\n1;2\r\n", [{"a,c": "1", "b": "2"}]),
    "a line for Excel in quotes": (b'"SEP=\t"\na\tb\n1\t2\n', [{"a": "1", "b": "2"}]),
    "a line for Excel and no more": (b"sep=;", []),
    "a line for Excel that is wrong": (b"sep=;\nprompt,completion\n1,2\n", [{"prompt,completion": "1,2"}]),
    "a column's name like that line": (b"sep=x\n1\n", [{"sep=x": "1"}]),
    "other spellings": (
        b"systemPrompt,Chosen Text,kto-tag\na,b,1\n",
        [{"system_prompt": "a", "Chosen Text": "b", "kto_tag": "1"}],
    ),
    "capitals": (
        b'Messages, TOOLS,Other\n"[{""a"": 1}]",{},x\n',
        [{"messages": [{"a": 1}], "tools": {}, "Other": "x"}],
    ),
    "a name in two spellings": (
        b"Prompt,PROMPT,text,Text\n1,2,3,4\n",
        [{"Prompt": "1", "PROMPT": "2", "text": "3", "Text": "4"}],
    ),
    "a header with a bad quote": (b'"a"b\n1\n', ["bad_header"]),
    "a header that is too long": (b"x" * 101 + b"\n1\n", ["bad_header"]),
    "control characters": (b"a\nx\x00\x08\n", [{"a": "x\0\b"}]),
}


@pytest.mark.parametrize("packing", PACK)
@pytest.mark.parametrize("case", CSV)
def test_rows_of_csv(tmp_path: Path, case: str, packing: str) -> None:
    data, rows = CSV[case]
    items = read_bytes(tmp_path, "a.csv" + packing, PACK[packing](data))
    assert [(number, offset) for number, offset, _ in items] == [
        (number, None) for number in range(1, len(rows) + 1)
    ]
    assert [row if isinstance(row, str) else json.loads(row) for _, _, row in items] == rows


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"prompt,completion\ra,b\rc,d\r", "a line ends with CR alone"),
        (b'"a"b,c\n', "something stands between a quote and the next separator"),
        (b'"a,b\n', "a quote is never closed"),
        (b"a,a\n", "two have the same name"),
        (b",\n", "none has a name"),
        (b"sep=;\n;\n", "none has a name"),
        (b"\n", "nothing on this line"),
    ],
)
def test_a_bad_header_is_told_once_and_why(tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / "a.csv").write_bytes(data)
    ((_, _, row, _),) = raw_lines(tmp_path / "a.csv", "a.csv", max_line_bytes=100, notes=Counter())
    assert isinstance(row, BadLine)
    assert row.code == "bad_header"
    assert words in str(row)
    assert "newline=" not in str(row)


def test_an_index_column_is_counted(tmp_path: Path) -> None:
    notes = Counter[str]()
    items = read_bytes(tmp_path, "a.csv", b",text\n0,a\n1,b\n,\n2\n", notes=notes)
    assert [row for _, _, row in items] == [b'{"text":"a"}', b'{"text":"b"}', b"{}", "bad_shape"]
    assert notes["index_column"] == 3


@pytest.mark.parametrize("packing", PACK)
@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-16-be", "utf-16-le", "utf-32-be", "utf-32-le"])
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.json", "array.json"])
def test_a_byte_order_mark_says_how_a_file_is_read(
    tmp_path: Path, name: str, encoding: str, packing: str
) -> None:
    """Without one, a file of UTF-16 or UTF-32 is one rejected row, whose sentence has the command."""
    row = {"question": "Name the café.", "answer": "Café 𝄞 Nord"}
    text = {
        "a.csv": "\r\n".join(",".join(cells) for cells in (row, row.values())),
        "a.jsonl": f"{json.dumps(row, ensure_ascii=False)}\n",
        "a.json": json.dumps(row, ensure_ascii=False, indent=1),
        "array.json": json.dumps([row], ensure_ascii=False, indent=1),
    }[name]
    path = tmp_path / f"{name}{packing}"
    for mark in ("\ufeff", "") if encoding.endswith("e") else ("",):
        path.write_bytes(PACK[packing](f"{mark}{text}".encode(encoding)))
        ((_, _, found, _),) = raw_lines(path, path.name, max_line_bytes=1000, notes=Counter())
        if mark or not encoding.endswith("e"):
            assert isinstance(found, bytes)
            assert json.loads(found) == row
        else:
            assert isinstance(found, BadLine)
            assert found.code == "not_utf8"
            assert f"iconv -f {encoding[:6].upper()}{encoding[-2:].upper()} -t UTF-8" in str(found)


def test_utf16_that_breaks_off_says_so(tmp_path: Path) -> None:
    data = "\ufeffquestion,answer\na,b\n".encode("utf-16-le")
    for broken in (data[:-1], data + b"\x00\xd8a\x00"):
        items = read_bytes(tmp_path, "a.csv", broken)
        assert items[-1][2] == "not_utf8"


@pytest.mark.parametrize(
    ("name", "data"), [("a.csv", b"question,r\xe9ponse\na,b\n"), ("a.jsonl", b'{"text": "caf\xe9"}')]
)
def test_text_of_another_encoding_is_told_what_converts_it(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    ((_, _, row, _),) = raw_lines(tmp_path / name, name, max_line_bytes=100, notes=Counter())
    with pytest.raises(BadLine, match="iconv -f CP1252 -t UTF-8") as caught:
        parsed(row)
    assert caught.value.code == "not_utf8"


@settings(max_examples=draws(50))
@given(
    st.lists(
        st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), min_size=2, max_size=2),
        max_size=5,
    ),
    st.sampled_from(["\n", "\r\n"]),
)
def test_any_cells_come_back(
    tmp_path_factory: pytest.TempPathFactory, cells: list[list[str]], newline: str
) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=newline, quoting=csv.QUOTE_ALL).writerows([["a", "b"], *cells])
    items = read_bytes(tmp_path_factory.mktemp("csv"), "a.csv", text.getvalue().encode(), max_line_bytes=1000)
    assert [json.loads(row) for _, _, row in items] == [
        {key: cell for key, cell in zip("ab", pair, strict=True) if cell} for pair in cells
    ]


def test_a_cell_may_be_as_long_as_a_line(tmp_path: Path) -> None:
    """Longer than the csv module reads unless told to."""
    ((_, _, row),) = read_bytes(tmp_path, "a.csv", b"a\n" + b"x" * 150_000, max_line_bytes=200_000)
    assert json.loads(row) == {"a": "x" * 150_000}


def parquet(rows: Iterable[dict[str, Any]], schema: pyarrow.Schema | None = None, **options: Any) -> bytes:
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows), schema), sink, **options)
    return sink.getvalue()


def test_rows_of_parquet(tmp_path: Path) -> None:
    """Rows of every batch, without null columns; nulls in a column stay, since some say something."""
    turns = [{"role": "user", "content": "ä\n"}, {"role": "assistant", "content": "b", "train": False}]
    rows = [{"messages": turns, "n": 2**60, "score": 0.5, "none": None}] + [
        {"messages": [], "label": True}
    ] * 99
    items = read_bytes(tmp_path, "a.parquet", parquet(rows, row_group_size=7), max_line_bytes=1000)
    assert [(number, offset) for number, offset, _ in items] == [(number, None) for number in range(1, 101)]
    padded = [{**turns[0], "train": None}, turns[1]]
    assert json.loads(items[0][2]) == {"messages": padded, "n": 2**60, "score": 0.5}
    # the first row has no label, so its column is unknown
    assert [json.loads(row) for _, _, row in items[1:]] == [{"messages": []}] * 99


@pytest.mark.parametrize(
    ("value", "kind", "code"),
    [
        (10**12, pyarrow.timestamp("s"), "bad_shape"),  # the year 33,658
        (float("nan"), pyarrow.float64(), "not_finite"),
        ("x" * 86, pyarrow.string(), b'{"a":{"b":"%s"}}' % (b"x" * 86)),  # the longest that is read
        ("x" * 87, pyarrow.string(), "too_long"),
    ],
)
def test_what_json_has_no_form_for_rejects_its_row_alone(
    tmp_path: Path, value: object, kind: pyarrow.DataType, code: str | bytes
) -> None:
    schema = pyarrow.schema([("a", pyarrow.struct([("b", kind)]))])
    data = parquet([{"a": {"b": None}}, {"a": {"b": value}}, {"a": None}], schema)
    items = read_bytes(tmp_path, "a.parquet", data)
    assert [row for _, _, row in items] == [b'{"a":{"b":null}}', code, b"{}"]


@pytest.mark.parametrize(
    ("value", "kind", "output"),
    [
        (date(2024, 2, 29), pyarrow.date32(), "2024-02-29"),
        (
            datetime(2024, 2, 29, 1, 2, 3, tzinfo=UTC),
            pyarrow.timestamp("us", "UTC"),
            "2024-02-29T01:02:03+00:00",
        ),
        (10**18, pyarrow.timestamp("ns"), "2001-09-09T01:46:40"),
        (time(1, 2), pyarrow.time64("us"), "01:02:00"),
        (timedelta(days=1), pyarrow.duration("us"), "1 day, 0:00:00"),
        (Decimal("1.50"), pyarrow.decimal128(3, 2), "1.50"),
        (UUID(int=1).bytes, pyarrow.uuid(), "00000000-0000-0000-0000-000000000001"),
        ("grün".encode(), pyarrow.binary(), "grün"),
        (b"\x89PNG", pyarrow.binary(), {"bytes": 4}),  # no text, but there: a picture must not vanish
        ([("a", 1)], pyarrow.map_(pyarrow.string(), pyarrow.int64()), {"a": 1}),
    ],
    ids=str,
)
@pytest.mark.parametrize("nested", [False, True])
def test_what_json_lacks_a_type_for_becomes_text(
    tmp_path: Path, value: object, kind: pyarrow.DataType, output: object, nested: bool
) -> None:
    array = pyarrow.array([value], kind)
    column = pyarrow.StructArray.from_arrays([array], ["b"]) if nested else array
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"text": ["x"], "a": column}), sink)
    ((_, _, row),) = read_bytes(tmp_path, "a.parquet", sink.getvalue(), max_line_bytes=1000)
    assert json.loads(row) == {"text": "x", "a": {"b": output} if nested else output}


def test_a_time_that_nobody_can_tell_does_not_cost_the_row(tmp_path: Path) -> None:
    """Seconds taken for milliseconds: the year 33,658, in a column that most often nobody reads."""
    schema = pyarrow.schema([("text", pyarrow.string()), ("created_at", pyarrow.timestamp("s"))])
    data = parquet([{"text": "x", "created_at": 10**12}, {"text": "y", "created_at": 10**9}], schema)
    rows = [json.loads(row) for _, _, row in read_bytes(tmp_path, "a.parquet", data)]
    assert rows == [{"text": "x"}, {"text": "y", "created_at": "2001-09-09T01:46:40"}]


def test_text_in_parquet_that_is_not_utf8_rejects_its_row_alone(tmp_path: Path) -> None:
    texts = pyarrow.StringArray.from_buffers(
        3,
        pyarrow.py_buffer(bytes([0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0])),
        pyarrow.py_buffer(b"a\xffb"),
    )
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"a": texts}), sink)
    assert [row for _, _, row in read_bytes(tmp_path, "a.parquet", sink.getvalue())] == [
        b'{"a":"a"}',
        "bad_shape",
        b'{"a":"b"}',
    ]


@pytest.mark.parametrize(("deeper", "code"), [(0, None), (1, "too_deep")])
def test_cells_of_parquet_are_nested_as_deep_as_lines(tmp_path: Path, deeper: int, code: str | None) -> None:
    cell: Any = 1
    for _ in range(MAX_DEPTH - 1 + deeper):
        cell = [cell]
    ((_, _, row),) = read_bytes(tmp_path, "a.parquet", parquet([{"a": cell}]), max_line_bytes=1000)
    assert row == (code or json.dumps({"a": cell}, separators=(",", ":")).encode())


def test_columns_of_parquet_with_one_name(tmp_path: Path) -> None:
    sink = io.BytesIO()
    table = pyarrow.table([pyarrow.array([1]), pyarrow.array([2])], names=["a", "a"])
    pyarrow.parquet.write_table(table, sink)
    assert read_bytes(tmp_path, "a.parquet", sink.getvalue()) == [(1, None, "bad_header")]


def test_byte_order_marks_and_crlf_are_counted(tmp_path: Path) -> None:
    for name, data, expected in (
        ("a.jsonl", BOM + b"{}\r\n{}\n\r\n", {"bom": 1, "crlf": 2}),
        ("b.jsonl", b"{}\n", {}),
        ("c.json", BOM + b"[\n{}]", {"bom": 1}),
        ("d.csv", BOM + b"a\r\n1\r\n2\n", {"bom": 1, "crlf": 2}),
    ):
        notes: Counter[str] = Counter()
        read_bytes(tmp_path, name, data, notes=notes)
        assert +notes == Counter(expected), name


@pytest.mark.parametrize("packing", [".gz", ".zst"])
def test_files_of_several_members_are_read_to_the_end(tmp_path: Path, packing: str) -> None:
    pack = PACK[packing]
    data = pack(b'{"a": 1}\n{"b"') + pack(b"") + pack(b": 2}\n")
    assert read_bytes(tmp_path, "a.jsonl" + packing, data) == [(1, 0, b'{"a": 1}'), (2, 9, b'{"b": 2}')]


@pytest.mark.parametrize("packing", [".gz", ".zst"])
def test_a_broken_packing_costs_the_rest_of_the_file(tmp_path: Path, packing: str) -> None:
    """Cut or damaged anywhere: rows from the start in order, then one item for all that is lost (of damage,
    checksums may tell only at the end).
    """
    lines = [b'{"text": "%d %s"}' % (number, os.urandom(30).hex().encode()) for number in range(3000)]
    whole = PACK[packing](b"\n".join(lines))
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 255
    for data in (whole[: len(whole) // 2], whole[:-1], bytes(damaged), whole + b"more"):
        *rows, last = read_bytes(tmp_path, "a.jsonl" + packing, data)
        assert last == (len(rows) + 1, None, "broken_container")
        assert [number for number, _, _ in rows] == list(range(1, len(rows) + 1))
        assert data == bytes(damaged) or [row for _, _, row in rows] == lines[: len(rows)]
    assert read_bytes(tmp_path, "b.jsonl" + packing, b"no such thing") == [(1, None, "broken_container")]
    assert read_bytes(tmp_path, "b.csv" + packing, whole[:9]) == [(1, None, "broken_container")]


def test_a_broken_parquet_file_is_one_item(tmp_path: Path) -> None:
    whole = parquet({"a": str(number) * 50} for number in range(100))
    for data in (b"", b"PAR1", whole[:-30], b"PAR1" + bytes(len(whole) - 12) + whole[-8:]):
        assert read_bytes(tmp_path, "a.parquet", data) == [(1, None, "broken_container")]


@pytest.mark.parametrize(
    ("name", "line"),
    [("a.jsonl", b'{"a": "%s"}\n' % (b"x" * 1000)), ("a.csv", b"a" * 999 + b"\n"), ("a.jsonl", b"\0")],
)
@pytest.mark.parametrize("packing", [".gz", ".zst"])
def test_a_bomb_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, line: bytes, packing: str
) -> None:
    monkeypatch.setattr(files, "ALWAYS_ALLOWED", 1 << 20)
    monkeypatch.setattr(files, "MAX_GROWTH", 2)
    items = read_bytes(
        tmp_path, name + packing, PACK[packing](line * ((8 << 20) // len(line))), max_line_bytes=2000
    )
    assert items[-1][2] == "expands_too_much"
    assert [number for number, _, _ in items] == list(range(1, len(items) + 1))
    assert len(items) <= (1 << 20) // len(line) + 1


def test_a_bomb_of_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dictionary of one text makes thousands of rows of a few bytes."""
    monkeypatch.setattr(files, "ALWAYS_ALLOWED", 1 << 20)
    data = parquet({"a": "x" * 10_000} for _ in range(3_000))
    items = read_bytes(tmp_path, "a.parquet", data, max_line_bytes=20_000)
    assert items[-1][2] == "expands_too_much"
    assert 10 < len(items) < 1000


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("a.jsonl", b""),
        ("a.json", b"[1,"),
        ("a.json", b'["'),
        ("a.json", b"["),
        ("a.json", b"{"),
        ("a.csv", b"a\n"),
        ("a.csv", b'a\n"'),
    ],
    ids=lambda part: part if isinstance(part, str) else repr(part),
)
def test_memory_stays_flat(tmp_path: Path, name: str, head: bytes) -> None:
    """A file of 50 MB without a line break costs no more than a few blocks."""
    read_bytes(tmp_path, name, head)  # what is imported on the way doesn't count
    path = tmp_path / name
    os.truncate(path, 50_000_000)
    tracemalloc.start()
    items = read(path, 1024)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
    assert items[-1][2] in ("too_long", "not_json")


def test_a_large_array_is_read_block_by_block(tmp_path: Path) -> None:
    """Strings, escapes and brackets that lie across the ends of blocks."""
    rows = [
        {"text": "\\" * (number % 7) + '"[{]},' * (number % 11) + "x" * (number % 501)}
        for number in range(3000)
    ]
    for indent in (None, 2):
        items = read_bytes(tmp_path, "a.json", json.dumps(rows, indent=indent).encode(), max_line_bytes=5000)
        assert [parse_line(row) for _, _, row in items if isinstance(row, bytes)] == rows
    data = (tmp_path / "a.json").read_bytes()
    assert all(data[offset:].startswith(row) for _, offset, row in items)


@pytest.mark.parametrize(
    "element",
    [
        b'"%s\\"y"' % (b"x" * (BLOCK - 3)),  # the block ends between a backslash and its quote
        b'"%s"' % (b"[" * 3 * BLOCK),
        b"1" * 5000,  # more digits than Python reads, and JSON all the same
    ],
    ids=["escape", "brackets", "digits"],
)
def test_an_element_may_lie_across_blocks(tmp_path: Path, element: bytes) -> None:
    items = read_bytes(tmp_path, "a.json", b"[%s,\n{}]" % element, max_line_bytes=4 * BLOCK)
    assert items == [(1, 1, element), (2, len(element) + 3, b"{}")]


@pytest.mark.parametrize(
    ("name", "code"),
    [("a.jsonl", None), ("a.NDJSON.gz", None), ("a.json.zst", None), ("a.csv", None), ("a.b.parquet", None)]
    + [("a.TSV", None), ("a.tsv.gz", None), ("a.jsonl.zstd", None), ("a.Arrow", None), ("a.feather", None)]
    + [("a.tar", None), ("a.tar.GZ", None), ("a.tgz", None), ("a.tar.zst", None), ("a.tzst", None)]
    + [
        ("a.txt", None),
        ("a.MD.gz", None),
        ("readme.txt", "unknown_container"),
        ("LICENSE.md.gz", "unknown_container"),
    ]
    + [
        (name, "unknown_container")
        for name in (
            "a",
            "a.gz",
            "a.jsonl.bz2",
            "a.parquet.gz",
            "a.tab",
            "jsonl",
            "a.csv.gz.zst",
            "a.arrow.gz",
        )
    ],
)
def test_files_are_known_by_their_suffix(tmp_path: Path, name: str, code: str | None) -> None:
    (tmp_path / name).write_bytes(b"abc")
    assert size(tmp_path / name) == 3
    why = refusal(tmp_path / name)
    assert (why and why.code) == code


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "gone.jsonl").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe.jsonl")
    for path in tmp_path.iterdir():
        why = refusal(path)
        assert why is not None and why.code == "unknown_container"


def read_by(project: Project) -> list[str]:
    """The names of all files that the stage read or refused, as its outputs have them."""
    (project.raw / "good.jsonl").write_bytes(lines(chat("hi")))
    report = project.run(source_weights={"good.jsonl": 1.0, "*": 0.0})
    return sorted({*report["files"], *(one["file"] for one in project.rejects())} - {"good.jsonl"})


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path, {})


def test_hidden_files_are_no_data(project: Project) -> None:
    for name in ("b.jsonl", "a/z.parquet", "a/.cache/x.jsonl", ".gitkeep", "b.jsonl.dvc", "notes.txt"):
        (project.raw / name).parent.mkdir(parents=True, exist_ok=True)
        (project.raw / name).touch()
    Path(os.fsdecode(os.fsencode(project.raw) + b"/\xff.jsonl")).touch()
    assert read_by(project) == ["\\udcff.jsonl", "a/z.parquet", "b.jsonl", "notes.txt"]


def test_links_to_files_are_data_and_links_to_folders_are_not_followed(project: Project) -> None:
    elsewhere = project.root / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "a.jsonl").write_bytes(lines(chat("hello")))
    (project.raw / "link.jsonl").symlink_to(elsewhere / "a.jsonl")
    (project.raw / "folder").symlink_to(elsewhere)
    assert read_by(project) == ["folder", "link.jsonl"]
    project.raw.rename(project.root / "other")
    project.raw.symlink_to(project.root / "other")
    assert read_by(project) == ["folder", "link.jsonl"]


def test_two_files_with_one_name_in_the_reports_are_told(project: Project) -> None:
    Path(os.fsdecode(os.fsencode(project.raw) + b"/\xff.jsonl")).touch()
    (project.raw / "\\udcff.jsonl").touch()
    with pytest.raises(DataError, match=r"Q-CURATE-002: .*udcff\.jsonl' and b'.*/\\xff\.jsonl' "):
        project.run()


def shut(error: int, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that can't be listed (of which root knows no such thing)."""
    scandir = os.scandir

    def refusing(path: Any) -> Any:
        if not isinstance(path, int) and Path(path).name == where:
            raise OSError(error, os.strerror(error), path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)


def test_a_folder_that_cannot_be_listed_is_told(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("good/a.jsonl", "shut/b.jsonl", ".hidden/c.jsonl"):
        (project.raw / name).parent.mkdir()
        (project.raw / name).touch()
    with monkeypatch.context() as patched:
        shut(errno.EACCES, ".hidden", patched)
        assert [name for name, _ in files_below(project.raw)] == ["good/a.jsonl", "shut/b.jsonl"]
    shut(errno.EACCES, "shut", monkeypatch)
    with pytest.raises(DataError, match=r"Q-CORE-009: .*shut .*\(Permission denied\)"):
        project.run()


def test_a_folder_whose_files_cannot_be_reached_is_told(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rights r--: it lists its names, and no more (root may do all)."""
    (project.raw / "shut").mkdir()
    (project.raw / "shut/a.jsonl").touch()
    monkeypatch.setattr(os, "access", lambda folder, _: Path(folder).name != "shut")
    with pytest.raises(DataError, match=r"shut can't be read \(Permission denied\)"):
        project.run()


def test_a_folder_without_data_is_told(project: Project) -> None:
    with pytest.raises(DataError, match="Q-CURATE-001"):
        project.run()
    (project.raw / "notes.pdf").touch()
    with pytest.raises(DataError, match=r"Q-CURATE-001: .* 1 file,"):
        project.run()
    (project.raw / "notes.pdf").unlink()
    project.raw.rmdir()
    with pytest.raises(DataError, match="Q-CURATE-001"):
        project.run()


@pytest.mark.parametrize("use", [read, size])
def test_a_file_that_cannot_be_opened_is_told(tmp_path: Path, use: Callable[[Path], object]) -> None:
    with pytest.raises(DataError, match=r"Q-CORE-009: .*gone\.jsonl .*\(No such file or directory\)"):
        use(tmp_path / "gone.jsonl")


def test_a_file_that_breaks_while_it_is_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk's error is an item as any other."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"{}\n{}\n")

    def lines(*_: object) -> Iterable[tuple[int, int, bytes]]:
        yield 1, 0, b"{}"
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("pipeline.intake.files.contents.read_raw_lines", lines)
    assert read(path) == [(1, 0, b"{}"), (2, None, "broken_container")]


@settings(max_examples=draws(60))
@given(
    st.lists(
        st.dictionaries(
            st.text(max_size=3),
            st.text(max_size=5) | st.integers(-9, 9) | st.lists(st.none(), max_size=2),
            max_size=3,
        ),
        max_size=6,
    )
)
def test_all_containers_give_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
) -> None:
    folder = tmp_path_factory.mktemp("same")
    lines = b"".join(dump_line(row) for row in rows)
    for name, data in (
        ("a.jsonl", lines),
        ("a.json", json.dumps(rows).encode()),
        ("b.json", json.dumps(rows, indent=1, ensure_ascii=False).encode()),
    ):
        for packing, pack in PACK.items():
            items = read_bytes(folder, name + packing, pack(data), max_line_bytes=1000)
            assert [json.loads(row) for _, _, row in items] == rows


HOSTILE: dict[str, bytes] = {
    "deep.jsonl": b"[" * 200_000,
    "deep closed.json": b'{"messages": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    "a long number.jsonl": b'{"prompt": 1' + b"0" * 100_000 + b', "completion": "b"}',
    "half a pair.jsonl": b'{"prompt": "\\ud800", "completion": "b"}',
    "a key twice.jsonl": b'{"prompt": "a", "prompt": "b", "completion": "c"}',
    "roles that are none.jsonl": b'{"messages": [{"role": {}, "content": []}, [], null, 1e999]}',
    "UTF-16.jsonl": '{"prompt": "a", "completion": "b"}'.encode("utf-16"),
    "zeros.jsonl": bytes(100_000),
    "a pickle.jsonl": b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
    "a program.json": b"\x7fELF" + bytes(100),
    "an archive.json": b"PK\x03\x04" + bytes(100),
    "a bomb.jsonl.gz": gzip.compress(bytes(32 << 20)),
    "cut.jsonl.gz": gzip.compress(lines(chat("a good row")))[:-9],
    "nothing of it.jsonl.zst": b"no",
    "cut.parquet": b"PAR1",
    "a formula.csv": b'prompt,completion\n=cmd|calc,"@SUM(1)"\n',
    "\x1b[2Jall is well.jsonl": b"no",
    "--force.jsonl": b"no",
    "$(touch made).jsonl": b"no",
    "\u202elnosj.jsonl": b"no",
}


def test_hostile_files_cost_their_rows_and_nothing_else(tmp_path: Path) -> None:
    files = HOSTILE | {f"{name}.json": data for name, (data, _) in LINES.items()}
    files |= {f"{name}.csv": data for name, (data, _) in CSV.items()}
    project = Project(tmp_path, files | {"good.jsonl": lines(chat("a good row"))})
    report = project.run(source_weights={"good.jsonl": 1.0, "*": 0.0})
    assert report["files_found"] == len(report["files"]) == len(files) + 1 > 60
    assert "good.jsonl:1" in [row["source"] for row in project.rows()]
    unaccounted = {
        name for name, file in report["files"].items() if file["rows"] != file["kept"] + file["rejected"]
    }
    assert not unaccounted
