"""Excel workbooks: which sheet is read, and that nothing of a cell is lost without a word."""

import datetime
import io
import json
import shutil
import sys
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from curating import Project, chat, lines
from needed import need

from pipeline.commands.data.check import Options
from pipeline.commands.data.check import main as check
from pipeline.core.errors import DataError
from pipeline.core.jsonl import BadLine
from pipeline.core.places import PROJECT
from pipeline.intake.files.containers import raw_lines

Sheet = Sequence[Sequence[Any]]
HEADER = ("question", "answer")


@pytest.fixture
def openpyxl() -> Any:
    return pytest.importorskip("openpyxl", reason=need("openpyxl"))


def workbook(openpyxl: Any, sheets: Mapping[str, Sheet], hidden: Sequence[str] = ()) -> bytes:
    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(row)
        sheet.sheet_state = "hidden" if name in hidden else "visible"
    sink = io.BytesIO()
    book.save(sink)
    return sink.getvalue()


def read(folder: Path, data: bytes, notes: Counter[str] | None = None) -> list[Any]:
    """The rows as objects, or the codes of why there are none."""
    path = folder / "a.xlsx"
    path.write_bytes(data)
    notes = Counter() if notes is None else notes
    found = list(raw_lines(path, path.name, max_line_bytes=40_000, notes=notes))
    assert [row.number for row in found] == list(range(1, len(found) + 1))
    return [row.data.code if isinstance(row.data, BadLine) else json.loads(row.data) for row in found]


def test_cells_are_what_the_same_table_as_csv_has(openpyxl: Any, tmp_path: Path) -> None:
    turns = json.dumps(chat("hi")["messages"])
    cells = {
        " Messages": turns,
        "text": "two\nlines",
        "score": 0.25,
        "label": True,
        "answer": 4.0,
        "day": datetime.date(2024, 2, 29),
        "empty": None,
        "number": 12345678901,
        "escaped": "a_x000D_\nb",
    }
    (row,) = read(tmp_path, workbook(openpyxl, {"A": [[*cells], [*cells.values()]]}))
    assert row == {
        "messages": json.loads(turns),
        "text": "two\nlines",
        "score": "0.25",
        "label": "TRUE",
        "answer": "4",
        "day": "2024-02-29",
        "number": "12345678901",
        "escaped": "a\r\nb",
    }


