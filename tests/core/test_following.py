"""A file that is read while it grows: what comes is what was added, whatever happens to the file."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.core import following
from pipeline.core.following import Growing, Lines, Piece


def test_a_file_that_is_missing_at_first_is_read_as_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = Growing(path)
    assert list(file.read()) == []
    path.write_bytes(b"one")
    assert list(file.read()) == [Piece(0, b"one", True)]
    assert list(file.read()) == []
    with path.open("ab") as log:
        log.write(b"two")
    assert list(file.read()) == [Piece(3, b"two", False)]


def replaced(path: Path, content: bytes) -> None:
    (path.parent / "aside").write_bytes(content)
    (path.parent / "aside").replace(path)


def truncated(path: Path, content: bytes) -> None:
    os.truncate(path, 0)
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("begin_again", "content"),
    [(replaced, b"longer than before"), (replaced, b""), (truncated, b"short"), (truncated, b"")],
)
def test_a_file_that_begins_again_is_read_from_its_start(
    tmp_path: Path, begin_again: Callable[[Path, bytes], None], content: bytes
) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"as before")
    file = Growing(path)
    assert len(list(file.read())) == 1
    begin_again(path, content)
    assert list(file.read()) == [Piece(0, content, True)]
    assert list(file.read()) == []


def test_much_comes_in_pieces_of_which_the_first_is_fresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "PIECE", 4)
    (tmp_path / "log").write_bytes(b"0123456789")
    pieces = list(Growing(tmp_path / "log").read())
    assert pieces == [Piece(0, b"0123", True), Piece(4, b"4567", False), Piece(8, b"89", False)]


def test_of_a_huge_file_the_end_is_read_from_the_start_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as log:
        log.truncate(100 << 20)  # no byte of it is on the disk, and reading it would give them all
        log.seek(0, os.SEEK_END)
        log.write(b"\nlast\n")
    file = Growing(path, most=1000)
    assert list(file.read()) == [Piece((100 << 20) + 1, b"last\n", True)]
    with path.open("ab") as log:
        log.write(b"next\n")
    assert [piece.data for piece in file.read()] == [b"next\n"]
    with path.open("ab") as log:
        log.write(b"x" * 2000 + b"\nafter much\n")
    [piece] = file.read()
    assert (piece.data, piece.fresh) == (b"after much\n", True)


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "pipe", "folder/missing"):
        assert list(Growing(tmp_path / name).read()) == []


def test_half_a_line_waits_for_its_rest_unless_another_file_comes() -> None:
    lines = Lines()
    assert lines.add(b"one\ntw", fresh=True) == [b"one"]
    assert lines.add(b"", fresh=False) == []
    assert lines.add(b"o\n\nthr", fresh=False) == [b"two", b""]
    assert lines.half == b"thr"
    assert lines.add(b"of another\n", fresh=True) == [b"of another"]
