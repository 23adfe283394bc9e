"""Items of OpenAI's Responses API in the logs of programs.

Items that no row can contain are left out and counted.
"""

from pipeline.intake.exports.blocks import blocks_of, text_of
from pipeline.intake.exports.export import Notes
from pipeline.intake.exports.view import View
from pipeline.intake.wire.draft import Draft
from pipeline.intake.wire.items import CALLS, RESULTS, call_of_item, reasoning_of_item, result_of_item


def add_item(draft: Draft, item: View, notes: Notes) -> None:
    """Add one item to the turns."""
    kind = item.get("type", "message")
    if kind == "message":
        _add_message(draft, item, notes)
    elif kind == "reasoning":
        words = reasoning_of_item(item)
        draft.answer(reasoning=words)
        notes["reasoning_encrypted"] += bool(item.get("encrypted_content")) and not words
    elif kind in CALLS:
        draft.answer(call=call_of_item(item))
    elif kind in RESULTS:
        draft.result(item.get("call_id"), text_of(blocks_of(result_of_item(item)), notes))
    elif kind in ("web_search_call", "image_generation_call", "tool_search_call", "tool_search_output"):
        notes["tools_of_the_service"] += 1
    else:
        notes["items_of_other_types"] += 1


def _add_message(draft: Draft, item: View, notes: Notes) -> None:
    role = item.get("role")
    words = text_of(blocks_of(item.get("content")), notes)
    if role == "assistant":
        draft.answer(words)
    elif role in ("system", "developer"):
        if draft.turns and draft.turns[-1]["role"] != "system":
            notes["system_in_the_middle"] += 1
        else:
            draft.say("system", words)
    else:
        draft.say("user", words)
