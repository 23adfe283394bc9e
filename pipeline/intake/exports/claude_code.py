"""Claude Code's sessions: `~/.claude/projects/PROJECT/SESSION.jsonl`, and its subagents' `agent-*.jsonl`.

Anthropic does not publish the schema. The one read here is that of versions 1.0 to 2.1 (2025-06 to 2026-10),
as public readers of these files describe it (ticpu/claude-conversation-search-mcp `docs/jsonl-format.md`,
alicoding/claude-parser `docs/JSONL-STRUCTURE.md`), and the reports of sessions whose links are broken
(anthropics/claude-code 22526, 35024, 58554).

A line is an event. Those of type `user` and `assistant` contain a message of the Messages API, in one or more
lines with the same `message.id`. `parentUuid` names the event before. It often names one that was never
written, or only the first of several calls. So events count in the file's order, and links only show the
prompts that the user took back: of several with one parent, the one that continues longest in the file stays.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pipeline.core.jsonl import BadLine
from pipeline.intake.exports.blocks import add_answer, add_results, text_of
from pipeline.intake.exports.export import Conversation, Export, Notes, Record, any_record
from pipeline.intake.exports.view import View, objects
from pipeline.intake.wire.draft import Draft, settled

REMINDER = re.compile(
    r"\A\s*<system-reminder>.*?</system-reminder>\s*"
    r"|\s*<system-reminder>(?:(?!<system-reminder>).)*</system-reminder>\s*\Z",
    re.DOTALL,
)
# Beginnings of messages on commands that the program ran itself, without the model.
LOCAL = (
    "<command-name>",
    "<command-message>",
    "<local-command-",
    "Caveat: The messages below were generated",
)
INTERRUPTED = re.compile(r"\[Request interrupted by user[^\]]*\]")


class Event(NamedTuple):
    """A line of a session."""

    number: int
    offset: int | None
    value: View

    @property
    def kind(self) -> str:
        return self.value.text("type")

    @property
    def uuid(self) -> str | None:
        return self.value.text_or_none("uuid")

    @property
    def parent(self) -> str | None:
        return self.value.text_or_none("parentUuid")

    @property
    def agent(self) -> str | None:
        """Return the subagent's name, which older versions don't write."""
        return self.value.text_or_none("agentId")

    @property
    def is_message(self) -> bool:
        return self.kind in ("user", "assistant")

    @property
    def is_side(self) -> bool:
        """Return True for an event of a subagent."""
        return self.value.get("isSidechain") is True

    @property
    def is_summary(self) -> bool:
        return self.value.get("isCompactSummary") is True

    @property
    def content(self) -> list[Any]:
        """Return the blocks of the event's message."""
        message = self.value.object("message")
        if message.has("content", str):
            return [{"type": "text", "text": message["content"]}]
        return message.array("content")

    def is_prompt(self) -> bool:
        """Return True for text that the user has typed."""
        if self.kind != "user" or self.value.get("isMeta") or self.is_summary:
            return False
        typed = [part["text"].strip() for part in objects(self.content) if part.has("text", str)]
        return bool(typed) and not typed[0].startswith(LOCAL) and not INTERRUPTED.fullmatch(typed[0])


@dataclass
class Session:
    """Events of a conversation and of the subagents that it started."""

    events: list[Event] = field(default_factory=list)

    def begins_again(self, event: Event) -> bool:
        """Return True if an event is the first of another conversation in the same file."""
        is_root = event.kind == "user" and event.value.get("parentUuid", "") is None
        if not is_root or event.is_side or event.is_summary:
            return False
        return any(earlier.is_message and not earlier.is_side for earlier in self.events)


def _is_event(value: View) -> bool:
    """Return True for an event with a session, and for a title or snapshot with which a file may begin."""
    return (
        {"sessionId", "type", "uuid"} <= value.keys()
        or (value.get("type") == "summary" and "leafUuid" in value)
        or (value.get("type") == "file-history-snapshot" and "snapshot" in value)
        or (value.get("type") == "queue-operation" and "operation" in value)
    )


def read(records: Iterable[Record], notes: Notes) -> Iterator[Conversation]:
    """Yield a row for each conversation, each part of one that was compacted, and each subagent."""
    session = Session()
    known: set[Any] = set()
    for record in records:
        try:
            event = Event(record.number, record.offset, _checked(record))
        except BadLine as why:
            yield Conversation(record.number, record.offset, why)
            continue
        if event.is_message and event.uuid is not None:
            if event.uuid in known:
                notes["events_repeated"] += 1
                continue
            known.add(event.uuid)
        if session.begins_again(event):
            yield from _rows(session.events, notes)
            session = Session()
        session.events.append(event)
    yield from _rows(session.events, notes)


def _checked(record: Record) -> View:
    """Return an event. Raises `BadLine` for any other value."""
    value = record.object("not a JSON object, as Claude Code's events are")
    kind = value.text_or_none("type")
    if kind is None:
        raise BadLine("unknown_format", "not an event of Claude Code, which has a type")
    if kind in ("user", "assistant") and not value.object("message").has("content", str | list):
        raise BadLine(
            "bad_shape",
            f"an event of type {kind} has no message with content: Claude Code 1.0 to 2.1 write one",
        )
    return value


