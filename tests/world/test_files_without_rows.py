"""Files from which not a single row comes are named, with what to do: by stage, check and page."""

import io
import json
import zipfile
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from curating import RECIPE, Project, chat, lines
from html_page import lines_of

from pipeline.__main__ import run
from pipeline.commands.data.check import Options
from pipeline.commands.data.check import main as check
from pipeline.core.errors import DataError

GOOD = lines(*(chat(f"{number} + 1?", f"It is {number + 1}.") for number in range(20)))
PAGE = b'\n<!DOCTYPE html>\n<html lang="en"><head><title>Sign in</title></head>\n<body>a, b</body></html>\n'
DENIED = b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>AccessDenied</Code></Error>'
MESSAGE = {"type": "message", "ts": "1.0", "user": "U1", "text": "Good morning."}


def empty_table() -> bytes:
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"question": pyarrow.array([], pyarrow.string())}), sink)
    return sink.getvalue()


WITHOUT_ROW = {
    "zero.jsonl": (b"", "it is empty"),
    "zero.csv": (b"", "it is empty"),
    "zero.txt": (b"", "it is empty"),
    "list.json": (b"[]\n", "without a row"),
    "header.csv": (b"question,answer\n", "without a row"),
    "table.parquet": (empty_table(), "without a row"),
    "blank.jsonl": (b"\n\n", "without a row"),
    "talk.json": (json.dumps([MESSAGE]).encode(), "an export (slack) without a conversation"),
}
UNREAD = {
    "tool.py": (b"print('hi')\n", "curate.documents: {'*.py': named}"),
    "Makefile": (b"all:\n", "curate.documents: {'Makefile': named}"),
    "page.html": (PAGE, "curate.documents: {'*.html': named}"),
    "paper.pdf": (b"%PDF-1.7\n\xe2\xe3", "save its text as *.txt or *.md"),
    "letter.docx": (b"PK\x03\x04", "save its text as *.txt or *.md"),
    "old.xls": (b"\xd0\xcf\x11\xe0", "save it as *.xlsx or *.csv"),
    "chats.jsonl.bz2": (b"BZh9", "unpack it"),
    "chats.sqlite": (b"SQLite format 3\0", "*.parquet or *.jsonl"),
    "photo.png": (b"\x89PNG\r\n\x1a\n", "move it away"),
    "model.bin": (b"\0\1\2", "only files *.jsonl"),
}
SAVED_AS = ("a.csv", "a.jsonl", "a.json", "a.parquet", "a.xlsx", "a.zip", "a.tgz", "a.mbox")


def curated(folder: Path, files: dict[str, bytes], capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """Return what the stage prints, and the text of the data page."""
    project = Project(folder, {"good.jsonl": GOOD} | files)
    (folder / "params.yaml").write_text(json.dumps({"curate": RECIPE}))
    run("curate", folder, None)
    return capsys.readouterr().out, lines_of(project.outputs()["reports/data.html"].decode())


def checked(folder: Path, name: str, content: bytes, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Return the exit code of `quench data check` and what it prints."""
    (folder / name).write_bytes(content)
    capsys.readouterr()
    code = check(None, folder, [folder / name], Options())
    return code, capsys.readouterr().out


@pytest.mark.parametrize("name", WITHOUT_ROW)
def test_a_file_without_a_row_is_named(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, why = WITHOUT_ROW[name]
    printed, page = curated(tmp_path, {name: content}, capsys)
    (line,) = [line for line in printed.splitlines() if f"no row: {name}: " in line]
    assert why in line
    assert "1 file gives no row" in page
    assert [line for line in page.splitlines() if line.startswith(f"{name} | ") and why in line]


@pytest.mark.parametrize("name", sorted(WITHOUT_ROW.keys() - {"blank.jsonl"}))
def test_the_check_has_a_line_for_it(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, why = WITHOUT_ROW[name]
    code, said = checked(tmp_path, name, content, capsys)
    (line,) = [line for line in said.splitlines() if line.startswith(f"check: {tmp_path / name}: no row: ")]
    assert (code, why in line) == (0, True)


def test_a_file_that_lies_beside_exports_is_meant_to_give_no_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    user = json.dumps([{"id": "user-1", "email": "kim@example.org"}]).encode()
    printed, page = curated(tmp_path, {"user.json": user}, capsys)
    assert "no row" not in printed
    assert "no row:" not in page


def test_many_files_come_in_one_line_for_a_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed, _ = curated(tmp_path, {f"{number}.jsonl": b"" for number in range(8)}, capsys)
    assert "no row: 0.jsonl, 1.jsonl, 2.jsonl, 3.jsonl, 4.jsonl and 3 more: it is empty" in printed


@pytest.mark.parametrize("name", UNREAD)
def test_a_file_that_is_not_read_says_what_reads_it(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, remedy = UNREAD[name]
    printed, page = curated(tmp_path, {name: content}, capsys)
    (line,) = [line for line in printed.splitlines() if f"not read: {name}: " in line]
    assert remedy in line
    assert remedy in page
    code, said = checked(tmp_path, name, content, capsys)
    assert (code, remedy in said) == (3, True)


def test_a_folder_of_nothing_else_says_so_too(tmp_path: Path) -> None:
    project = Project(tmp_path, {"tool.py": b"print('hi')\n"})
    with pytest.raises(DataError, match="Q-CURATE-001: ") as caught:
        project.run()
    assert "curate.documents: {'*.py': named}" in caught.value.sentence
    project.run(documents={"*.py": "named"})
    assert [row["kind"] for row in project.rows()] == ["text"]


@pytest.mark.parametrize("name", SAVED_AS)
@pytest.mark.parametrize("content", [PAGE, b"\xef\xbb\xbf" + PAGE, DENIED], ids=["page", "BOM", "XML"])
def test_a_page_saved_as_data_is_called_a_page(
    name: str, content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(DataError, match="Q-CURATE-019: ") as caught:
        Project(tmp_path, {"good.jsonl": GOOD, name: content}).run()
    assert "page of the web" in caught.value.sentence
    code, said = checked(tmp_path, name, content, capsys)
    assert (code, "page of the web" in said) == (3, True)


def test_a_page_inside_an_archive_is_called_a_page(tmp_path: Path) -> None:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr("a.jsonl", GOOD)
        archive.writestr("b.csv", PAGE)
    project = Project(tmp_path, {"a.zip": sink.getvalue()})
    project.run()
    (entry,) = project.rejects()
    assert entry["reason"] == "unknown_container"
    assert entry["detail"].startswith("b.csv: this is a page of the web")


def test_text_about_pages_is_still_text(tmp_path: Path) -> None:
    project = Project(tmp_path, {"a.md": PAGE, "b.jsonl": lines({"text": PAGE.decode()})})
    assert project.run(drop_duplicates="none")["rows_kept"] == 2


@pytest.mark.parametrize("content", [b"{}", b"{}\n", b" {\n}\n"])
def test_an_empty_object_is_called_so(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(DataError, match="Q-CURATE-019: ") as caught:
        Project(tmp_path, {"good.jsonl": GOOD, "a.json": content}).run()
    assert "an empty object" in caught.value.sentence
    code, said = checked(tmp_path, "a.json", content, capsys)
    assert (code, "an empty object" in said) == (3, True)
