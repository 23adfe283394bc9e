"""Messages of Vercel's AI SDK, as `useChat` has them and applications store them: an array of messages, or a
chat with `messages`.

After vercel/ai `packages/ai/src/ui/ui-messages.ts` (versions 5 to 7: `parts` of the types text, reasoning,
tool-NAME, dynamic-tool, file, source-…, data-…, step-start) and `packages/ui-utils/src/types.ts` (versions 3
and 4: `content`, `reasoning`, `toolInvocations`, `experimental_attachments`, and since 4.2 `parts`).
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pipeline.core.jsonl import BadLine
from pipeline.core.text import quoted
from pipeline.intake.exports.answers import Answer, result_text, user_turn
from pipeline.intake.exports.export import Alone, Conversation, Export, Head, Notes, Record
from pipeline.intake.exports.turn_arrays import SEVERAL
from pipeline.intake.exports.view import objects, texts
from pipeline.intake.wire.draft import Turn

ROLES = ("system", "user", "assistant", "data")
TOOL = "tool-"  # prefix of the type of a call's part, before the tool's name
INVOCATION = "tool-invocation"  # type of a call's part in version 4
SOURCES = ("source", "source-url", "source-document")


def is_head(head: Head) -> bool:
    """Return True if a record is a chat with such messages, or if an array begins with messages and one of
    them is such a message.
    """
    if any(_has_messages(value) for value in head.objects()):
        return True
    are_turns = all(
        value.get("role") in ROLES and value.keys().isdisjoint(SEVERAL) for value in head.objects()
    )
    return head.layout == "array" and are_turns and any(map(_is_message, head.objects()))


def _has_messages(value: Mapping[str, Any]) -> bool:
    return any(map(_is_message, objects(value.get("messages"))))


def _is_message(value: Mapping[str, Any]) -> bool:
    """Return True for a message that no other program writes: with parts that have a type, or with calls."""
    parts = objects(value.get("parts"))
    has_parts = bool(parts) and all(isinstance(part.get("type"), str) for part in parts)
    return "role" in value and (has_parts or isinstance(value.get("toolInvocations"), list))


def read(records: Iterable[Record], notes: Notes) -> Iterator[Conversation]:
    """Yield a row per chat, and one for all messages that are records, if each can be read."""
    alone = Alone()
    for number, offset, value in records:
        try:
            if isinstance(value, BadLine):
                raise value
            if isinstance(value, dict) and "role" in value:
                alone.add(number, offset, _turns(value, f"message {number}", notes))
                continue
            listed = value.get("messages") if isinstance(value, dict) else None
            if not isinstance(listed, list):
                raise BadLine(
                    "bad_shape", "neither a message of the AI SDK with a role, nor a chat with messages"
                )
            for row in _row(listed, notes):
                yield Conversation(number, offset, row)
        except BadLine as why:
            yield Conversation(number, offset, why)
            if not isinstance(value, dict) or "messages" not in value:
                alone.hole = why
    yield from alone.conversation(notes)


def _row(listed: list[Any], notes: Notes) -> Iterator[dict[str, Any]]:
    turns: list[Turn] = []
    for number, message in enumerate(listed, start=1):
        turns += _turns(message, f"messages {number}", notes)
    if turns:
        yield {"messages": turns}
    else:
        notes["empty_conversations"] += 1


def _turns(message: Any, where: str, notes: Notes) -> list[Turn]:
    if not isinstance(message, dict):
        raise BadLine("bad_shape", f"{where} is not an object")
    role = message.get("role")
    parts = message.get("parts")
    if parts is not None and (not isinstance(parts, list) or len(objects(parts)) < len(parts)):
        raise BadLine("bad_shape", f"{where}: parts is not a list of objects")
    if role not in ROLES:
        raise BadLine("bad_role", f"{where}: the role {quoted(role)} is none of {', '.join(ROLES)}")
    if role == "data":
        notes["data_parts"] += 1
        return []
    if role == "assistant":
        return _answer(message, where, notes)
    words = texts(*(part.get("text") for part in parts or () if part.get("type") == "text"))
    words = words or texts(message.get("content"))
    if role == "system":
        return [{"role": "system", "content": words}]
    files = [part for part in parts or () if part.get("type") == "file"]
    files = files or objects(message.get("experimental_attachments"))
    if not words and not files:
        return []
    names = [str(file.get("filename") or file.get("name") or "") for file in files]
    kinds = [str(file.get(key)) for file in files for key in ("mediaType", "mimeType", "contentType")]
    shows_image = any(kind.startswith("image/") for kind in kinds)
    return user_turn(words, names, notes, shows_image=shows_image)


def _answer(message: dict[str, Any], where: str, notes: Notes) -> list[Turn]:
    answer = Answer(notes)
    is_aborted = False
    for number, part in enumerate(message.get("parts") or _as_parts(message), start=1):
        _add(answer, part, f"{where}: part {number}")
        is_aborted = part.get("type") == "text" and part.get("state") == "streaming"
    return answer.finished(aborted=is_aborted)


def _as_parts(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the parts that a message of version 3 or 4 would have."""
    calls = [{"type": INVOCATION, "toolInvocation": call} for call in objects(message.get("toolInvocations"))]
    return [
        {"type": "reasoning", "text": message.get("reasoning")},
        *calls,
        {"type": "text", "text": message.get("content")},
    ]


def _add(answer: Answer, part: dict[str, Any], place: str) -> None:
    kind = str(part.get("type"))
    if kind == "text":
        answer.say(texts(part.get("text")))
    elif kind == "reasoning":
        answer.think(texts(part.get("text") or part.get("reasoning")))
    elif kind == INVOCATION and isinstance(part.get("toolInvocation"), dict):
        call = part["toolInvocation"]
        _add_call(answer, place, {**call, "input": call.get("args"), "output": call.get("result")})
    elif kind.startswith(TOOL):
        _add_call(answer, place, {"toolName": kind.removeprefix(TOOL), **part})
    elif kind == "dynamic-tool":
        _add_call(answer, place, part)
    elif kind in SOURCES:
        answer.notes["sources"] += 1
    elif kind == "file":
        answer.notes["attachments"] += 1
    elif kind.startswith("data-"):
        answer.notes["data_parts"] += 1
    elif kind != "step-start":
        answer.notes["blocks_not_read"] += 1


def _add_call(answer: Answer, place: str, call: Mapping[str, Any]) -> None:
    """Add a call, and its result if it has one. A preliminary output is not a result yet."""
    if not isinstance(call.get("toolName"), str):
        raise BadLine("bad_tool_call", f"{place} is a call without a tool's name")
    place = str(call.get("toolCallId") or place)
    given = call.get("rawInput") if call.get("input") is None else call["input"]
    answer.call(place, call["toolName"], {} if given is None else given)
    if call.get("state") == "output-error":
        answer.result(place, texts(call.get("errorText")))
    elif call.get("state") in ("output-available", "result") and not call.get("preliminary"):
        answer.result(place, result_text(call.get("output")))


EXPORT = Export("vercel", is_head, read, has_rows=True)
