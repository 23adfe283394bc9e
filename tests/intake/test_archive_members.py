"""Members of archives: a tar and a zip archive of the same files give the same rows, numbers and notes."""

import gzip
import io
import json
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from curating import Project, chat, lines

from pipeline.commands.data.check import Options
from pipeline.commands.data.check import main as check
from pipeline.core.errors import DataError
from pipeline.core.jsonl import BadLine
from pipeline.intake.files.containers import raw_lines
from pipeline.intake.files.members import unread_members, without_names

MAX_BYTES = 4000
Files = dict[str, bytes]


def zipped(members: Files) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return sink.getvalue()


def tarred(members: Files) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for name, data in sorted(members.items()):  # as a zip archive is read
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return sink.getvalue()


ARCHIVES: dict[str, Callable[[Files], bytes]] = {
    "a.zip": zipped,
    "a.tar": tarred,
    "a.tgz": lambda members: gzip.compress(tarred(members)),
}


def read(path: Path) -> tuple[list[tuple[int, str]], Counter[str]]:
    """Return the number of each row with its text, or its reason and what is wrong, and the notes."""
    notes = Counter[str]()
    rows = raw_lines(path, path.name, max_line_bytes=MAX_BYTES, notes=notes)
    found = []
    for line in rows:
        why = f"{line.data.code} {line.data}" if isinstance(line.data, BadLine) else ""
        found.append((line.number, why or line.raw.decode()))
    return found, +notes


def slack(thread: str, user: str, time: int, text: str) -> dict[str, str]:
    return {"type": "message", "user": user, "ts": f"{time}.0", "thread_ts": f"{thread}.0", "text": text}


def claude(name: str, answer: str) -> dict[str, object]:
    said = (("human", "2 + 2?"), ("assistant", answer))
    messages = [{"uuid": f"{n}", "sender": who, "text": text} for n, (who, text) in enumerate(said)]
    return {"uuid": name, "name": name, "chat_messages": messages}


CASES: dict[str, Files] = {
    "files of all kinds": {
        "a.jsonl": b'{"a": 1}\n\n{"a": 2}\n',
        "b.json": b'[\n{"b": 1},\n{"b": 2}\n]',
        "c.csv": b"q,r\n1,2\n",
        "d/e.jsonl.gz": gzip.compress(b'{"d": 1}\n'),
        "f.txt": b"One document.",
        "g.jsonl": '{"g": "\u00e9"}\n'.encode("utf-16"),
    },
    "what is not read, and what does not count": {
        "a.jsonl": b"{}\n",
        "b.png": b"\x89PNG",
        "c.html": b"<p>",
        "d.pdf": b"%PDF",
        "e.zip": b"PK",
        ".DS_Store": b"\0",
        "__MACOSX/._a.jsonl": b"\0\5",
        "x.jsonl.dvc": b"outs: []",
    },
    "an export and files beside it": {
        "chat.html": b"<p>",
        "conversations.json": json.dumps([claude("one", "4"), claude("two", "Four.")]).encode(),
        "uploads/mine.csv": b"question,answer\n1,2\n",
        "users.json": json.dumps([{"uuid": "1", "email_address": "kim@example.org"}]).encode(),
    },
    "threads over days, and names beside them": {
        "general/2024-01-01.json": json.dumps([slack("1", "U1", 1, "2 + 2?")]).encode(),
        "general/2024-01-02.json": json.dumps([slack("1", "U2", 2, "4")]).encode(),
        "users.json": json.dumps(
            [{"id": f"U{n}", "team_id": "T", "profile": {}, "name": f"name{n}"} for n in (1, 2)]
        ).encode(),
    },
    "damaged members": {
        "a.jsonl.gz": gzip.compress(b'{"x": 1}\n' * 400)[:-9],
        "b.csv": b"a,a\n1,2\n",
        "c.json": b'[{"y": 1}, {"y": ',
        "d.jsonl": b'{"z": 1}\n',
    },
    "a conversation that is longer than a row": {
        "conversations.json": json.dumps([claude("one", "word " * 2000)]).encode(),
    },
}


