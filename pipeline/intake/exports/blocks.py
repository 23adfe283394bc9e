"""Anthropic's content blocks in the logs of programs. Blocks that no row can contain are left out and
counted, because a long session is not worth less for one image in it.
"""

from collections.abc import Callable
from typing import Any

from pipeline.intake.exports.answers import result_text
from pipeline.intake.exports.export import Notes
from pipeline.intake.exports.view import View, text_in
from pipeline.intake.wire.blocks import CALL, RESULT
from pipeline.intake.wire.draft import Draft, call_of


def blocks_of(content: Any) -> list[Any]:
    """Return the blocks of a content. A text is one block; anything else is an empty text."""
    if isinstance(content, list):
        return content
    return [content if isinstance(content, str) else ""]


def add_answer(draft: Draft, content: list[Any], notes: Notes) -> None:
    """Add the assistant's blocks: text, reasoning (without its signature) and calls."""
    for part in content:
        block = View(part)
        kind = block.get("type")
        if kind == CALL:
            draft.answer(call=call_of(block.get("name"), block.get("input"), block.get("id")))
        elif kind == "thinking":
            draft.answer(reasoning=block.label("thinking"))
        elif kind == "redacted_thinking":
            notes["reasoning_encrypted"] += 1
        elif _is_of_the_service(kind):
            notes["tools_of_the_service"] += 1
        else:
            draft.answer(text_of([part], notes))


def _is_of_the_service(kind: Any) -> bool:
    """Return True for a tool that the service runs while it answers, and for its result, such as
    web_search_tool_result.
    """
    return kind in ("server_tool_use", "mcp_tool_use") or str(kind).endswith("_tool_result")


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
        block = View(part)
        if block.get("type") == RESULT:
            is_list = block.has("content", list)
            words = text_of(block["content"], notes) if is_list else result_text(block.get("content"))
            draft.result(block.get("tool_use_id"), without(words, notes))
        else:
            rest.append(part)
    return rest


TEXTS = ("text", "input_text", "output_text", "summary_text", "reasoning_text")
# Types of other blocks, and their replacement texts.
NAMES = {
    **dict.fromkeys(("image", "image_url", "imageUrl", "input_image"), "image"),
    **dict.fromkeys(("document", "file", "input_file"), "document"),
}


def text_of(content: list[Any], notes: Notes) -> str:
    """Return the text of blocks; another block leaves its name in brackets, `[image]`, and is counted."""
    texts = []
    for part in content:
        kind = View(part).get("type", "text")
        words = text_in(part)
        if kind in TEXTS and words is not None:
            texts.append(words)
        else:
            name = NAMES.get(str(kind), "part")
            notes[f"attachments_{name}"] += 1
            texts.append(f"[{name}]")
    return "\n".join(texts)
