"""Anthropic's content blocks in the logs of programs. Blocks that no row can contain are left out and
counted, because a long session is not worth less for one image in it.
"""

from collections.abc import Callable
from typing import Any

from pipeline.intake.exports.answers import result_text
from pipeline.intake.exports.export import Notes
from pipeline.intake.wire.blocks import CALL, RESULT
from pipeline.intake.wire.draft import Draft, call_of

TEXTS = ("text", "input_text", "output_text", "summary_text", "reasoning_text")
# Types of other blocks, and their replacement texts.
NAMES = {
    **dict.fromkeys(("image", "image_url", "imageUrl", "input_image"), "image"),
    **dict.fromkeys(("document", "file", "input_file"), "document"),
}
# Types of blocks of tools that the service runs while it answers: web_search_tool_result,
# advisor_tool_result.
OF_THE_SERVICE = ("server_tool_use", "mcp_tool_use")
RESULT_OF_THE_SERVICE = "_tool_result"


def blocks_of(content: Any) -> list[Any]:
    """Return the blocks of a content. A text is one block; anything else is an empty text."""
    if isinstance(content, list):
        return content
    return [content if isinstance(content, str) else ""]


def add_answer(draft: Draft, content: list[Any], notes: Notes) -> None:
    """Add the assistant's blocks: text, reasoning (without its signature) and calls."""
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == CALL:
            draft.answer(call=call_of(part.get("name"), part.get("input"), part.get("id")))
        elif kind == "thinking":
            draft.answer(reasoning=str(part.get("thinking") or ""))
        elif kind == "redacted_thinking":
            notes["reasoning_encrypted"] += 1
        elif kind in OF_THE_SERVICE or str(kind).endswith(RESULT_OF_THE_SERVICE):
            notes["tools_of_the_service"] += 1
        else:
            draft.answer(text_of([part], notes))


def add_results(
    draft: Draft,
    content: list[Any],
    notes: Notes,
    without: Callable[[str, Notes], str] = lambda text, notes: text,
) -> list[Any]:
    """Add the results of tools among the user's blocks, and return the other blocks. Raises `BadLine` for a
    result that is nested too deep.
    """
    rest = []
    for part in content:
        if isinstance(part, dict) and part.get("type") == RESULT:
            inner = part.get("content")
            words = text_of(inner, notes) if isinstance(inner, list) else result_text(inner)
            draft.result(part.get("tool_use_id"), without(words, notes))
        else:
            rest.append(part)
    return rest


def text_of(content: list[Any], notes: Notes) -> str:
    """Return the text of blocks; another block leaves its name in brackets, `[image]`, and is counted."""
    texts = []
    for part in content:
        kind = part.get("type", "text") if isinstance(part, dict) else "text"
        words = part.get("text") if isinstance(part, dict) else part
        if kind in TEXTS and isinstance(words, str):
            texts.append(words)
        else:
            name = NAMES.get(str(kind), "part")
            notes[f"attachments_{name}"] += 1
            texts.append(f"[{name}]")
    return "\n".join(texts)