def _rows(events: list[Event], notes: Notes) -> Iterator[Conversation]:
    taken_back = _taken_back(events, notes)
    chains: dict[Any, list[Event]] = defaultdict(list)
    roots: dict[Any, Any] = {}  # event of a subagent → root of its conversation
    compactions = 0
    for event in events:
        if event.uuid in taken_back:
            continue
        if not event.is_side:
            if event.is_summary:
                compactions += 1
            chains["main", compactions].append(event)
            continue
        root = event.agent or roots.get(event.parent, event.uuid)
        roots[event.uuid] = root
        chains["agent", root].append(event)
    notes["compactions"] += compactions
    notes["subagents"] += sum(kind == "agent" for kind, _ in chains)
    for chain in chains.values():
        yield from _row(chain, notes)


def _taken_back(events: list[Event], notes: Notes) -> set[Any]:
    """Return the events of prompts that the user took back by writing another in their place."""
    parents = {event.uuid: event.parent for event in events if event.uuid is not None}
    messages = {event.uuid for event in events if event.is_message}
    last: dict[Any, int] = {}  # event → line of the last event that follows from it
    for event in reversed(events):
        last[event.uuid] = max(last.get(event.uuid, 0), event.number)
        last[event.parent] = max(last.get(event.parent, 0), last[event.uuid])
    prompts: dict[Any, list[Event]] = defaultdict(list)
    for event in events:
        if event.is_prompt():
            parent = _message_before(event.parent, parents, messages)
            if parent is not None:
                prompts[parent].append(event)
    left: set[Any] = set()
    for rivals in prompts.values():
        stays = max(rivals, key=lambda event: last[event.uuid])
        left.update(event.uuid for event in rivals if event is not stays and event.uuid is not None)
    notes["branches_left_out"] += len(left)
    for event in events:  # Events that follow from others come after them.
        if event.parent in left and event.uuid is not None:
            left.add(event.uuid)
    return left


def _message_before(uuid: Any, parents: dict[Any, Any], messages: set[Any]) -> Any:
    """Return the nearest message among an event and those before it; None without one or in a circle."""
    passed = set()
    while uuid in parents and uuid not in messages and uuid not in passed:
        passed.add(uuid)
        uuid = parents[uuid]
    return uuid if uuid in messages else None


def _row(chain: list[Event], notes: Notes) -> Iterator[Conversation]:
    draft = Draft()
    first = chain[0]
    try:
        for event in _with_answers_together(chain):
            _add(draft, event, notes)
    except BadLine as why:
        yield Conversation(first.number, first.offset, why)
        return
    turns = settled(draft.turns, notes)
    if turns:
        yield Conversation(first.number, first.offset, {"messages": turns})


def _with_answers_together(chain: list[Event]) -> list[Event]:
    """Return the events with those of one answer next to each other.

    In the file, results may be between them.
    """
    ordered: list[Event] = []
    place = -1  # index of the last event of an answer
    for event in chain:
        if event.kind != "assistant":
            ordered.append(event)
            continue
        identity = event.value["message"].get("id")
        is_same = place >= 0 and identity and ordered[place].value["message"].get("id") == identity
        place = place + 1 if is_same else len(ordered)
        ordered.insert(place, event)
    return ordered


# Types of events without a message that are counted by their name.
OTHERS = ("attachment", "file-history-snapshot", "progress", "queue-operation", "summary", "system")


def _add(draft: Draft, event: Event, notes: Notes) -> None:
    """Add the content of an event. Raises `BadLine` for a result that is nested too deep."""
    kind = event.kind
    if kind == "assistant":
        if event.value.get("isApiErrorMessage"):
            notes["api_errors"] += 1
        elif event.value["message"].get("model") == "<synthetic>":  # The program wrote the answer.
            notes["turns_by_the_program"] += 1
        else:
            add_answer(draft, event.content, notes)
    elif kind == "user":
        for part in add_results(draft, event.content, notes, without=_without_reminders):
            _ask(draft, text_of([part], notes), notes)
    elif kind == "attachment" and _queued(event.value):
        draft.say("user", _queued(event.value))
    else:
        notes[f"events_{kind}" if kind in OTHERS else "events_of_other_types"] += 1


def _ask(draft: Draft, text: str, notes: Notes) -> None:
    text = _without_reminders(text, notes)
    if INTERRUPTED.fullmatch(text.strip()):
        notes["aborted"] += draft.interrupt()
    elif text.lstrip().startswith(LOCAL):
        notes["local_commands"] += 1
    else:
        draft.say("user", text)


def _queued(value: View) -> str:
    """Return the text that the user typed while the model was working."""
    attachment = value.object("attachment")
    return attachment.text("prompt") if attachment.get("type") == "queued_command" else ""


def _without_reminders(text: str, notes: Notes) -> str:
    """Return a text without the reminders that the program put in front of it or after it."""
    if "<system-reminder>" not in text:
        return text
    rest, count = REMINDER.subn("", text)
    while rest != text:
        notes["reminders"] += count
        text = rest
        rest, count = REMINDER.subn("", text)
    return text


EXPORT = Export("claude_code", any_record(_is_event), read)
