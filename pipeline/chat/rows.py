"""The canonical row: what curation writes, and what the stages after it read.

The model here is the source of `docs/row.schema.json` (JSON Schema 2020-12); docs/data-formats.md explains
it.

    python -m pipeline.chat.rows > docs/row.schema.json
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Annotated, Any, Literal, NotRequired

import orjson
from pydantic import ConfigDict, Discriminator, Field, TypeAdapter
from typing_extensions import TypedDict

from pipeline.core.jsonl import BadLine

Kind = Literal["chat", "preference", "feedback", "prompt", "text"]
TRAINED = ("chat", "text")  # kinds that supervised training learns from
JUDGED = ("preference", "feedback")  # kinds whose answers are judged
ANSWERED = ("chat", "feedback")  # kinds whose messages end with the answer
Role = Literal["system", "user", "assistant", "tool"]
Row = dict[str, Any]  # a `CanonicalRow` under construction
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
    """One turn; `content` may be empty only where there are `tool_calls`. `train: false` keeps an assistant
    turn out of the loss. `cut` is the end that stage curate cut off its content to fit the token budget: if
    it is the end of an answer, the end of its turn is not trained.
    """

    role: Role
    content: str
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCall]]
    tool_call_id: NotRequired[str]
    name: NotRequired[str]
    train: NotRequired[bool]
    cut: NotRequired[Literal["beginning", "end"]]


class Segment(TypedDict):
    """Text that is trained (or only read) exactly as it stands, without a chat template."""

    text: str
    train: bool


Tools = list[dict[str, Any]]


ID = "the start of the content's SHA-256: equal contents, equal ids"
SOURCE = (
    "FILE:LINE below data/raw; FILE:LINE#PART for a part of a long conversation or text, FILE:LINE#cut for a "
    "row of which something was cut off to fit; CHOSEN > REJECTED for a pair that `curate.pairs` made of two "
    "chats; PROMPT of ID for a row that stage augment wrote"
)


class Augmented(TypedDict):
    """Origin of a row that a model wrote for stage augment."""

    of: Annotated[str, Field(description="id of the row that it was written to, of the same split")]
    model: Annotated[str, Field(description="what wrote it: the file's name, or the name at `url`")]
    sha256: NotRequired[Annotated[str, Field(description="of the file")]]
    url: NotRequired[str]
    prompt: Annotated[str, Field(description="what it was told, with its version: rejected.vague/1")]
    temperature: float
    seed: int
    time: Annotated[str, Field(description="when it was written, in UTC")]


class Envelope(TypedDict):
    """Facts that every row states about itself; no part of its content."""

    id: Annotated[str, Field(pattern="^[0-9a-f]{16}$", description=ID)]
    source: Annotated[str, Field(description=SOURCE)]
    domain: str
    augmented: NotRequired[Augmented]


REWARD = "train.reward says how it weights the chat"
ACCEPTED = "answers that are accepted besides the reference: scorers take the best, none is trained"
References = Annotated[list[str], Field(min_length=1, description=ACCEPTED)]


class Chat(Envelope):
    """A conversation to learn; `reward` is the score it was given, by which training weights it."""

    kind: Literal["chat"]
    messages: list[Message]
    tools: NotRequired[Tools]
    reward: NotRequired[Annotated[float, Field(allow_inf_nan=False, description=REWARD)]]
    other_references: NotRequired[References]


class Preference(Envelope):
    """`messages` is the prompt, `chosen` and `rejected` are its better and its worse continuation."""

    kind: Literal["preference"]
    messages: list[Message]
    tools: NotRequired[Tools]
    chosen: list[Message]
    rejected: list[Message]


class Feedback(Envelope):
    """A conversation with a thumb up (`label: true`) or down, for KTO."""

    kind: Literal["feedback"]
    messages: list[Message]
    tools: NotRequired[Tools]
    label: bool


class Prompt(Envelope):
    """A conversation that ends with the user; `answer` is what a checker of its answers expects."""

    kind: Literal["prompt"]
    messages: list[Message]
    tools: NotRequired[Tools]
    answer: str
    other_references: NotRequired[References]


class Text(Envelope):
    """`segments` without any template, one after the other; no messages. A part of a long text ends in an
    empty segment, unless it is the last.
    """

    kind: Literal["text"]
    messages: Annotated[list[Message], Field(max_length=0)]
    segments: list[Segment]


# One line of `data/final/*.jsonl`.
CanonicalRow = Annotated[Chat | Preference | Feedback | Prompt | Text, Discriminator("kind")]

ENVELOPE = ("id", "source", "kind", "domain", "augmented")  # data about the row, not part of its content
SIDES = ("chosen", "rejected")  # sides of a pair
OTHERS = "other_references"
# Suffixes that rows made of other rows have after the source.
MADE = re.compile(r"(~\d+)*(#(\d+|cut))?(\*\d+)?")
ABOUT_TRAINING = ("train", "cut")  # keys of a turn that no model gets to see
TURN_LISTS = ("messages", *SIDES)


class BadRow(BadLine):
    """Error for an unusable row.

    `code` is the stable reason, the text gives details (never the row's own text).
    """


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a row."""
    title = "A line of Quench's data/final/*.jsonl"
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
    } | TypeAdapter(CanonicalRow, config=ConfigDict(extra="forbid")).json_schema()


def conversations(row: Row) -> list[list[dict[str, Any]]]:
    """Return the turns of each text that a row is trained as: two if it has two answers."""
    return [row["messages"] + row[side] for side in SIDES if side in row] or [row["messages"]]


