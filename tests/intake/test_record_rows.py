"""Several rows of one record: each has a number behind the record's, all are on one side of the split, and
each and all are found again.
"""

import gzip
import io
import json
import re
import tarfile
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from curating import SPLITS, Project, chat, lines, sentence
from tokenizer_folders import smollm_folder

from pipeline.chat.rows import is_made_of
from pipeline.core.jsonl import BadLine
from pipeline.intake.files import documents
from pipeline.intake.files.containers import raw_lines

MAX_BYTES = 1500


def open_webui(number: int, exchanges: list[tuple[str, str]], rated: bool = False) -> dict[str, Any]:
    """Return a conversation of Open WebUI; `rated`: another answer to the last question, and both thumbs."""
    messages: dict[str, Any] = {}
    last = None
    for place, (question, answer) in enumerate(exchanges):
        for role, content in (("user", question), ("assistant", answer)):
            name = f"{role}-{number}-{place}"
            messages[name] = {"id": name, "parentId": last, "role": role, "content": content}
            last = name
    if rated:
        asked = messages[last]["parentId"]
        messages[last]["annotation"] = {"rating": 1}
        messages["worse"] = {
            "id": "worse",
            "parentId": asked,
            "role": "assistant",
            "content": "It is somewhere.",
            "annotation": {"rating": -1},
        }
    return {"id": str(number), "chat": {"history": {"messages": messages, "currentId": last}}}


def long_chat(number: int) -> dict[str, Any]:
    """Return a conversation of three exchanges that have nothing in common, each nearly as long as a row."""
    exchanges = [(sentence(10 * number + part), sentence(10 * number + part, 100)) for part in range(3)]
    return open_webui(number, exchanges)


def as_json(*conversations: dict[str, Any]) -> bytes:
    return json.dumps(conversations).encode()


