"""LM Studio's chats: the files *.conversation.json below ~/.lmstudio/conversations.

The program publishes no schema. The one read here is that of versions 0.3 (2024 to 2026), after public
readers (github.com/YorkieDev/lm-studio-conversation-converter): `messages` with `versions` and
`currentlySelected`. A version is a `singleStep` with `content`, or a `multiStep` with `steps` of content
blocks. Those in the style `thinking` are reasoning.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.core.jsonl import BadLine
from pipeline.core.text import quoted
from pipeline.intake.exports.answers import Answer, result_text, user_turn
from pipeline.intake.exports.export import Export, Head, Notes, each_record
from pipeline.intake.exports.view import objects, texts
from pipeline.intake.wire.draft import Turn

SYSTEM = "llm.prediction.systemPrompt"
CUT_OFF = ("userStopped", "maxPredictedTokensReached", "contextLengthReached")
NOT_SAID = ("debugInfoBlock", "status", "toolStatus")  # steps that show the progress


def is_head(head: Head) -> bool:
    """Return True if a record is a chat with messages in versions."""
    return any(
        any("versions" in message for message in objects(value.get("messages")))
        or (value.keys() >= {"messages", "pinned", "perChatPredictionConfig"})
        for value in head.objects()
    )


def rows_of(value: dict[str, Any], notes: Notes) -> Iterator[dict[str, Any]]:
    """Yield the row of a chat."""
    if not isinstance(value.get("messages"), list):
        raise BadLine("bad_shape", "a chat of LM Studio has a list messages, and this has none")
    turns = _system(value)
    dialogue = [turn for message in value["messages"] for turn in _turns(message, notes)]
    if dialogue:
        yield {"messages": [*turns, *dialogue]}
    else:
        notes["empty_conversations"] += 1


def _system(value: Mapping[str, Any]) -> list[Turn]:
    config = value.get("perChatPredictionConfig")
    fields = objects(config.get("fields")) if isinstance(config, dict) else []
    stated = next((field.get("value") for field in fields if field.get("key") == SYSTEM), None)
    words = texts(stated) or texts(value.get("systemPrompt"))
    return [{"role": "system", "content": words}] if words else []


def _turns(message: Any, notes: Notes) -> list[Turn]:
    versions = objects(message.get("versions")) if isinstance(message, dict) else []
    selected = message.get("currentlySelected", 0) if isinstance(message, dict) else 0
    if not isinstance(selected, int) or not 0 <= selected < len(versions):
        raise BadLine("bad_shape", "a message of LM Studio has versions, and the number of the selected one")
    notes["branches_not_current"] += len(versions) - 1
    version = versions[selected]
    role = version.get("role")
    if role in ("user", "system"):
        parts = objects(version.get("content"))
        words = texts(*(part.get("text") for part in parts))
        if role == "system":
            return [{"role": role, "content": words}]
        files = [part for part in parts if part.get("type") == "file"]
        names = [str(file.get("fileIdentifier") or "") for file in files]
        shows_image = any(file.get("fileType") == "image" for file in files)
        return user_turn(words, names, notes, shows_image=shows_image)
    if role != "assistant":
        raise BadLine("bad_role", f"the role is {quoted(role)}")
    answer = Answer(notes)
    steps = objects(version.get("steps")) or [version]
    for step in steps:
        _add_step(answer, step)
    stops = {_stop(step) for step in steps}
    return answer.finished(aborted=not stops.isdisjoint(CUT_OFF))


def _stop(step: Mapping[str, Any]) -> str:
    info = step.get("genInfo")
    stats = info.get("stats") if isinstance(info, dict) else None
    return str(stats.get("stopReason")) if isinstance(stats, dict) else ""


def _add_step(answer: Answer, step: dict[str, Any]) -> None:
    if step.get("type") in NOT_SAID:
        return
    style = step.get("style")
    is_thought = isinstance(style, dict) and style.get("type") == "thinking"
    pieces = []
    for part in objects(step.get("content")):
        kind = part.get("type")
        if kind == "text":
            pieces.append(str(part.get("text") or ""))
        elif kind == "toolCallRequest":
            place = str(part.get("toolCallRequestId") or part.get("callId") or f"call_{len(answer.turns)}")
            answer.say("".join(pieces))
            pieces = []
            answer.call(place, str(part.get("name")), part.get("parameters") or {})
        elif kind == "toolCallResult":
            called = part.get("toolCallRequestId") or part.get("toolCallId")
            answer.result(None if called is None else str(called), result_text(part.get("content")))
        else:
            answer.notes["blocks_not_read"] += 1
    words = "".join(pieces)
    if is_thought:
        answer.think(words)
    else:
        answer.say(words)


EXPORT = Export("lm_studio", is_head, each_record(rows_of), large_keys=(b'"name"', b'"createdAt"'))
