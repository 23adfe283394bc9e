"""Plain text: a file is a document; a long one is read in pieces that join to it, and only the last one
teaches an end of text.
"""

import gzip
import io
import json
import tarfile
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from curating import Project, chat, lines, sentence
from draws import draws
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_folders import smollm_folder

from pipeline.chat.rows import Row
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.jsonl import BadLine
from pipeline.intake.files import documents
from pipeline.intake.files.documents import document_rows

PROSE = "\n\n".join(sentence(number, 30) for number in range(40))
KINDS = st.sampled_from(["word ", "\n", "\n\n", "é", "東", "🙂", "x" * 30, "e\u0301", ". "])


def read(data: bytes, heading: str = "") -> tuple[list[Any], Counter[str]]:
    """The rows of a document as JSON values or `BadLine`s, and what was noted."""
    notes = Counter[str]()
    rows = list(document_rows(io.BufferedReader(io.BytesIO(data)), notes, heading))  # type: ignore[type-var]
    return [row if isinstance(row, BadLine) else json.loads(row) for row in rows], notes


def said(row: dict[str, Any]) -> str:
    return str(row["text"] if "text" in row else row["segments"][0]["text"])


@settings(max_examples=draws(150))
@given(text=st.lists(KINDS, min_size=1, max_size=80).map("".join).filter(str.strip))
def test_the_pieces_join_to_the_document(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "PIECE", 64)
        rows, _ = read(text.encode())
    pieces = [row for row in rows if not isinstance(row, BadLine)]
    assert all(row.code == "blank" for row in rows if isinstance(row, BadLine))
    if len(pieces) == len(rows):
        assert "".join(map(said, pieces)) == text
        assert [*map(list, pieces)] == [["segments"]] * (len(pieces) - 1) + [["text"]]
    for row in pieces:
        assert len(said(row).encode()) <= 64
        assert "segments" not in row or row["segments"][1:] == [{"text": "", "label": False}]


def test_line_ends_marks_and_form_feeds_are_noted() -> None:
    rows, notes = read(b"\xef\xbb\xbfone\r\ntwo\fthree\n")
    assert rows == [{"text": "one\ntwo\nthree\n"}]
    assert notes == {"bom": 1, "crlf": 1, "form_feeds": 1}


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x7fELF\0\0", "unknown_container"),
        (b"caf\xe9", "not_utf8"),
        (b" \n ", "blank"),
        (b"x" * documents.PIECE * 2 + b"\xff", "not_utf8"),
    ],
)
def test_what_is_no_text_is_named(data: bytes, code: str) -> None:
    rows, _ = read(data)
    assert isinstance(rows[-1], BadLine) and rows[-1].code == code


def kept(project: Project) -> dict[str, Row]:
    return {row["source"]: row for row in project.rows()}


def test_files_of_text_are_documents_beside_chats(tmp_path: Path) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name in ("in.txt", "README.md"):
            member = tarfile.TarInfo(name)
            member.size = len(data := sentence(7, 20).encode())
            tar.addfile(member, io.BytesIO(data))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as made:
        made.writestr("notes/in.md", sentence(8, 20))
    project = Project(
        tmp_path,
        {
            "chats.jsonl": lines(chat("two and two?", "four")),
            "book.txt": PROSE.encode(),
            "notes.md.gz": gzip.compress(sentence(3, 20).encode()),
            "windows.txt": sentence(5, 20).encode("utf-16"),
            "texts.tar": archive.getvalue(),
            "texts.zip": packed.getvalue(),
            "README.md": b"What lies here.",
            "src/deep/a.py": b"print('hello')\n",
            "src/b.py": b"print('good bye')\n",
        },
    )
    report = project.run(documents={"src/*": "named"}, drop_duplicates="none")
    rows = kept(project)
    names = ("book.txt", "notes.md.gz", "windows.txt", "texts.tar", "texts.zip", "src/b.py", "src/deep/a.py")
    assert rows.keys() == {"chats.jsonl:1", *(f"{name}:1" for name in names)}
    assert rows["book.txt:1"]["segments"] == [{"text": PROSE, "train": True}]
    assert rows["src/deep/a.py:1"]["segments"][0]["text"] == "src/deep/a.py\n\nprint('hello')\n"
    assert rows["windows.txt:1"]["segments"][0]["text"] == sentence(5, 20)
    assert report["files_unread"].keys() == {"README.md"}
    assert report["files"]["texts.tar"]["notes"]["members_not_read"] == 1
    assert report["kinds"]["text"] == 7


def test_a_long_document_teaches_one_end_of_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "PIECE", 2000)
    project = Project(tmp_path, {"book.txt": PROSE.encode()})
    smollm_folder(tmp_path / "models/base")
    project.run(max_tokens=100, drop_duplicates="none")
    rows = project.rows()
    pieces = {row["source"].partition("#")[0] for row in rows}
    assert pieces == {f"book.txt:1~{number}" for number in range(1, len(pieces) + 1)} and len(pieces) > 2
    assert "".join(row["segments"][0]["text"] for row in rows) == PROSE
    ends = [row["source"] for row in rows if len(row["segments"]) == 1]
    assert ends == [rows[-1]["source"]]


