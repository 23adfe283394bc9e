"""Strict JSONL: what is read, what is refused and why, and that nothing changes on the way."""

import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import DataError
from pipeline.jsonl import BadLine, parse_line, read_raw_lines, read_rows, to_line, write_rows

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
ROWS = st.lists(st.dictionaries(TEXT, VALUES, max_size=4), max_size=4)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b'{"a": "\xff"}', "not_utf8"),
        (b"", "not_json"),
        (b'{"a": 1', "not_json"),
        (b'{"a": 1} {"a": 2}', "not_json"),
        (b"{'a': 1}", "not_json"),
        (b'{"a": "tab\there"}', "not_json"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not_json"),
        (b'["a"]', "not_object"),
        (b"null", "not_object"),
        (b'{"a": NaN}', "not_finite"),
        (b'{"a": -Infinity}', "not_finite"),
        (b'{"a": 1e999}', "not_finite"),
        (b'{"a": [-1.5E+400]}', "not_finite"),
        (b'{"a": 1, "a": 1}', "duplicate_key"),
        (b'{"x": {"a": 1, "\\u0061": 2}}', "duplicate_key"),
        (b'{"a": "\\ud83d"}', "lone_surrogate"),
        (b'{"\\uDE42": "key"}', "lone_surrogate"),
        (b'{"a": "\\ude42\\ud83d"}', "lone_surrogate"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "too_deep"),
    ],
    ids=lambda value: value[:24] if isinstance(value, bytes) else value,
)
def test_what_is_refused(line: bytes, code: str) -> None:
    with pytest.raises(BadLine) as caught:
        parse_line(line)
    assert caught.value.code == code
    assert str(caught.value)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (b'{"a": 1}\r', {"a": 1}),
        (b'  {"a": 1.5e3}\t', {"a": 1500.0}),
        ('{"a": "x\u2028y\u2029z\x85"}'.encode(), {"a": "x\u2028y\u2029z\x85"}),
        (b'{"a": "\\ud83d\\ude42"}', {"a": "\U0001f642"}),
        (b'{"a": "\\\\ud83d"}', {"a": "\\ud83d"}),
        (b'{"a": "\\u0000"}', {"a": "\0"}),
    ],
)
def test_what_is_read(line: bytes, value: dict[str, object]) -> None:
    assert parse_line(line) == value


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"\n", [(1, 0, b"")]),
        (b"a\nbc", [(1, 0, b"a"), (2, 2, b"bc")]),
        (b"a\r\nb\n", [(1, 0, b"a\r"), (2, 3, b"b")]),
        ("a\u2028b\x0b\x0c\x1e\n".encode(), [(1, 0, "a\u2028b\x0b\x0c\x1e".encode())]),
        (b"12345678\nx\n", [(1, 0, b"12345678"), (2, 9, b"x")]),
        (b"123456789\nx\n", [(1, 0, None), (2, 10, b"x")]),
        (b"1" * 40 + b"\nx", [(1, 0, None), (2, 41, b"x")]),
        (b"1" * 40, [(1, 0, None)]),
        (b"\xef\xbb\xbf{}\n\xef\xbb\xbf{}", [(1, 0, b"{}"), (2, 6, b"\xef\xbb\xbf{}")]),
    ],
)
def test_lines_end_at_newline_bytes_and_over_long_ones_are_told(data: bytes, lines: list[tuple[int, int, bytes | None]]) -> None:
    assert list(read_raw_lines(io.BytesIO(data), max_bytes=8)) == lines


@given(st.binary(max_size=60), st.integers(1, 12))
def test_any_bytes_split_into_lines_at_their_offsets(data: bytes, max_bytes: int) -> None:
    lines = list(read_raw_lines(io.BytesIO(data), max_bytes=max_bytes))
    expected = data.split(b"\n")[: None if data and not data.endswith(b"\n") else -1]
    assert [number for number, _, _ in lines] == list(range(1, len(expected) + 1))
    for (number, offset, line), whole in zip(lines, expected, strict=True):
        assert data[offset:].startswith(whole)
        if line is None:
            assert len(whole) > max_bytes
        else:
            assert line == (whole.removeprefix(b"\xef\xbb\xbf") if number == 1 else whole)


@given(st.binary(max_size=80))
def test_any_bytes_are_an_object_or_a_bad_line(line: bytes) -> None:
    try:
        value = parse_line(line)
    except BadLine:
        return
    assert parse_line(to_line(value).encode()) == value


@given(rows=ROWS)
def test_rows_come_back_as_they_were(tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, object]]) -> None:
    target = tmp_path_factory.mktemp("jsonl") / "rows.jsonl"
    assert write_rows(target, rows) == len(rows)
    assert list(read_rows(target)) == rows
    assert target.read_bytes().count(b"\n") == len(rows)


def test_a_damaged_file_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": ')
    with pytest.raises(DataError, match=r"train\.jsonl, line 2: .*run the stage that writes it again"):
        list(read_rows(path))


def test_what_json_cannot_say_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_rows(tmp_path / "rows.jsonl", [{"a": 1}, {"a": float("nan")}])
    assert list(tmp_path.iterdir()) == []
    assert json.loads(to_line({"a": "\u2028"})) == {"a": "\u2028"}
