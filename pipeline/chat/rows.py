"""The canonical row: what curation writes, and what the stages after it read.

The model here is the source of `docs/row.schema.json` (JSON Schema 2020-12); docs/data-formats.md explains it.

    python -m pipeline.chat.rows > docs/row.schema.json
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from functools import cache
from typing import Annotated, Any, Literal, NotRequired

import orjson
from pydantic import ConfigDict, Discriminator, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from pipeline.core.jsonl import BadLine

Kind = Literal["chat", "preference", "feedback", "prompt", "text"]
TRAINED = ("chat", "text")  # the kinds that supervised training learns from; the others are kept for later
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


Tools = list[dict[str, Any]]


class Envelope(TypedDict):
    """What every row says about itself; no part of its content."""

    id: Annotated[str, Field(pattern="^[0-9a-f]{16}$", description="the start of the content's SHA-256: equal contents, equal ids")]
    source: Annotated[str, Field(description="FILE:LINE below data/raw; FILE:LINE#PART for a part of a long conversation or text")]
    domain: str


class Chat(Envelope):
    """A conversation to learn; `reward` is the score it was given: kept, but not used in training yet."""

    kind: Literal["chat"]
    messages: list[Message]
    tools: NotRequired[Tools]
    reward: NotRequired[Annotated[float, Field(allow_inf_nan=False, description="kept, but not used in training yet: each row counts the same")]]


class Preference(Envelope):
    """`messages` is the prompt, `chosen` and `rejected` are its better and its worse continuation. Kept, but not trained yet."""

    kind: Literal["preference"]
    messages: list[Message]
    tools: NotRequired[Tools]
    chosen: list[Message]
    rejected: list[Message]


class Feedback(Envelope):
    """A conversation with a thumb up (`label: true`) or down, for KTO. Kept, but not trained yet."""

    kind: Literal["feedback"]
    messages: list[Message]
    tools: NotRequired[Tools]
    label: bool


class Prompt(Envelope):
    """A conversation that ends with the user; `answer` is what a checker of the model's own answers expects. Kept, but not trained yet."""

    kind: Literal["prompt"]
    messages: list[Message]
    tools: NotRequired[Tools]
    answer: str


class Text(Envelope):
    """`segments` without any template, one after the other; no messages. A part of a long text ends in an empty segment, unless it is the last."""

    kind: Literal["text"]
    messages: Annotated[list[Message], Field(max_length=0)]
    segments: list[Segment]


CanonicalRow = Annotated[Chat | Preference | Feedback | Prompt | Text, Discriminator("kind")]  # one line of `data/final/*.jsonl`

ENVELOPE = ("id", "source", "kind", "domain")  # about the row, no part of its content
TURN_LISTS = ("messages", "chosen", "rejected")


class BadRow(BadLine):
    """A JSON object that is no usable row; `code` is the stable reason, the text says more (never the row's own text)."""


@cache
def _model() -> TypeAdapter[Any]:
    return TypeAdapter(CanonicalRow, config=ConfigDict(extra="forbid", strict=True))


def check_row(row: Row) -> None:
    """Raise `BadRow` (`not_canonical`, with the place) where `row` is none of the kinds above or its id is not its content's."""
    try:
        _model().validate_python(row)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = " ".join(str(part + 1 if isinstance(part, int) else part)[:40] for part in first["loc"][1:])
        words = first["msg"] if place else f"kind is missing or none of {', '.join(Kind.__args__)}"  # type: ignore[attr-defined]
        raise BadRow("not_canonical", f"{place or 'row'}: {words}") from None
    if row["id"] != row_id(row):
        raise BadRow("not_canonical", f"id: {row['id']} is not its content's: {row_id(row)}")


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a row."""
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A line of Quench's data/final/*.jsonl"}
    return dialect | _model().json_schema()


def row_id(row: Row) -> str:
    """16 hexadecimal digits of the content's SHA-256: equal contents, equal ids. A plain chat's is that of its messages alone."""
    content = {key: value for key, value in row.items() if key not in ENVELOPE}
    canonical = orjson.dumps(content["messages"] if len(content) == 1 else content)  # compact UTF-8, keys in their order
    return hashlib.sha256(canonical).hexdigest()[:16]


def texts(row: Row) -> Iterator[tuple[str, str]]:
    """(place, text) of every string that a model may get to see; a place is `messages 2`, `messages 2 reasoning_content`, `answer` …"""
    found: list[tuple[str, str]] = []

    def note(place: str, text: str) -> str:
        found.append((place, text))
        return text

    edit_texts(row, note)
    yield from found


def edit_texts(row: Row, edit: Callable[[str, str], str]) -> Row:
    """The row with every text replaced by `edit(place, text)`; the same object where nothing changed.

    Raises `BadRow` where the edit makes two keys of one object (of a tool's schema, of a call's arguments) the same.
    """
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
        calls = [_edited_call(call, lambda text: edit(f"{place} tool_calls", text)) for call in turn["tool_calls"]]
        changed["tool_calls"] = _same_or(calls, turn["tool_calls"])
    return turn if all(changed[key] is turn[key] for key in turn) else changed


def _edited_call(call: dict[str, Any], edit: Edit) -> dict[str, Any]:
    """A tool call with name, arguments and id edited; its other strings are the format's own."""
    function, identity = call["function"], call.get("id")
    changed = {"name": edit(function["name"]), "arguments": _edited_tree(function["arguments"], edit)}
    new_id = None if identity is None else edit(identity)
    if new_id is identity and all(changed[key] is function[key] for key in changed):
        return call
    return {**call, "function": changed} | ({} if new_id is None else {"id": new_id})


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
        if all(key is old and item is value[old] for (key, item), old in zip(pairs, value, strict=True)):
            return value
        if len(dict(pairs)) < len(pairs):
            raise BadRow("duplicate_key", "what the rules change makes two keys of one object the same")
        return dict(pairs)
    return value


if __name__ == "__main__":
    print(json.dumps(json_schema(), indent=2))
