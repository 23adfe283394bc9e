"""Codex CLI's sessions: `~/.codex/sessions/YYYY/MM/DD/rollout-….jsonl`, and the older `rollout-….json`.

After openai/codex `codex-rs/protocol/src/protocol.rs` (`RolloutLine`: `session_meta`, `turn_context`,
`response_item`, `event_msg`, `compacted`) and `models.rs` (`ResponseItem`), as of 2025-09 to 2026-10. Before
that a line was the bare item, after a first line with `id`, `timestamp` and `instructions`. The TypeScript
version wrote one object with `session` and `items`.

The items are the model's input and its answers. Events repeat them for the screen and are left out, except an
aborted turn and turns that were rolled back.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pipeline.core.jsonl import BadLine
from pipeline.intake.exports.export import Conversation, Export, Head, Notes, Record
from pipeline.intake.exports.items import add_item
from pipeline.intake.exports.view import View, text_in
from pipeline.intake.wire.draft import Draft, joined, settled

LINES = ("session_meta", "turn_context", "response_item", "event_msg", "compacted")


@dataclass
class Thread:
    """A conversation while its lines are read."""

    number: int
    offset: int | None
    draft: Draft = field(default_factory=Draft)
    instructions: str = ""


# Types of the items that are lines of older sessions.
ITEMS = (
    "message", "reasoning", "function_call", "function_call_output", "local_shell_call", "custom_tool_call"
)  # fmt: skip


def is_head(head: Head) -> bool:
    """Return True for a rollout of either age."""
    values = head.objects()
    if not values:
        return False
    first = values[0]
    if _is_object_of_items(first):
        return True
    if any(value.get("type") in LINES and value.has("payload", dict) for value in values):
        return True
    is_bare = any(value.get("type") in ITEMS for value in values[1:]) or "record_type" in values[-1]
    return {"id", "timestamp"} <= first.keys() and "messages" not in first and is_bare


def _is_object_of_items(value: View) -> bool:
    return value.has("session", dict) and value.has("items", list)


def read(records: Iterable[Record], notes: Notes) -> Iterator[Conversation]:
    """Yield a row for each conversation, and one for the turns after each compaction."""
    thread: Thread | None = None
    for record in records:
        try:
            lines = _lines_of(record)
        except BadLine as why:
            yield Conversation(record.number, record.offset, why)
            continue
        for kind, payload in lines:
            begins = kind == "compacted" or (kind == "session_meta" and thread and thread.draft.turns)
            if thread is None or begins:
                if thread is not None:
                    yield from _row(thread, notes)
                instructions = thread.instructions if thread and kind == "compacted" else ""
                thread = Thread(record.number, record.offset, instructions=instructions)
            try:
                _add(thread, kind, payload, notes)
            except BadLine as why:
                yield Conversation(record.number, record.offset, why)
    if thread is not None:
        yield from _row(thread, notes)


def _lines_of(record: Record) -> list[tuple[str, View]]:
    """Return (type, payload) of a line, also of an older one. Raises `BadLine` for any other value."""
    value = record.object("not a JSON object, as the lines of a rollout are")
    if _is_object_of_items(value):
        items = [("response_item", item) for item in value.objects("items")]
        return [("session_meta", value.object("session")), *items]
    kind = value.text_or_none("type")
    if kind is not None and value.has("payload", dict):
        return [(kind, value.object("payload"))]
    if kind is not None and value.get("payload") is None:
        return [("response_item", value)]
    if "record_type" in value:
        return [("state", value)]
    if {"id", "timestamp"} <= value.keys():
        return [("session_meta", value)]
    raise BadLine(
        "unknown_format", "not a line of Codex's rollout: it has neither type and payload nor is an item"
    )


def _add(thread: Thread, kind: str, payload: View, notes: Notes) -> None:
    """Add the content of a line to the thread. Raises `BadLine` for a result that is nested too deep."""
    draft = thread.draft
    if kind == "session_meta":
        words = text_in(payload.get("base_instructions") or payload.get("instructions"))
        thread.instructions = thread.instructions if words is None else words
    elif kind == "response_item":
        if not _is_abort(payload):  # The event repeats it.
            add_item(draft, payload, notes)
    elif kind == "compacted":
        notes["compactions"] += 1
        _compact(draft, payload, notes)
    elif kind == "event_msg" and payload.get("type") == "turn_aborted":
        notes["aborted"] += draft.interrupt()
    elif kind == "event_msg" and payload.get("type") == "thread_rolled_back":
        _roll_back(draft, payload.integer("num_turns"), notes)
    else:
        notes[f"events_{kind}" if kind in (*LINES, "state") else "events_of_other_types"] += 1


def _is_abort(item: View) -> bool:
    """Return True for the text that tells the model that the user interrupted its turn."""
    parts = item.array("content")
    is_only = item.get("role") == "user" and len(parts) == 1
    return is_only and View(parts[0]).text("text").lstrip().startswith("<turn_aborted>")


def _compact(draft: Draft, payload: View, notes: Notes) -> None:
    """Begin again with the model's input that replaced the conversation so far. It isn't trained again."""
    if not payload.array("replacement_history"):
        draft.say("user", payload.text("message"))
        return
    for item in payload.objects("replacement_history"):
        add_item(draft, item, notes)
    for turn in draft.turns:
        if turn["role"] == "assistant":
            turn["train"] = False


def _roll_back(draft: Draft, count: int, notes: Notes) -> None:
    """Leave out the last turns of the user, with the answers to them."""
    places = [place for place, turn in enumerate(draft.turns) if turn["role"] == "user"]
    if count <= 0 or not places:
        return
    notes["branches_left_out"] += 1
    del draft.turns[places[max(len(places) - count, 0)] :]


def _row(thread: Thread, notes: Notes) -> Iterator[Conversation]:
    turns = thread.draft.turns
    first_text = next((turn["content"] for turn in turns if turn["role"] == "user"), "")
    instructions = thread.instructions.strip()
    if turns and instructions and instructions not in first_text:  # Some versions repeat them as the user's.
        if turns[0]["role"] == "system":
            turns[0]["content"] = joined(instructions, turns[0]["content"])
        else:
            turns.insert(0, {"role": "system", "content": instructions})
    kept = settled(turns, notes)
    if any(turn["role"] != "system" for turn in kept):
        yield Conversation(thread.number, thread.offset, {"messages": kept})


EXPORT = Export("codex", is_head, read)