def has_tools(row: Row) -> bool:
    """Return True if the row has tools, or a turn that calls one."""
    return bool(row.get("tools")) or any(
        "tool_calls" in turn for field in TURN_LISTS for turn in row.get(field, ())
    )


def other_references(row: Row) -> dict[str, list[str]]:
    """Return the answers that are accepted besides the reference, under their own key if there are any."""
    return {OTHERS: row[OTHERS]} if OTHERS in row else {}


def is_one_text(row: Row) -> bool:
    """Return True for a text in one piece. An empty segment after it means that the document continues."""
    segments = row.get("segments", ())
    goes_on = len(segments) == 2 and not segments[1]["text"] and not segments[1]["train"]
    return len(segments) == 1 or goes_on


def is_unended(turn: dict[str, Any]) -> bool:
    """Return True if an answer's end was cut off, so that the end of its turn is not learned."""
    return turn.get("cut") == "end"


def calling_turns(row: Row) -> list[int]:
    """Return the indices of a chat's trained turns that call tools."""
    return [
        place
        for place, turn in enumerate(row["messages"])
        if turn.get("tool_calls") and turn.get("train") is not False
    ]


def completed(row: Row) -> list[dict[str, Any]]:
    """Return a row's turns up to the wanted answer: the chosen one, or the one that a checker expects."""
    expected = [{"role": "assistant", "content": row["answer"]}] if "answer" in row else []
    return [*row["messages"], *row.get("chosen", ()), *expected]


def is_copy(row: Row) -> bool:
    """Return True for a later copy of a row that curation repeats: its source ends in *2, *3 …"""
    return "*" in str(row.get("source", "")).rpartition(":")[2]


def untrained_turns(turns: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return turns without their keys about training, as a model gets to see them."""
    return [{key: value for key, value in turn.items() if key not in ABOUT_TRAINING} for turn in turns]


def line_of(source: str) -> tuple[str, int]:
    """Return the file and the line in data/raw from which a row was made.

    The form is FILE:LINE, then ~NUMBER (for several rows of a line, and again for those that
    `curate.transform` made), #PART and *COPY, if there are any.
    """
    file, _, place = source.rpartition(":")
    return file, int(re.split("[~#*]", place)[0])


def is_made_of(source: str, other: str) -> bool:
    """Return True for the source `other` itself and for those of the rows that it gives: FILE:LINE~2,
    FILE:LINE~2#1 and FILE:LINE*2 are made of FILE:LINE.
    """
    rest = source.removeprefix(other)
    return source == other or (rest != source and bool(MADE.fullmatch(rest)))


def row_id(row: Row) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of the content.

    For a plain chat the content is only its messages.
    """
    content = {key: value for key, value in row.items() if key not in ENVELOPE}
    # Compact UTF-8, keys in their order.
    canonical = orjson.dumps(content["messages"] if len(content) == 1 else content)
    return hashlib.sha256(canonical).hexdigest()[:16]


def texts(row: Row) -> list[tuple[str, str]]:
    """Return (place, text) of every string that a model may get to see. A place is `messages 2`, `messages 2
    reasoning_content`, `answer` …
    """
    texts: list[tuple[str, str]] = []

    def note(place: str, text: str) -> str:
        texts.append((place, text))
        return text

    edit_texts(row, note)
    return texts


def edit_texts(row: Row, edit: Callable[[str, str], str]) -> Row:
    """Return the row with every text replaced by `edit(place, text)`, or the same object if nothing changed.

    Raises `BadRow` if the edit makes two keys of one object (of a tool's schema, of a call's arguments)
    equal.
    """
    changed = dict(row)
    for field in (*TURN_LISTS, "segments"):
        if field in row:
            changed[field] = [
                _edited_turn(turn, f"{field} {i}", edit) for i, turn in enumerate(row[field], start=1)
            ]
    for field in ("tools", "answer", OTHERS):
        if field in row:
            changed[field] = _edited_tree(row[field], partial(edit, field))
    return row if changed == row else changed


def _edited_turn(turn: dict[str, Any], place: str, edit: Callable[[str, str], str]) -> dict[str, Any]:
    """Return a turn or segment, edited. Its place refers to its content."""
    changed = dict(turn)
    for key in ("content", "text", "reasoning_content", "name", "tool_call_id"):
        if key in turn:
            changed[key] = edit(place if key in ("content", "text") else f"{place} {key}", turn[key])
    if "tool_calls" in turn:
        edit_call = partial(edit, f"{place} tool_calls")
        changed["tool_calls"] = [_edited_call(call, edit_call) for call in turn["tool_calls"]]
    return changed


def _edited_call(call: ToolCall, edit: Edit) -> ToolCall:
    """Return a tool call with name, arguments and id edited. Its other strings belong to the format."""
    function = Function(
        name=edit(call["function"]["name"]), arguments=_edited_tree(call["function"]["arguments"], edit)
    )
    edited: ToolCall = {**call, "function": function}
    if "id" in call:
        edited["id"] = edit(call["id"])
    return edited


def _edited_tree(value: Any, edit: Edit) -> Any:
    """Return a JSON value with every string in it edited, keys too."""
    if isinstance(value, str):
        return edit(value)
    if isinstance(value, list):
        return [_edited_tree(item, edit) for item in value]
    if isinstance(value, dict):
        edited = {edit(key): _edited_tree(item, edit) for key, item in value.items()}
        if len(edited) < len(value):
            raise BadRow("duplicate_key", "what the rules change makes two keys of one object the same")
        return edited
    return value


if __name__ == "__main__":
    print(json.dumps(json_schema(), indent=2))
