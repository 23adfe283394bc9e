"""Rows of the files inside a tar: each read once, in order, and every damage named."""

import gzip
import io
import json
import tarfile
from collections import Counter
from pathlib import Path

import pytest
import zstandard
from curating import Project, chat, lines

from pipeline.core.jsonl import BadLine
from pipeline.intake.files import files
from pipeline.intake.files.containers import raw_lines

PACK = {
    ".tar": bytes,
    ".tar.gz": gzip.compress,
    ".tgz": gzip.compress,
    ".tar.zst": zstandard.ZstdCompressor().compress,
    ".tar.zstd": zstandard.ZstdCompressor().compress,
}
MEMBERS = {
    "./data/a.jsonl": b'{"a": 1}\n\n{"a": 2}\n',
    "b.csv": b"q,r\n1,2\n",
    "c.json": b'[\n{"c": 1},\n{"c": 2}\n]',
    "d.jsonl.gz": gzip.compress(b'{"d": 1}\n'),
    "e.json": b'{\n "e": 1\n}\n',
}
ROWS = [{"a": 1}, "blank", {"a": 2}, {"q": "1", "r": "2"}, {"c": 1}, {"c": 2}, {"d": 1}, {"e": 1}]


def tar(members: dict[str, bytes], kind: int = tarfile.PAX_FORMAT) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=kind) as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return sink.getvalue()


def read(folder: Path, data: bytes, name: str = "a.tar", notes: Counter[str] | None = None) -> list[object]:
    """Return the rows of an archive, reasons as their codes."""
    path = folder / name
    path.write_bytes(data)
    found = list(raw_lines(path, name, max_line_bytes=1000, notes=Counter() if notes is None else notes))
    assert [line.number for line in found] == list(range(1, len(found) + 1))
    assert {line.offset for line in found} <= {None}
    return [line.data.code if isinstance(line.data, BadLine) else json.loads(line.data) for line in found]


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_rows_of_all_members_come_in_order(tmp_path: Path, suffix: str, kind: int) -> None:
    name = f"a.b{suffix}"
    assert read(tmp_path, PACK[suffix](tar(MEMBERS, kind)), name) == ROWS


def test_members_that_are_not_read_are_counted(tmp_path: Path) -> None:
    notes = Counter[str]()
    others = {"LICENSE": b"x", "a.parquet": b"PAR1", "inner.tar": tar({}), "img/a.png": b"\x89"}
    hidden = {"._a.jsonl": b"\0\1", ".git/x.jsonl": b"{}\n"}
    assert read(tmp_path, tar(others | MEMBERS | hidden), notes=notes) == ROWS
    assert notes["members_not_read"] == 4


def test_links_and_folders_hold_no_rows_and_no_name_leads_anywhere(tmp_path: Path) -> None:
    sink, notes = io.BytesIO(), Counter[str]()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for name, kind in (
            ("d", tarfile.DIRTYPE),
            ("l.jsonl", tarfile.SYMTYPE),
            ("p.jsonl", tarfile.FIFOTYPE),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member)
        for name in ("../up.jsonl", "/root.jsonl"):
            member = tarfile.TarInfo(name)
            member.size = 3
            archive.addfile(member, io.BytesIO(b"{}\n"))
    assert read(tmp_path, sink.getvalue(), notes=notes) == [{}, {}]
    assert notes["members_not_read"] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar"]


def test_a_bad_member_costs_its_own_rows_and_is_named(tmp_path: Path) -> None:
    bad = {
        "cut.jsonl.gz": gzip.compress(b'{"x": 1}\n' * 500)[:-9],
        "header.csv": b"a,a\n1,2\n",
        "good.jsonl": b'{"y": 1}\n',
        "utf16.json": '{"z": 1}'.encode("utf-16-le"),
    }
    rows = read(tmp_path, tar(bad))
    assert rows[:-3] == [{"x": 1}] * (len(rows) - 4) + ["broken_container"]
    assert rows[-3:] == ["bad_header", {"y": 1}, "not_utf8"]
    found = list(raw_lines(tmp_path / "a.tar", "a.tar", max_line_bytes=1000, notes=Counter()))
    reasons = [str(line.data) for line in found if isinstance(line.data, BadLine)]
    assert [reason.partition(":")[0] for reason in reasons] == ["cut.jsonl.gz", "header.csv", "utf16.json"]


@pytest.mark.parametrize("suffix", [".tar", ".tgz"])
def test_a_tar_that_is_cut_off_anywhere_says_so(tmp_path: Path, suffix: str) -> None:
    """Also between two members, where Python's tarfile sees a complete archive."""
    names = {f"{number}.jsonl": b'{"n": %d}\n' % number * 100 for number in range(3)}
    whole = tar(names)
    end = 3 * (512 + 1024)
    rows = [{"n": number} for number in range(3) for _ in range(100)]
    for cut in (*range(1, end, 100), 512, 1536, 3072, end):
        found = read(tmp_path, PACK[suffix](whole[:cut]), f"a{suffix}")
        assert found[-1] == "broken_container", cut
        whole_rows = [row for row in found if isinstance(row, dict)]
        assert whole_rows == rows[: len(whole_rows)]
        assert len(whole_rows) >= cut // 1536 * 100
    assert read(tmp_path, PACK[suffix](whole), f"a{suffix}") == rows


def test_a_damaged_header_is_not_the_end(tmp_path: Path) -> None:
    whole = bytearray(tar({"a.jsonl": b"{}\n", "b.jsonl": b"{}\n"}))
    whole[1024 + 150] ^= 255  # of the second header's checksum
    assert read(tmp_path, bytes(whole)) == [{}, "broken_container"]
    assert read(tmp_path, b"no such thing" * 100) == ["broken_container"]


def test_what_follows_the_end_is_not_lost_unsaid(tmp_path: Path) -> None:
    assert read(tmp_path, tar({"a.jsonl": b"{}\n"}) + tar({"b.jsonl": b"{}\n"})) == [{}, "broken_container"]
    assert read(tmp_path, tar({"a.jsonl": b"{}\n"}) + bytes(50_000)) == [{}]
    assert read(tmp_path, b"") == ["unknown_container"]


def test_a_bomb_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "ALWAYS_ALLOWED", 1 << 20)
    monkeypatch.setattr(files, "MAX_GROWTH", 2)
    line = b'{"a": "%s"}\n' % (b"x" * 900)
    bomb = {"a.jsonl.gz": gzip.compress(line * 9000)}
    assert read(tmp_path, tar(bomb))[-1] == "expands_too_much"
    assert read(tmp_path, gzip.compress(tar({"a.jsonl": line * 9000})), "a.tgz")[-1] == "expands_too_much"
    many = {f"{number}.jsonl.gz": gzip.compress(line * 500) for number in range(20)}
    rows = read(tmp_path, tar(many))
    assert rows[-1] == "expands_too_much"
    assert len(rows) < 4000


def test_the_stage_reads_a_tar_as_it_reads_its_files(tmp_path: Path) -> None:
    first, second = lines(chat("hi"), chat("hello")), lines(chat("bye"))
    project = Project(
        tmp_path, {"x.tgz": gzip.compress(tar({"a.jsonl": first, "b/c.jsonl": second, "n.bin": b"."}))}
    )
    report = project.run()
    assert sorted(row["source"] for row in project.rows()) == ["x.tgz:1", "x.tgz:2", "x.tgz:3"]
    assert report["files"]["x.tgz"]["notes"] == {"members_not_read": 1}