def packed(kind: str, files: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(target, "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
    else:
        with tarfile.open(fileobj=target, mode="w") as tar:
            for name, content in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return target.getvalue()


def numbers(path: Path, max_bytes: int = MAX_BYTES) -> list[tuple[int, int]]:
    """Return the number of each row's record, and that of the row in it."""
    rows = raw_lines(path, path.name, max_line_bytes=max_bytes, notes=Counter())
    return [(row.number, row.row) for row in rows]


def splits_of_records(project: Project) -> dict[str, set[str]]:
    """Return the splits of the rows of each FILE:LINE."""
    found: dict[str, set[str]] = {}
    for split in SPLITS:
        for row in project.rows(split):
            record = re.fullmatch(r"(.*:\d+).*", row["source"])
            assert record
            found.setdefault(record[1], set()).add(split)
    return found


def test_only_the_rows_of_a_record_with_several_are_numbered(tmp_path: Path) -> None:
    path = tmp_path / "chats.json"
    short = open_webui(0, [("Where is the mole?", "In the west.")])
    path.write_bytes(as_json(short, long_chat(1), short, long_chat(2)))
    assert numbers(path) == [(1, 0), (2, 1), (2, 2), (2, 3), (3, 0), (4, 1), (4, 2), (4, 3)]


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_records_are_numbered_over_all_members_of_an_archive(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"chats.{kind}"
    rated = open_webui(1, [("Where is the mole?", "In the west.")], rated=True)
    rows = lines(chat("two and two?"), chat("three and three?"))
    files = {"a.json": as_json(rated, open_webui(2, [])), "b.json": as_json(rated), "c.jsonl": rows}
    path.write_bytes(packed(kind, files))
    # what lies beside an export is not read
    assert numbers(path) == [(1, 1), (1, 2), (2, 1), (2, 2)]


def test_the_last_row_before_a_file_breaks_is_read(tmp_path: Path) -> None:
    whole = gzip.compress(lines(*(chat(sentence(number)) for number in range(40))))
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(whole[:-200])
    rows = list(raw_lines(path, path.name, max_line_bytes=4096, notes=Counter()))
    assert [row.number for row in rows] == list(range(1, len(rows) + 1))
    assert len(rows) > 10 and isinstance(rows[-1].data, BadLine)
    assert all(isinstance(row.data, bytes) for row in rows[:-1])


@pytest.mark.parametrize("processes", [1, 2])
def test_the_parts_of_a_conversation_are_on_one_side(processes: int, tmp_path: Path) -> None:
    """They have nothing in common, so nothing but the record keeps them together."""
    project = Project(tmp_path, {"a.json": as_json(*map(long_chat, range(30)))})
    report = project.run(processes, max_line_bytes=MAX_BYTES, val_fraction=0.2, test_fraction=0.3)
    assert report["rows_kept"] == 90 and all(report["splits"].values())
    found = splits_of_records(project)
    assert len(found) == 30 and all(len(splits) == 1 for splits in found.values())
    assert {row["source"] for row in project.rows(*SPLITS)} == {
        f"a.json:{record}~{row}" for record in range(1, 31) for row in (1, 2, 3)
    }


def test_the_pieces_of_a_document_are_on_one_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "PIECE", 2000)
    texts = {
        f"{number}.txt": "\n\n".join(sentence(number * 50 + part, 40) for part in range(20)).encode()
        for number in range(12)
    }
    project = Project(tmp_path, texts)
    smollm_folder(tmp_path / "models/base")
    report = project.run(max_tokens=400, val_fraction=0.2, test_fraction=0.2)
    found = splits_of_records(project)
    assert found.keys() == {f"{name}:1" for name in texts}
    assert all(len(splits) == 1 for splits in found.values()) and all(report["splits"].values())
    assert "documents_divided" not in report["groups"]
    assert all(re.search(r":1~\d+(#\d+)?$", row["source"]) for row in project.rows(*SPLITS))


def message(number: int, words: str, answers: int | None = None, bot: bool = False) -> dict[str, Any]:
    author = {"id": "b" if bot else f"u{number}", "name": "bot" if bot else f"user {number}", "isBot": bot}
    reference = {"reference": {"messageId": str(answers)}} if answers else {}
    return {
        "id": str(number),
        "type": "Reply" if answers else "Default",
        "timestamp": "2026-03-01T12:00:00+00:00",
        "content": words,
        "author": author,
        **reference,
    }


def test_chains_of_one_question_are_one_record_and_a_channel_is_not(tmp_path: Path) -> None:
    messages = [
        message(1, "Where is the mole?"),
        message(2, "Who mends nets?"),
        message(3, "In the west.", answers=1, bot=True),
        message(4, "Kim does.", answers=2, bot=True),
        message(5, "At the quay.", answers=1, bot=True),
    ]
    channel = {"guild": {"id": "1"}, "channel": {"id": "2"}, "messages": messages}
    project = Project(tmp_path, {"help.json": json.dumps([channel, channel | {"messages": 3}]).encode()})
    project.run(drop_duplicates="none")
    assert [row["source"] for row in project.rows()] == ["help.json:1~1", "help.json:1~2", "help.json:2"]
    assert [entry["line"] for entry in project.rejects()] == [6]


def test_what_was_changed_and_rejected_says_in_which_row(tmp_path: Path) -> None:
    bad = open_webui(1, [("My key?", "Use AKIA" + "Z7Q2M4K9X1B3C5D8 please."), (" ", sentence(3, 200))])
    plain = chat("My key?", "It is AKIA" + "Z7Q2M4K9X1B3C5D8, thanks.")
    project = Project(tmp_path, {"a.json": as_json(bad), "b.jsonl": lines(plain, {"x": 1})})
    project.run(max_line_bytes=1300, drop_duplicates="none", repair=[])
    changed = [(entry["file"], entry["line"], entry.get("source")) for entry in project.changes()]
    assert changed == [("a.json", 1, "a.json:1~1"), ("b.jsonl", 1, None)]
    rejected = [(entry["file"], entry["line"], entry.get("source")) for entry in project.rejects()]
    assert rejected == [("a.json", 1, "a.json:1~2"), ("b.jsonl", 2, None)]


def test_a_row_that_repeats_another_of_its_record_is_named(tmp_path: Path) -> None:
    twice = open_webui(1, [(sentence(1), sentence(2, 100)), (sentence(1), sentence(2, 100))])
    project = Project(tmp_path, {"a.json": as_json(twice)})
    project.run(max_line_bytes=MAX_BYTES)
    (entry,) = project.rejects()
    assert (entry["line"], entry["source"], entry["reason"]) == (1, "a.json:1~2", "duplicate")
    assert entry["detail"].endswith("a.json:1~1")


def test_a_function_makes_several_rows_of_one_of_several(tmp_path: Path) -> None:
    code = "def two(row):\n    return [row, {**row, 'domain': 'other'}]\n"
    project = Project(tmp_path, {"a.json": as_json(long_chat(1))}, guard={"mine.py": code})
    project.run(max_line_bytes=MAX_BYTES, drop_duplicates="none", transform="python:mine.py:two")
    sources = [f"a.json:1~{row}~{made}" for row in (1, 2, 3) for made in (1, 2)]
    assert [row["source"] for row in project.rows()] == sources


@pytest.mark.parametrize(
    ("source", "other", "is_made"),
    [
        ("a.jsonl:1", "a.jsonl:1", True),
        ("a.jsonl:1~2", "a.jsonl:1", True),
        ("a.jsonl:1~2~1#3*2", "a.jsonl:1~2", True),
        ("a.jsonl:1#cut*2", "a.jsonl:1", True),
        ("a.jsonl:1#cut*2", "a.jsonl:1#cut", True),
        ("a.jsonl:12", "a.jsonl:1", False),
        ("a.jsonl:1~12", "a.jsonl:1~1", False),
        ("a.jsonl:1 > a.jsonl:2", "a.jsonl:1", False),
        ("a.jsonl:1", "a.jsonl:1~1", False),
    ],
)
def test_sources_name_what_rows_were_made_of(source: str, other: str, is_made: bool) -> None:
    assert is_made_of(source, other) is is_made
