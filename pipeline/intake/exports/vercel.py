"""Messages of Vercel's AI SDK, as `useChat` has them and applications store them: an array of messages, or a
chat with `messages`.

After vercel/ai `packages/ai/src/ui/ui-messages.ts` (versions 5 to 7: `parts` of the types text, reasoning,
tool-NAME, dynamic-tool, file, source-…, data-…, step-start) and `packages/ui-utils/src/types.ts` (versions 3
and 4: `content`, `reasoning`, `toolInvocations`, `experimental_attachments`, and since 4.2 `parts`).
"""

from collections.abc import Iterable, Iterator
from typing import Any

from pipeline.core.jsonl import BadLine
from pipeline.core.text import quoted
from pipeline.intake.exports.answers import Answer, result_text, user_turn
from pipeline.intake.exports.export import Alone, Conversation, Export, Head, Notes, Record, conversation_rows
from pipeline.intake.exports.turn_arrays import SEVERAL
from pipeline.intake.exports.view import View, texts
from pipeline.intake.wire.draft import Turn

ROLES = ("system", "user", "assistant", "data")
INVOCATION = "tool-invocation"  # type of a call's part in version 4


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


def _has_messages(value: View) -> bool:
    return any(map(_is_message, value.objects("messages")))


def _is_message(value: View) -> bool:
    """Return True for a message that no other program writes: with parts that have a type, or with calls."""
    parts = value.objects("parts")
    has_parts = bool(parts) and all(part.has("type", str) for part in parts)
    return "role" in value and (has_parts or value.has("toolInvocations", list))


def read(records: Iterable[Record], notes: Notes) -> Iterator[Conversation]:
    """Yield a row per chat, and one for all messages that are records, if each can be read."""
    alone = Alone()
    for record in records:
        number = record.number
        try:
            value = record.view()
            if "role" in value:
                alone.add(number, record.offset, _turns(value, f"message {number}", notes))
                continue
            if not value.has("messages", list):
                raise BadLine(
                    "bad_shape", "neither a message of the AI SDK with a role, nor a chat with messages"
                )
            for row in _row(value["messages"], notes):
                yield Conversation(number, record.offset, row)
        except BadLine as why:
            yield Conversation(number, record.offset, why)
            if "messages" not in View(record.value):
                alone.hole = why
    yield from alone.conversation(notes)


def _row(listed: list[Any], notes: Notes) -> Iterator[dict[str, Any]]:
    turns: list[Turn] = []
    for number, message in enumerate(listed, start=1):
        where = f"messages {number}"
        if not isinstance(message, dict):
            raise BadLine("bad_shape", f"{where} is not an object")
        turns += _turns(View(message), where, notes)
    yield from conversation_rows(turns, notes)


def _turns(message: View, where: str, notes: Notes) -> list[Turn]:
    role = message.get("role")
    parts = message.objects("parts")
    if not message.has("parts", list | None) or len(parts) < len(message.array("parts")):
        raise BadLine("bad_shape", f"{where}: parts is not a list of objects")
    if role not in ROLES:
        raise BadLine("bad_role", f"{where}: the role {quoted(role)} is none of {', '.join(ROLES)}")
    if role == "data":
        notes["data_parts"] += 1
        return []
    if role == "assistant":
        return _answer(message, where, notes)
    said = [part.get("text") for part in parts if part.get("type") == "text"]
    words = texts(*said) or message.texts("content")
    if role == "system":
        return [{"role": "system", "content": words}]
    files = [part for part in parts if part.get("type") == "file"]
    files = files or message.objects("experimental_attachments")
    if not words and not files:
        return []
    names = [file.label("filename", "name") for file in files]
    kinds = [file.text(key) for file in files for key in ("mediaType", "mimeType", "contentType")]
    shows_image = any(kind.startswith("image/") for kind in kinds)
    return user_turn(words, names, notes, shows_image=shows_image)


def _answer(message: View, where: str, notes: Notes) -> list[Turn]:
    answer = Answer(notes)
    is_aborted = False
    for number, part in enumerate(message.objects("parts") or _as_parts(message), start=1):
        _add(answer, part, f"{where}: part {number}")
        is_aborted = part.get("type") == "text" and part.get("state") == "streaming"
    return answer.finished(aborted=is_aborted)


def _as_parts(message: View) -> list[View]:
    """Return the parts that a message of version 3 or 4 would have."""
    calls = message.objects("toolInvocations")
    return [
        View({"type": "reasoning", "text": message.get("reasoning")}),
        *(View({"type": INVOCATION, "toolInvocation": call}) for call in calls),
        View({"type": "text", "text": message.get("content")}),
    ]


def _add(answer: Answer, part: View, place: str) -> None:
    kind = str(part.get("type"))
    if kind == "text":
        answer.say(part.text("text"))
    elif kind == "reasoning":
        answer.think(texts(part.get("text") or part.get("reasoning")))
    elif kind == INVOCATION and part.has("toolInvocation", dict):
        call = part.object("toolInvocation")
        _add_call(answer, place, View(call | {"input": call.get("args"), "output": call.get("result")}))
    elif kind.startswith("tool-"):
        _add_call(answer, place, View({"toolName": kind.removeprefix("tool-"), **part}))
    elif kind == "dynamic-tool":
        _add_call(answer, place, part)
    elif kind in ("source", "source-url", "source-document"):
        answer.notes["sources"] += 1
    elif kind == "file":
        answer.notes["attachments"] += 1
    elif kind.startswith("data-"):
        answer.notes["data_parts"] += 1
    elif kind != "step-start":
        answer.notes["blocks_not_read"] += 1


def _add_call(answer: Answer, place: str, call: View) -> None:
    """Add a call, and its result if it has one. A preliminary output is not a result yet."""
    if not call.has("toolName", str):
        raise BadLine("bad_tool_call", f"{place} is a call without a tool's name")
    place = call.label("toolCallId", default=place)
    given = call.get("rawInput") if call.get("input") is None else call["input"]
    answer.call(place, call["toolName"], {} if given is None else given)
    if call.get("state") == "output-error":
        answer.result(place, call.texts("errorText"))
    elif call.get("state") in ("output-available", "result") and not call.get("preliminary"):
        answer.result(place, result_text(call.get("output")))


EXPORT = Export("vercel", is_head, read, has_rows=True)