def test_leading_zeros_of_a_format_are_part_of_a_code(openpyxl: Any, tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    book.active.append(HEADER)
    book.active.append(["Which code?", 7])
    book.active["B2"].number_format = "00000"
    book.save(tmp_path / "codes.xlsx")
    assert read(tmp_path, (tmp_path / "codes.xlsx").read_bytes()) == [
        {"question": "Which code?", "answer": "00007"}
    ]


def test_the_file_that_office_keeps_beside_an_open_one_is_no_data(tmp_path: Path) -> None:
    project = Project(tmp_path, {"a.jsonl": lines(chat("a", "b")), "~$desk.xlsx": b"\x05Bo" + bytes(50)})
    assert list(project.run()["files"]) == ["a.jsonl"]


def test_the_first_sheet_that_is_visible_and_filled_is_read(openpyxl: Any, tmp_path: Path) -> None:
    sheets = {"empty": [], "old": [HEADER, ("x", "y")], "new": [HEADER, ("a", "b")], "notes": [["read me"]]}
    notes = Counter[str]()
    assert read(tmp_path, workbook(openpyxl, sheets, hidden=["old"]), notes) == [
        {"question": "a", "answer": "b"}
    ]
    assert notes["sheets_not_read"] == 2
    assert read(tmp_path, workbook(openpyxl, sheets, hidden=["old", "new", "notes"])) == ["bad_shape"]
    assert read(tmp_path, workbook(openpyxl, {"empty": []})) == []


def test_sheets_that_are_not_read_are_told(
    openpyxl: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = workbook(openpyxl, {"a": [HEADER, ("a", "b")], "b": [HEADER, ("c", "d")]})
    project = Project(tmp_path, {"a.xlsx": data})
    shutil.copy(PROJECT / "recipes/demo.yaml", tmp_path / "params.yaml")
    assert check(None, tmp_path, [project.raw], Options()) == 0
    assert "1 sheet of workbooks not read" in capsys.readouterr().out


def test_an_index_and_empty_rows_and_columns(openpyxl: Any, tmp_path: Path) -> None:
    """Rows without anything count if others follow, as in CSV."""
    rows = [[], (None, *HEADER, None), (0, "a", "b"), [], (1, "c", "d", " "), (2, "e"), (None, None, None)]
    notes = Counter[str]()
    assert read(tmp_path, workbook(openpyxl, {"A": rows}), notes) == [
        {"question": "a", "answer": "b"},
        "blank",
        "bad_shape",
        {"question": "e"},
    ]
    assert notes["index_column"] == 3


@pytest.mark.parametrize("lost", ["#N/A", "=B1", "x" * 32_767])
def test_what_a_cell_does_not_hold_rejects_its_row(openpyxl: Any, tmp_path: Path, lost: str) -> None:
    """An error, a formula without its result, and a text that is as long as Excel cuts one."""
    rows = [(*HEADER, "system"), ("a", "b", lost), ("c", "d", "x" * 32_766)]
    assert read(tmp_path, workbook(openpyxl, {"A": rows})) == [
        "bad_shape",
        {"question": "c", "answer": "d", "system": "x" * 32_766},
    ]


def test_a_formulas_result_is_read(openpyxl: Any, tmp_path: Path) -> None:
    data = workbook(openpyxl, {"A": [HEADER, ("a", '="b"&"c"')]})
    with_result = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(with_result, "w") as new:
        for name in old.namelist():
            text = old.read(name)
            if name == "xl/worksheets/sheet1.xml":
                assert b"<v />" in text or b"<v/>" in text or b"<v></v>" in text
                for empty in (b"<v />", b"<v/>", b"<v></v>"):
                    text = text.replace(empty, b"<v>bc</v>")
                text = text.replace(b'r="B2"', b'r="B2" t="str"')
            new.writestr(name, text)
    assert read(tmp_path, with_result.getvalue()) == [{"question": "a", "answer": "bc"}]


@pytest.mark.parametrize("header", [("a", "a"), (None, " ")])
def test_a_header_that_names_no_columns(openpyxl: Any, tmp_path: Path, header: Sequence[str | None]) -> None:
    assert read(tmp_path, workbook(openpyxl, {"A": [header, ("1", "2")]})) == ["bad_header"]


def test_damaged_workbooks_cost_no_more_than_themselves(openpyxl: Any, tmp_path: Path) -> None:
    good = workbook(openpyxl, {"A": [HEADER, *(("a", "b") for _ in range(50))]})
    for data in (b"", b"PK\x03\x04" + bytes(100), b"\xd0\xcf\x11\xe0" + bytes(600), good[:-100]):
        assert read(tmp_path, data) == ["broken_container"]
    for place in range(0, len(good), 97):
        damaged = good[:place] + b"\xff\x00\xff" + good[place + 3 :]
        assert len(read(tmp_path, damaged)) <= 51


def test_a_sheet_that_claims_more_rows_than_there_can_be(openpyxl: Any, tmp_path: Path) -> None:
    data = workbook(openpyxl, {"A": [HEADER, ("a", "b")]})
    sink = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(sink, "w") as new:
        for name in old.namelist():
            text = old.read(name).replace(b'<row r="2"', b'<row r="99999999999"')
            new.writestr(
                name, text.replace(b'r="A2"', b'r="A99999999999"').replace(b'r="B2"', b'r="B99999999999"')
            )
    assert read(tmp_path, sink.getvalue()) == ["broken_container"]


def test_without_the_package_the_stage_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    project = Project(tmp_path, {"good.jsonl": lines(chat("hi")), "table.xlsx": b"PK\x03\x04"})
    with pytest.raises(DataError, match=r"Q-CURATE-019: .*table\.xlsx: .*pip install openpyxl"):
        project.run()


def test_a_workbook_is_trained_as_its_csv_is(openpyxl: Any, tmp_path: Path) -> None:
    rows = [("Question", "Answer", "Reward"), ("Name the pier.", "North pier", 1), ("Name the quay.", 7, 0.5)]
    table = "\n".join(",".join(map(str, row)) for row in rows).encode()
    made = []
    for name, data in (("a.xlsx", workbook(openpyxl, {"A": rows})), ("a.csv", table)):
        project = Project(tmp_path / name, {name: data})
        project.run()
        made.append([{**row, "source": ""} for row in project.rows()])
    assert made[0] == made[1] and len(made[0]) == 2
