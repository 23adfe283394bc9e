"""The canonical row: what curation writes, and what the stages after it read.

The model here is the source of `docs/row.schema.json` (JSON Schema 2020-12); docs/data-formats.md explains it.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from pipeline.jsonl import BadLine

# chat: a conversation to learn · preference: `messages` is the prompt, `chosen` and `rejected` its two answers ·
# feedback: a conversation with a thumb up or down (KTO) · prompt: ends with the user, `answer` is what a checker expects ·
# text: `segments` without any template
Kind = Literal["chat", "preference", "feedback", "prompt", "text"]
Role = Literal["system", "user", "assistant", "tool"]
Row = dict[str, Any]  # a `CanonicalRow` while it is built
Edit = Callable[[str], str]


class Function(TypedDict):
    """The call of one function; `arguments` is the JSON object, not its text."""

    name: str
    arguments: dict[str, Any]


class ToolCall(TypedDict):
    """One entry of a message's `tool_calls`, as in OpenAI's API."""

    type: Literal["function"]
    function: Function
    id: NotRequired[str]


class Message(TypedDict):
    """One turn; `content` may be empty only where there are `tool_calls`. `train: false` keeps an assistant turn out of the loss."""

    role: Role
    content: str
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCall]]
    tool_call_id: NotRequired[str]
    name: NotRequired[str]
    train: NotRequired[bool]


class Segment(TypedDict):
    """Text that is trained (or only read) exactly as it stands, without a chat template."""

    text: str
    train: bool


class CanonicalRow(TypedDict):
    """One line of `data/final/*.jsonl`."""

    id: str  # 16 hexadecimal digits, from the content alone
    source: str  # FILE:LINE below data/raw; FILE:LINE#PART for a part of a long conversation
    kind: Kind
    domain: str
    messages: list[Message]  # empty for kind text
    tools: NotRequired[list[dict[str, Any]]]
    chosen: NotRequired[list[Message]]  # preference
    rejected: NotRequired[list[Message]]  # preference
    label: NotRequired[bool]  # feedback
    reward: NotRequired[float]  # a scored chat
    answer: NotRequired[str]  # prompt
    segments: NotRequired[list[Segment]]  # text


ENVELOPE = ("id", "source", "kind", "domain")  # about the row, no part of its content
TURN_LISTS = ("messages", "chosen", "rejected")


class BadRow(BadLine):
    """A JSON object that is no usable row; `code` is the stable reason, the text says more (never the row's own text)."""


def row_id(row: Row) -> str:
    """16 hexadecimal digits of the content's SHA-256: equal contents, equal ids. A plain chat's is that of its messages alone."""
    content = {key: value for key, value in row.items() if key not in ENVELOPE}
    canonical = json.dumps(content["messages"] if len(content) == 1 else content, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("utf-8")).hexdigest()[:16]


def texts(row: Row) -> Iterator[tuple[str, str]]:
    """(place, text) of every string that a model may get to see; a place is `messages 2`, `messages 2 reasoning_content`, `answer` …"""
    found: list[tuple[str, str]] = []

    def note(place: str, text: str) -> str:
        found.append((place, text))
        return text

    edit_texts(row, note)
    yield from found


def edit_texts(row: Row, edit: Callable[[str, str], str]) -> Row:
    """The row with every text replaced by `edit(place, text)`; the same object where nothing changed."""
    changed = dict(row)
    for field in TURN_LISTS:
        if field in row:
            changed[field] = _same_or([_edited_turn(turn, f"{field} {i}", edit) for i, turn in enumerate(row[field], start=1)], row[field])
    if "segments" in row:
        segments = [_edited_segment(segment, f"segments {i}", edit) for i, segment in enumerate(row["segments"], start=1)]
        changed["segments"] = _same_or(segments, row["segments"])
    if "tools" in row:
        changed["tools"] = _edited_tree(row["tools"], lambda text: edit("tools", text))
    if "answer" in row:
        changed["answer"] = edit("answer", row["answer"])
    return row if all(changed[key] is row[key] for key in row) else changed


def _same_or(changed: list[Any], items: list[Any]) -> list[Any]:
    """`items` itself where no entry of `changed` is a new object."""
    return items if all(new is old for new, old in zip(changed, items, strict=True)) else changed


def _edited_turn(turn: dict[str, Any], place: str, edit: Callable[[str, str], str]) -> dict[str, Any]:
    content = turn["content"]
    new = edit(place, content)
    if len(turn) == 2 and new is content:  # role and content: the usual case
        return turn
    changed = {**turn, "content": new}
    for key in ("reasoning_content", "name", "tool_call_id"):
        if key in turn:
            changed[key] = edit(f"{place} {key}", turn[key])
    if "tool_calls" in turn:
        changed["tool_calls"] = _edited_tree(turn["tool_calls"], lambda text: edit(f"{place} tool_calls", text))
    return turn if all(changed[key] is turn[key] for key in turn) else changed


def _edited_segment(segment: dict[str, Any], place: str, edit: Callable[[str, str], str]) -> dict[str, Any]:
    text = edit(place, segment["text"])
    return segment if text is segment["text"] else {**segment, "text": text}


def _edited_tree(value: Any, edit: Edit) -> Any:
    """A JSON value with every string in it edited, keys too."""
    if isinstance(value, str):
        return edit(value)
    if isinstance(value, list):
        return _same_or([_edited_tree(item, edit) for item in value], value)
    if isinstance(value, dict):
        pairs = [(edit(key), _edited_tree(item, edit)) for key, item in value.items()]
        same = all(key is old and item is value[old] for (key, item), old in zip(pairs, value, strict=True))
        return value if same else dict(pairs)
    return value
