"""Continue's sessions: `~/.continue/sessions/ID.json`, an object with `history`.

After continuedev/continue `core/index.d.ts` (`Session`, `ChatHistoryItem`, `ToolCallState`), versions 0.9 to
1.5, 2025-01 to 2026-10. An item of the history has a `message`, the `contextItems` that were put in front of
it, the `toolCallStates` of its calls with their output, and `reasoning`.
"""

from collections.abc import Iterator
from typing import Any

from pipeline.core.jsonl import BadLine
from pipeline.intake.exports.blocks import add_answer, blocks_of, text_of
from pipeline.intake.exports.export import Export, Head, Notes, each_record
from pipeline.intake.exports.view import objects
from pipeline.intake.wire.draft import Draft, call_of, settled


def is_head(head: Head) -> bool:
    """Return True for a session."""
    return any(isinstance(value.get("history"), list) and "sessionId" in value for value in head.objects())


def rows_of(session: dict[str, Any], notes: Notes) -> Iterator[dict[str, Any]]:
    """Yield the row of a session. Raises `BadLine` for an item without a message."""
    history = session.get("history")
    if not isinstance(history, list):
        raise BadLine("bad_shape", "a session of Continue has a list history")
    draft = Draft()
    messages = []
    for number, item in enumerate(history, start=1):
        message = item.get("message") if isinstance(item, dict) else None
        if not isinstance(message, dict):
            raise BadLine("bad_shape", f"history {number} has no message: Continue 0.9 and later write one")
        messages.append(message)
    answered = {
        message.get("toolCallId") for message in messages if isinstance(message.get("toolCallId"), str)
    }
    for item, message in zip(history, messages, strict=True):
        _add(draft, item, message, notes)
        if message.get("role") == "assistant":
            _add_outputs(draft, item, answered, notes)
    turns = settled(draft.turns, notes)
    if turns:
        yield {"messages": turns}
    else:
        notes["empty_conversations"] += 1


def _add(draft: Draft, item: dict[str, Any], message: dict[str, Any], notes: Notes) -> None:
    role = message.get("role")
    blocks = blocks_of(message.get("content"))
    if role == "assistant":
        reasoning = item.get("reasoning")
        if isinstance(reasoning, dict) and isinstance(reasoning.get("text"), str):
            draft.answer(reasoning=reasoning["text"])
        add_answer(draft, blocks, notes)
        for call in objects(message.get("toolCalls")):
            _call(draft, call)
    elif role == "thinking":
        draft.answer(reasoning=text_of(blocks, notes))
    elif role == "tool":
        draft.result(message.get("toolCallId"), text_of(blocks, notes))
    elif role == "system":
        draft.say("system", text_of(blocks, notes))
    elif role == "user":
        for context in objects(item.get("contextItems")):
            if isinstance(context.get("content"), str):
                draft.say("user", context["content"])
                notes["attachments_in_text"] += 1
        draft.say("user", text_of(blocks, notes))
    else:
        raise BadLine("bad_role", "a message's role is none of user, assistant, thinking, tool, system")


def _call(draft: Draft, call: dict[str, Any]) -> None:
    function = call.get("function")
    if isinstance(function, dict):
        draft.answer(call=call_of(function.get("name"), function.get("arguments"), call.get("id")))


def _add_outputs(draft: Draft, item: dict[str, Any], answered: set[Any], notes: Notes) -> None:
    """Add the outputs of tools, if no message of their own contains them.

    Older sessions have them only here.
    """
    for state in objects(item.get("toolCallStates")):
        identity = state.get("toolCallId")
        if not isinstance(identity, str) or identity in answered:
            continue
        stated = state.get("output")
        outputs = [output.get("content") for output in objects(stated)]
        texts = [text for text in outputs if isinstance(text, str)]
        if isinstance(stated, str):
            texts = [stated]
        if state.get("status", "done") in ("done", "errored") and texts:
            draft.result(identity, text_of(texts, notes))


EXPORT = Export("continue", is_head, each_record(rows_of), large_keys=(b'"sessionId"', b'"history"'))
