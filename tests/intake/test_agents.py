"""The folders of coding agents as they lie on a disk: what is a conversation, what lies beside it."""

import json
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from curating import Project, lines

from pipeline.core.jsonl import BadLine
from pipeline.intake.files.containers import parsed, raw_lines
from pipeline.intake.rows.formats import to_row

ASK = {"role": "user", "content": "Which boat?"}
ANSWER = {"role": "assistant", "content": "Anna."}
SESSION = {"sessionId": "1", "title": "Boats", "history": [{"message": ASK}, {"message": ANSWER}]}
SIDE_FILES: dict[str, tuple[str, Any]] = {
    "ui_messages.json": ("messages_of_the_screen", [{"ts": 1, "type": "say", "say": "text", "text": "Hi"}]),
    "task_metadata.json": ("figures_of_tasks", {"files_in_context": [], "model_usage": []}),
    "history_item.json": ("figures_of_tasks", {"id": "1", "task": "Hi", "tokensIn": 1, "tokensOut": 2}),
    "sessions.json": ("lists_of_sessions", [{"sessionId": "1", "title": "Boats", "dateCreated": "1"}]),
    "sessions-index.json": ("lists_of_sessions", {"version": 1, "entries": [], "originalPath": "/x"}),
}


@pytest.mark.parametrize("name", SIDE_FILES)
def test_a_file_beside_conversations_gives_no_row_and_does_not_stop_the_stage(
    tmp_path: Path, name: str
) -> None:
    note, content = SIDE_FILES[name]
    files = {"chat.json": json.dumps([ASK, ANSWER]).encode(), name: json.dumps(content, indent=2).encode()}
    project = Project(tmp_path, files)
    report = project.run()
    assert (report["rows_read"], report["rows_accepted"]) == (1, 1)
    assert report["files"][name]["notes"][note] == 1


def test_different_programs_may_lie_in_one_folder(tmp_path: Path) -> None:
    rollout = [
        {"type": "session_meta", "payload": {"id": "1"}},
        {"type": "response_item", "payload": {"type": "message", **ASK}},
        {"type": "response_item", "payload": {"type": "message", **ANSWER}},
    ]
    files = {
        "a.json": json.dumps([ASK, ANSWER]).encode(),
        "b.json": json.dumps(SESSION, indent=2).encode("utf-16"),
        "c.jsonl": b"\xef\xbb\xbf" + lines(*rollout),
        "d.jsonl": lines({"messages": [ASK, ANSWER]}),
        "e.jsonl": lines({"contents": [{"role": "user", "parts": [{"text": "Which boat?"}]}]}),
    }
    project = Project(tmp_path, files)
    report = project.run(drop_duplicates="none")
    assert [row["messages"] for row in project.rows()] == [[ASK, ANSWER]] * 4
    assert [(entry["file"], entry["reason"]) for entry in project.rejects()] == [("e.jsonl", "no_assistant")]
    named = {
        name: [note for note in file["notes"] if "export" in note] for name, file in report["files"].items()
    }
    assert named["a.json"] == ["export_turn_array"]
    assert named["b.json"] == ["export_continue"]
    assert named["c.jsonl"] == ["export_codex"]
    assert named["d.jsonl"] == []


@pytest.mark.parametrize("key", ["conversation_id", "session_id", "thread_id"])
def test_turns_of_several_conversations_are_not_joined_to_one(tmp_path: Path, key: str) -> None:
    turns = [{key: str(number), **turn} for number in range(2) for turn in (ASK, ANSWER)]
    project = Project(tmp_path, {"a.jsonl": lines({"messages": [ASK, ANSWER]}), "b.json": lines(turns)})
    project.run(source_weights={"b.json": 0})
    assert {(entry["file"], entry["reason"]) for entry in project.rejects()} == {("b.json", "unknown_format")}


def test_a_session_longer_than_a_row_is_cut_between_exchanges(tmp_path: Path) -> None:
    system = {"role": "system", "content": "Be brief."}
    big = {"role": "user", "content": "x" * 5000}
    turns = [system]
    for number in range(30):
        turns += [
            {"role": "user", "content": f"{number} {'boat ' * 20}"},
            {**ANSWER, "content": f"{number}."},
        ]
    turns[41:41] = [big, ANSWER]
    project = Project(tmp_path, {"a.json": json.dumps(turns).encode()})
    report = project.run(max_line_bytes=2048, drop_duplicates="none", repair=[])
    rows = [row["messages"] for row in project.rows()]
    assert all(row[0] == system and len(json.dumps(row)) < 2048 + 500 for row in rows)
    assert [turn for row in rows for turn in row[1:]] == [
        turn for turn in turns[1:] if turn not in (big, ANSWER)
    ]
    assert [(entry["line"], entry["reason"]) for entry in project.rejects()] == [(1, "too_long")]
    assert report["files"]["a.json"]["notes"]["conversations_cut"] == len(rows)


def test_a_session_of_one_object_may_be_longer_than_a_row(tmp_path: Path) -> None:
    history = [{"message": turn, "contextItems": []} for _ in range(40) for turn in (ASK, ANSWER)]
    content = json.dumps({**SESSION, "history": history}, indent=2).encode()
    project = Project(tmp_path, {"a.json": content})
    report = project.run(max_line_bytes=2048, drop_duplicates="none")
    assert sum(len(row["messages"]) for row in project.rows()) == len(history)
    assert report["files"]["a.json"]["rejected"] == 0


def records_of(path: Path) -> Any:
    """Return the JSON of a file, or of its lines as far as they are whole; [] for a file that is neither."""
    text = path.read_bytes().decode("utf-8", "replace")
    with suppress(json.JSONDecodeError):
        return json.loads(text)
    records = []
    for line in text.split("\n"):
        with suppress(json.JSONDecodeError):
            records.append(json.loads(line))
    return records


EXPORTS = sorted((Path(__file__).parents[1] / "world/rows").glob("exports-*/*.json*"))
FIXTURES = [path for path in EXPORTS if records_of(path)]
JUNK: list[Any] = [
    None,
    0,
    -1.5,
    True,
    "",
    "x",
    "[1]",
    [],
    {},
    [None],
    [[]],
    [{}],
    {"type": "text"},
    {"a": 1},
]


def places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the places of all values inside a value, by keys and indices."""
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place, *(inner for key in keys for inner in places(value[key], (*place, key)))]


def damaged(value: Any, random: Random) -> Any:
    """Return a copy of a value in which another one stands at some place, or nothing."""
    copy = json.loads(json.dumps(value))
    *place, last = random.choice([place for place in places(copy) if place] or [(None,)])
    if last is None:
        return random.choice(JUNK)
    holder = copy
    for key in place:
        holder = holder[key]
    if random.random() < 0.3:
        del holder[last]
    else:
        holder[last] = random.choice(JUNK)
    return copy


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_whatever_stands_at_a_place_a_file_gives_rows_and_reasons(path: Path, tmp_path: Path) -> None:
    records = records_of(path)
    for seed in range(15):
        random = Random(seed)  # noqa: S311
        few = 0.2 if len(records) > 5 else 1.0
        changed = (
            [damaged(record, random) if random.random() < few else record for record in records]
            if isinstance(records, list)
            else damaged(records, random)
        )
        file = tmp_path / path.name
        is_lines = path.suffix == ".jsonl"
        file.write_bytes(lines(*changed) if is_lines else json.dumps(changed).encode())
        for line in raw_lines(file, path.name, max_line_bytes=1 << 22, notes=Counter()):
            with suppress(BadLine):
                to_row(parsed(line.data), source="a", domain="a")
