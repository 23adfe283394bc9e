"""Cursor's conversations, from its database (`cursor_database` names the versions) or as the JSON of a
`composerData` with its bubbles inside.

A bubble of type 1 is the user's, of type 2 the assistant's: a text, a thought, or a call (`toolFormerData`)
with its result in the same bubble.
"""

from collections.abc import Iterator
from typing import Any

from pipeline.core.jsonl import BadLine
from pipeline.intake.exports.cursor_database import MISSING
from pipeline.intake.exports.export import Export, Notes, any_record, conversation_rows, each_record
from pipeline.intake.exports.view import View, text_in
from pipeline.intake.wire.draft import Draft, call_of, settled

USER, ASSISTANT = 1, 2


def _is_composer(value: View) -> bool:
    """Return True for a conversation with its bubbles, or with the names of these."""
    bubbles = ("conversation", "fullConversationHeadersOnly")
    return "composerId" in value and not value.keys().isdisjoint(bubbles)


def rows_of(composer: View, notes: Notes) -> Iterator[dict[str, Any]]:
    """Yield the row of a conversation, none for an empty draft. Raises `BadLine` for one in another form."""
    if composer.get("fullConversationHeadersOnly") and not composer.get("conversation"):
        raise BadLine("bad_shape", "it names its bubbles and does not hold them: give the entire state.vscdb")
    if not composer.has("conversation", list):
        raise BadLine("bad_shape", "a conversation of Cursor has a list conversation")
    bubbles = composer.elements("conversation")
    draft = Draft()
    for number, bubble in enumerate(bubbles, start=1):
        if bubble.get("type") not in (USER, ASSISTANT):
            why = f"conversation {number} is neither the user's bubble (type 1) nor the model's (2)"
            raise BadLine("bad_role", why)
        if bubble.get(MISSING) is True:
            if bubble["type"] == USER:
                raise BadLine(
                    "bad_shape", f"conversation {number}: what the user said is not in the database"
                )
            notes["turns_missing"] += 1
        _add(draft, bubble, notes)
        _add_call(draft, bubble, f"call_{number}", is_last=number == len(bubbles), notes=notes)
    yield from conversation_rows(settled(draft.turns, notes), notes)


def _add(draft: Draft, bubble: View, notes: Notes) -> None:
    images = len(bubble.array("images"))
    notes["attachments_image"] += images
    words = bubble.text("text") + "\n[image]" * images
    if bubble["type"] == USER:
        draft.say("user", words)
    else:
        draft.answer(words, text_in(bubble.get("thinking")) or "")


def _add_call(draft: Draft, bubble: View, name: str, *, is_last: bool, notes: Notes) -> None:
    """Add the call of a bubble and its result.

    A call that was refused or interrupted has no result. It isn't read, unless it is the last one of the
    conversation.
    """
    tool = bubble.object("toolFormerData")
    if bubble["type"] == USER or not tool.get("name"):
        return
    result = tool.text_or_none("result")
    if result is None and not is_last:
        notes["calls_without_result"] += 1
        return
    identity = tool.get("toolCallId") or name
    draft.answer(call=call_of(tool["name"], tool.get("rawArgs", tool.get("params")), identity))
    if result is not None:
        draft.result(identity, result)


EXPORT = Export("cursor", any_record(_is_composer), each_record(rows_of))