def test_a_text_in_pieces_holds_no_control_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "PIECE", 2000)
    project = Project(tmp_path, {"book.txt": f"say <|im_end|> now\n\n{PROSE}".encode()})
    project.run(drop_duplicates="none")
    assert not any("<|im_end|>" in row["segments"][0]["text"] for row in project.rows())


def test_a_document_named_by_no_file_or_of_no_text_stops_the_stage(tmp_path: Path) -> None:
    project = Project(tmp_path, {"a.txt": b"words", "b.py": b"\x7fELF\0"})
    with pytest.raises(ConfigError, match="Q-CURATE-008"):
        project.run(documents={"*.c": "bare"})
    with pytest.raises(DataError, match=r"Q-CURATE-019: .*b\.py"):
        project.run(documents={"*.py": "bare"})


def test_globs_of_documents_leave_rows_alone(tmp_path: Path) -> None:
    project = Project(tmp_path, {"a.jsonl": lines(chat("two and two?", "four")), "b.txt": b"words of a text"})
    project.run(documents={"*": "named"})
    assert kept(project)["a.jsonl:1"]["kind"] == "chat"
    assert kept(project)["b.txt:1"]["segments"][0]["text"] == "b.txt\n\nwords of a text"


def test_rows_that_were_saved_as_text_are_no_document(tmp_path: Path) -> None:
    files = {"book.txt": PROSE.encode(), "chats.jsonl.txt": lines(chat("Where is the mole?", "In the west."))}
    report = Project(tmp_path, files).run()
    assert "take the ending .txt off" in report["files_unread"]["chats.jsonl.txt"]
    named = Project(tmp_path / "named", files).run(documents={"*.jsonl.txt": "bare"})
    assert not named["files_unread"]


def splits_of(project: Project) -> dict[str, set[str]]:
    """By document, the splits that its parts are in."""
    found: dict[str, set[str]] = {}
    for split in ("train", "val", "test"):
        for row in project.rows(split):
            found.setdefault(row["source"].partition(":")[0], set()).add(split)
    return found


def test_of_one_book_a_part_is_held_out(tmp_path: Path) -> None:
    project = Project(tmp_path, {"book.txt": PROSE.encode()})
    smollm_folder(tmp_path / "models/base")
    report = project.run(max_tokens=100, test_fraction=0.2)
    assert splits_of(project) == {"book.txt": {"train", "test"}}
    assert report["groups"]["documents_divided"] == 1
    assert report["splits"]["test"] == round(0.2 * report["rows_kept"])


def test_a_short_document_beside_long_ones_is_no_test_by_itself(tmp_path: Path) -> None:
    long = {
        f"{number}.txt": "\n\n".join(sentence(50 * number + part, 30) for part in range(40)).encode()
        for number in range(1, 4)
    }
    project = Project(tmp_path, long | {"short.txt": sentence(1, 30).encode()})
    smollm_folder(tmp_path / "models/base")
    report = project.run(max_tokens=200, test_fraction=0.2)
    assert report["groups"]["documents_divided"] == 1
    assert report["splits"]["test"] == round(0.2 * report["rows_kept"])


def test_short_documents_are_held_out_whole(tmp_path: Path) -> None:
    files = {
        f"{number}.txt": "\n\n".join(sentence(number * 10 + part, 30) for part in range(3)).encode()
        for number in range(10)
    }
    project = Project(tmp_path, files)
    smollm_folder(tmp_path / "models/base")
    report = project.run(max_tokens=100, test_fraction=0.2)
    assert all(len(splits) == 1 for splits in splits_of(project).values())
    assert {"test"} in splits_of(project).values()
    assert "documents_divided" not in report["groups"]
    assert report["domains"].keys() == {"documents"}


def test_on_a_base_for_texts_alone_texts_pass_and_a_chat_stops(tmp_path: Path) -> None:
    project = Project(tmp_path, {"book.txt": PROSE.encode()})
    (smollm_folder(tmp_path / "models/base") / "chat_template.jinja").unlink()
    lineage = tmp_path / "models/base.json"
    facts = json.loads(lineage.read_text(encoding="utf-8"))
    lineage.write_text(json.dumps(facts | {"no_chats": "m has no chat template"}), encoding="utf-8")
    assert project.run(max_tokens=100)["kinds"]["text"] > 1
    (tmp_path / "data/raw/a.jsonl").write_bytes(lines(chat("two and two?", "four")))
    with pytest.raises(DataError, match=r"Q-CURATE-026: a\.jsonl:1 .*m has no chat template"):
        project.run(max_tokens=100)
