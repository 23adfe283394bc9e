"""LM Studio's chats: the files *.conversation.json below ~/.lmstudio/conversations.

The program publishes no schema. The one read here is that of versions 0.3 (2024 to 2026), after public
readers (github.com/YorkieDev/lm-studio-conversation-converter): `messages` with `versions` and
`currentlySelected`. A version is a `singleStep` with `content`, or a `multiStep` with `steps` of content
blocks. Those in the style `thinking` are reasoning.
"""

from collections.abc import Iterator
from typing import Any

from pipeline.core.jsonl import BadLine
from pipeline.core.text import quoted
from pipeline.intake.exports.answers import Answer, result_text, user_turn
from pipeline.intake.exports.export import Export, Notes, any_record, conversation_rows, each_record
from pipeline.intake.exports.view import View, texts
from pipeline.intake.wire.draft import Turn


def _is_chat(value: View) -> bool:
    """Return True for a chat with messages in versions."""
    has_versions = any("versions" in message for message in value.objects("messages"))
    return has_versions or value.keys() >= {"messages", "pinned", "perChatPredictionConfig"}


def rows_of(value: View, notes: Notes) -> Iterator[dict[str, Any]]:
    """Yield the row of a chat."""
    if not value.has("messages", list):
        raise BadLine("bad_shape", "a chat of LM Studio has a list messages, and this has none")
    turns = [turn for message in value.elements("messages") for turn in _turns(message, notes)]
    if turns:
        turns = [*_system(value), *turns]
    yield from conversation_rows(turns, notes)


def _system(value: View) -> list[Turn]:
    fields = value.object("perChatPredictionConfig").objects("fields")
    stated = [field for field in fields if field.get("key") == "llm.prediction.systemPrompt"]
    words = next(iter(stated), View()).texts("value") or value.texts("systemPrompt")
    return [{"role": "system", "content": words}] if words else []


def _turns(message: View, notes: Notes) -> list[Turn]:
    versions = message.objects("versions")
    selected = message.get("currentlySelected", 0)
    if not isinstance(selected, int) or not 0 <= selected < len(versions):
        raise BadLine("bad_shape", "a message of LM Studio has versions, and the number of the selected one")
    notes["branches_not_current"] += len(versions) - 1
    version = versions[selected]
    role = version.get("role")
    if role in ("user", "system"):
        parts = version.objects("content")
        words = texts(*(part.get("text") for part in parts))
        if role == "system":
            return [{"role": role, "content": words}]
        files = [part for part in parts if part.get("type") == "file"]
        names = [file.label("fileIdentifier") for file in files]
        shows_image = any(file.get("fileType") == "image" for file in files)
        return user_turn(words, names, notes, shows_image=shows_image)
    if role != "assistant":
        raise BadLine("bad_role", f"the role is {quoted(role)}")
    answer = Answer(notes)
    steps = version.objects("steps") or [version]
    for step in steps:
        _add_step(answer, step)
    return answer.finished(aborted=any(map(_is_cut_off, steps)))


def _is_cut_off(step: View) -> bool:
    stop = step.object("genInfo").object("stats").get("stopReason")
    return stop in ("userStopped", "maxPredictedTokensReached", "contextLengthReached")


def _add_step(answer: Answer, step: View) -> None:
    if step.get("type") in ("debugInfoBlock", "status", "toolStatus"):  # It shows the progress.
        return
    pieces = []
    for part in step.objects("content"):
        kind = part.get("type")
        if kind == "text":
            pieces.append(part.label("text"))
        elif kind == "toolCallRequest":
            place = part.label("toolCallRequestId", "callId", default=f"call_{len(answer.turns)}")
            answer.say("".join(pieces))
            pieces = []
            answer.call(place, str(part.get("name")), part.get("parameters") or {})
        elif kind == "toolCallResult":
            called = part.get("toolCallRequestId") or part.get("toolCallId")
            answer.result(None if called is None else str(called), result_text(part.get("content")))
        else:
            answer.notes["blocks_not_read"] += 1
    words = "".join(pieces)
    if step.object("style").get("type") == "thinking":
        answer.think(words)
    else:
        answer.say(words)


EXPORT = Export(
    "lm_studio", any_record(_is_chat), each_record(rows_of), large_keys=(b'"name"', b'"createdAt"')
)
