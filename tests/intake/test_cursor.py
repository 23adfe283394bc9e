"""Cursor's database: its conversations are read, and nothing is written to it or beside it."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from curating import Project, lines

ASK = {"role": "user", "content": "Which boat?"}
ANSWER = {"role": "assistant", "content": "Anna."}
HEADERS = [{"bubbleId": "b1", "type": 1}, {"bubbleId": "b2", "type": 2}, {"bubbleId": "b3", "type": 2}]
BUBBLES = {"b1": {"type": 1, "text": "Which boat?"}, "b2": {"type": 2, "text": "Anna.", "files": "x" * 100}}
FINE = {
    "messages": [{"role": "user", "content": "Which sea?"}, {"role": "assistant", "content": "The Baltic."}]
}


def database(path: Path, values: dict[str, Any]) -> bytes:
    """Return a database with these keys, as Cursor has it: some values are text, others bytes."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE cursorDiskKV (key TEXT UNIQUE ON CONFLICT REPLACE, value BLOB)")
        for number, (key, value) in enumerate(values.items()):
            text = value if isinstance(value, str) else json.dumps(value)
            stored_as = text if number % 2 else text.encode()
            connection.execute("INSERT INTO cursorDiskKV VALUES (?, ?)", (key, stored_as))
        connection.commit()
    return path.read_bytes()


def stored(composer: str, bubbles: dict[str, Any]) -> dict[str, Any]:
    return {f"bubbleId:{composer}:{name}": bubble for name, bubble in bubbles.items()}


def test_conversations_of_both_layouts_are_read(tmp_path: Path) -> None:
    values = {
        "composerData:c1": {"fullConversationHeadersOnly": HEADERS[:2], "conversationMap": {}},
        **stored("c1", BUBBLES),
        "composerData:c2": {"conversation": [BUBBLES["b1"], BUBBLES["b2"]], "text": "a draft"},
        "composerData:c3": {"fullConversationHeadersOnly": []},
        "composerData:c4": "no JSON",
        "composerData:c5": {"fullConversationHeadersOnly": HEADERS},
        **stored("c5", BUBBLES),
        "bubbleId:c5:b3": "null",
        "composerData:c6": {"fullConversationHeadersOnly": HEADERS},
        "composerData:c7": "[" * 5000 + "]" * 5000,
        "composerData:c8": {"fullConversationHeadersOnly": HEADERS},
        **stored("c8", BUBBLES | {"b3": "[" * 5000 + "]" * 5000}),
        "checkpointId:c1:x": {"files": []},
        "cursorAuth/accessToken": "never asked for",
    }
    project = Project(tmp_path / "project", {"state.vscdb": database(tmp_path / "db", values)})
    before = sorted(project.raw.iterdir())
    report = project.run(drop_duplicates="none")
    assert [(row["source"], row["messages"]) for row in project.rows()] == [
        (f"state.vscdb:{number}", [ASK, ANSWER]) for number in (1, 2, 5, 8)
    ]
    rejected = {entry["line"]: entry["reason"] for entry in project.rejects()}
    assert rejected == {4: "not_json", 6: "bad_shape", 7: "too_deep"}
    notes = report["files"]["state.vscdb"]["notes"]
    assert notes == {"export_cursor": 1, "empty_conversations": 1, "turns_missing": 2}
    assert sorted(project.raw.iterdir()) == before


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"no database", "broken_container"),
        ("cut", "broken_container"),
        ("other table", "unknown_container"),
        ("workspace", "unknown_format"),
    ],
)
def test_another_database_is_refused_by_name(tmp_path: Path, content: str | bytes, reason: str) -> None:
    if content == "other table":
        with closing(sqlite3.connect(tmp_path / "db")) as connection:
            connection.execute("CREATE TABLE ItemTable (key TEXT, value BLOB)")
            connection.commit()
        content = (tmp_path / "db").read_bytes()
    elif content == "workspace":
        content = database(tmp_path / "db", {"composer.composerData": {"allComposers": []}})
    elif content == "cut":
        whole = database(tmp_path / "db", {"composerData:1": {"conversation": []}, "x": "y" * 90_000})
        content = whole[: len(whole) // 2]
    assert isinstance(content, bytes)
    project = Project(tmp_path / "project", {"a.jsonl": lines(FINE), "state.vscdb": content})
    project.run(source_weights={"state.vscdb": 0})
    assert [(entry["file"], entry["reason"]) for entry in project.rejects()] == [("state.vscdb", reason)]


def test_a_database_that_cursor_has_not_finished_is_refused(tmp_path: Path) -> None:
    values = {"composerData:c2": {"conversation": [BUBBLES["b1"], BUBBLES["b2"]]}}
    files = {
        "a.jsonl": lines(FINE),
        "state.vscdb": database(tmp_path / "db", values),
        "state.vscdb-wal": b"log",
    }
    project = Project(tmp_path / "project", files)
    project.run(source_weights={"state.vscdb": 0})
    reasons = {(entry["file"], entry["reason"]) for entry in project.rejects()}
    assert ("state.vscdb", "broken_container") in reasons
