"""Zip archives: members are read as files are, numbers go on, and what is not read is counted."""

import gzip
import io
import json
import zipfile
from collections import Counter
from pathlib import Path

import pytest
from curating import Project, chat, lines

from pipeline.commands.data.check import Options
from pipeline.commands.data.check import main as check
from pipeline.core.jsonl import BadLine
from pipeline.intake.files import files, zips
from pipeline.intake.files.containers import raw_lines

ROW = chat("2 + 2?")
OTHER = chat("3 + 3?", "6")


def packed(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return a zip archive of these members."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def read(folder: Path, data: bytes, max_line_bytes: int = 4000) -> tuple[list[tuple[int, str]], Counter[str]]:
    """Return the number of each row with its text or reason, and the notes."""
    path = folder / "a.zip"
    path.write_bytes(data)
    notes = Counter[str]()
    rows = raw_lines(path, path.name, max_line_bytes=max_line_bytes, notes=notes)
    return [
        (number, row.code if isinstance(row, BadLine) else row.decode()) for number, _, row, _ in rows
    ], notes


def test_members_are_read_as_files_with_numbers_that_go_on(tmp_path: Path) -> None:
    data = packed(
        {
            "two.json": json.dumps([{"a": 3}, {"a": 4}], indent=1).encode(),
            "one.jsonl": b'{"a": 1}\n{"a": 2}\n',
            "z/table.csv": b"text\nfive\n",
            "z/table.jsonl.gz": gzip.compress(b'{"a": 6}\n'),
            "z/wide.jsonl": '{"a": "é"}\n'.encode("utf-16"),
        }
    )
    rows, notes = read(tmp_path, data)
    assert rows == [
        (1, '{"a": 1}'),
        (2, '{"a": 2}'),
        (3, '{\n  "a": 3\n }'),
        (4, '{\n  "a": 4\n }'),
        (5, '{"text":"five"}'),
        (6, '{"a": 6}'),
        (7, '{"a": "é"}'),
    ]
    assert not notes["members_not_read"]


def test_other_files_are_counted_and_hidden_ones_ignored(tmp_path: Path) -> None:
    data = packed(
        {
            "a.jsonl": b'{"a": 1}\n',
            "chat.html": b"<p>",
            "photo.png": b"\x89PNG",
            "rows.parquet": b"PAR1",
            "inner.zip": packed({"b.jsonl": b"{}"}),
            ".DS_Store": b"\x00",
            "__MACOSX/._a.jsonl": b"\x00\x05",
            "folder/": b"",
        }
    )
    rows, notes = read(tmp_path, data)
    assert rows == [(1, '{"a": 1}')]
    assert notes["members_not_read"] == 4


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_the_other_ways_of_packing_are_read(method: int, tmp_path: Path) -> None:
    assert read(tmp_path, packed({"a.jsonl": b'{"a": 1}\n'}, method))[0] == [(1, '{"a": 1}')]


def test_an_archive_without_anything_to_read_says_what_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(packed({"MyActivity.html": b"<p>"}))
    ((_, _, why, _),) = raw_lines(tmp_path / "a.zip", "a.zip", max_line_bytes=100, notes=Counter())
    assert isinstance(why, BadLine)
    assert (why.code, "MyActivity.html" in str(why)) == ("unknown_container", True)
    assert read(tmp_path, packed({}))[0] == [(1, "unknown_container")]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK\x03\x04 and no more",
        packed({"a.jsonl": b'{"a": 1}\n' * 1000})[:-30],
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n",
    ],
    ids=["empty", "broken", "truncated", "a pointer"],
)
def test_what_is_no_archive_is_one_reject(data: bytes, tmp_path: Path) -> None:
    assert read(tmp_path, data)[0] == [(1, "broken_container")]


def test_an_encrypted_member_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    data = packed({"a.jsonl": b'{"a": 1}\n', "b.jsonl": b'{"a": 2}\n'})
    local = data.find(b"PK\x03\x04")
    central = data.find(b"PK\x01\x02")
    changed = bytearray(data)
    changed[local + 6] |= zips.ENCRYPTED
    changed[central + 8] |= zips.ENCRYPTED
    assert read(tmp_path, bytes(changed))[0] == [(1, "unknown_container"), (2, '{"a": 2}')]


def test_a_damaged_member_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    data = bytearray(packed({"a.jsonl": b'{"a": 1}\n', "b.jsonl": b'{"a": 2}\n'}, zipfile.ZIP_STORED))
    data[data.find(b'{"a": 1}') + 6] = ord("7")  # its checksum is another one
    rows, _ = read(tmp_path, bytes(data))
    assert rows[0] == (1, "broken_container")
    assert rows[-1][1] == '{"a": 2}'
    numbers = [number for number, _ in rows]
    assert numbers == list(range(1, len(rows) + 1))


def test_an_archive_may_not_unpack_to_more_than_any_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(files, "ALWAYS_ALLOWED", 1000)
    assert read(tmp_path, packed({"a.jsonl": b" " * 1_000_000}))[0] == [(1, "expands_too_much")]


def test_an_archive_is_curated_like_any_file(tmp_path: Path) -> None:
    data = packed({"a.jsonl": lines(ROW), "b.jsonl": lines(OTHER) + b"{}\n", "chat.html": b""})
    project = Project(tmp_path, {"export.zip": data})
    report = project.run()
    assert sorted(row["source"] for row in project.rows()) == ["export.zip:1", "export.zip:2"]
    assert [(entry["line"], entry["reason"]) for entry in project.rejects()] == [(3, "unknown_format")]
    assert report["files"]["export.zip"]["notes"] == {"members_not_read": 1}


def test_the_check_names_what_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "export.zip"
    path.write_bytes(packed({"a.jsonl": lines(ROW), "chat.html": b""}))
    assert check(None, tmp_path, [path], Options()) == 0
    assert "1 file inside not read: chat.html" in capsys.readouterr().out


def test_folders_are_known_by_backslashes_too(tmp_path: Path) -> None:
    """As some programs of Windows write them."""
    members = {"b\\one.jsonl": b'{"a": 1}\n', "b\\.hid\\two.jsonl": b'{"a": 2}\n', "b\\": b""}
    rows, notes = read(tmp_path, packed(members))
    assert rows == [(1, '{"a": 1}')]
    assert not notes["members_not_read"]
