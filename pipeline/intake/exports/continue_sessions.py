"""Continue's sessions: `~/.continue/sessions/ID.json`, an object with `history`.

After continuedev/continue `core/index.d.ts` (`Session`, `ChatHistoryItem`, `ToolCallState`), versions 0.9 to
1.5, 2025-01 to 2026-10. An item of the history has a `message`, the `contextItems` that were put in front of
it, the `toolCallStates` of its calls with their output, and `reasoning`.
"""

from collections.abc import Iterator
from typing import Any

from pipeline.core.jsonl import BadLine
from pipeline.intake.exports.blocks import add_answer, blocks_of, text_of
from pipeline.intake.exports.export import Export, Notes, any_record, conversation_rows, each_record
from pipeline.intake.exports.view import View
from pipeline.intake.wire.draft import Draft, call_of, settled


def _is_session(value: View) -> bool:
    return value.has("history", list) and "sessionId" in value


def rows_of(session: View, notes: Notes) -> Iterator[dict[str, Any]]:
    """Yield the row of a session. Raises `BadLine` for an item without a message."""
    if not session.has("history", list):
        raise BadLine("bad_shape", "a session of Continue has a list history")
    history = session.elements("history")
    for number, item in enumerate(history, start=1):
        if not item.has("message", dict):
            raise BadLine("bad_shape", f"history {number} has no message: Continue 0.9 and later write one")
    answered = {item.object("message").text_or_none("toolCallId") for item in history}
    draft = Draft()
    for item in history:
        _add(draft, item, answered, notes)
    yield from conversation_rows(settled(draft.turns, notes), notes)


def _add(draft: Draft, item: View, answered: set[str | None], notes: Notes) -> None:
    message = item.object("message")
    role = message.get("role")
    blocks = blocks_of(message.get("content"))
    if role == "assistant":
        if item.object("reasoning").has("text", str):
            draft.answer(reasoning=item["reasoning"]["text"])
        add_answer(draft, blocks, notes)
        for call in message.objects("toolCalls"):
            if call.has("function", dict):
                function = call.object("function")
                draft.answer(call=call_of(function.get("name"), function.get("arguments"), call.get("id")))
        _add_outputs(draft, item, answered, notes)
    elif role == "thinking":
        draft.answer(reasoning=text_of(blocks, notes))
    elif role == "tool":
        draft.result(message.get("toolCallId"), text_of(blocks, notes))
    elif role == "system":
        draft.say("system", text_of(blocks, notes))
    elif role == "user":
        for context in item.objects("contextItems"):
            if context.has("content", str):
                draft.say("user", context["content"])
                notes["attachments_in_text"] += 1
        draft.say("user", text_of(blocks, notes))
    else:
        raise BadLine("bad_role", "a message's role is none of user, assistant, thinking, tool, system")


def _add_outputs(draft: Draft, item: View, answered: set[str | None], notes: Notes) -> None:
    """Add the outputs of tools, if no message of their own contains them.

    Older sessions have them only here.
    """
    for state in item.objects("toolCallStates"):
        identity = state.text_or_none("toolCallId")
        is_ended = state.get("status", "done") in ("done", "errored")
        outputs = [output["content"] for output in state.objects("output") if output.has("content", str)]
        if state.has("output", str):
            outputs = [state["output"]]
        if identity is not None and identity not in answered and is_ended and outputs:
            draft.result(identity, text_of(outputs, notes))


EXPORT = Export(
    "continue", any_record(_is_session), each_record(rows_of), large_keys=(b'"sessionId"', b'"history"')
)