@pytest.mark.parametrize("case", CASES)
def test_a_tar_gives_what_a_zip_archive_gives(case: str, tmp_path: Path) -> None:
    found = {}
    for name, packed in ARCHIVES.items():
        (tmp_path / name).write_bytes(packed(CASES[case]))
        found[name] = read(tmp_path / name)
    assert found["a.tar"] == found["a.zip"]
    assert found["a.tgz"] == found["a.zip"]
    assert found["a.zip"][0]


@pytest.mark.parametrize("name", ARCHIVES)
def test_what_lies_beside_an_export_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(ARCHIVES[name](CASES["an export and files beside it"]))
    rows, notes = read(tmp_path / name)
    assert [number for number, _ in rows] == [1, 2]
    assert unread_members(notes).names == ["chat.html", "uploads/mine.csv"]
    assert without_names(notes)["members_not_read"] == 2


@pytest.mark.parametrize("name", ARCHIVES)
def test_a_thread_is_read_over_the_files_of_a_folder(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(ARCHIVES[name](CASES["threads over days, and names beside them"]))
    ((_, row),), notes = read(tmp_path / name)
    assert [turn["author"] for turn in json.loads(row)["messages"]] == ["name1", "name2"]
    assert (notes["export_slack"], notes["members_not_read"]) == (2, 0)


@pytest.mark.parametrize("name", ARCHIVES)
def test_a_reason_names_the_member(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(ARCHIVES[name](CASES["damaged members"]))
    rows, _ = read(tmp_path / name)
    bad = [text for _, text in rows if not text.startswith("{")]
    assert [text.split(": ")[0] for text in bad] == [
        "broken_container a.jsonl.gz",
        "bad_header b.csv",
        "not_json c.json",
    ]
    assert rows[-1][1] == '{"z": 1}'


@pytest.mark.parametrize("name", ARCHIVES)
def test_the_first_members_that_are_not_read_are_named(name: str, tmp_path: Path) -> None:
    members = {f"{number}.png": b"\x89PNG" for number in range(8)}
    project = Project(tmp_path, {name: ARCHIVES[name]({"a.jsonl": lines(chat("hi"))} | members)})
    file = project.run()["files"][name]
    assert file["notes"]["members_not_read"] == 8
    assert file["members_named"] == ["0.png", "1.png", "2.png"]


@pytest.mark.parametrize("name", ARCHIVES)
def test_an_archive_of_pictures_stops_the_stage(name: str, tmp_path: Path) -> None:
    files = {"good.jsonl": lines(chat("hi")), name: ARCHIVES[name]({"a.png": b"\x89", "b.jpg": b"\xff"})}
    with pytest.raises(DataError, match="Q-CURATE-019: ") as caught:
        Project(tmp_path, files).run()
    assert "a.png, b.jpg" in caught.value.sentence


@pytest.mark.parametrize("name", ARCHIVES)
def test_many_packed_members_may_not_unpack_to_more_than_any_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.intake.files.files.ALWAYS_ALLOWED", 1 << 20)
    monkeypatch.setattr("pipeline.intake.files.files.MAX_GROWTH", 2)
    line = b'{"a": "%s"}\n' % (b"x" * 900)
    members = {f"{number:02}.jsonl.gz": gzip.compress(line * 500) for number in range(20)}
    (tmp_path / name).write_bytes(ARCHIVES[name](members))
    rows, _ = read(tmp_path / name)
    assert rows[-1][1].startswith("expands_too_much")
    assert len(rows) < 4000


def test_the_check_has_one_line_an_archive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pictures = {f"{number}.png": b"\x89PNG" for number in range(5)}
    for name, packed in ARCHIVES.items():
        (tmp_path / name).write_bytes(packed({"a.jsonl": lines(chat("hi"))} | pictures))
    assert check(None, tmp_path, [tmp_path / name for name in ARCHIVES], Options()) == 0
    said = capsys.readouterr().out
    for name in ARCHIVES:
        assert f"{tmp_path / name}: 5 files inside not read: 0.png, 1.png, 2.png and 2 more\n" in said
