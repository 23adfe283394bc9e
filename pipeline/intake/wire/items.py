"""Items of OpenAI's Responses API: messages, reasoning, calls and their results, each an item of its own.

After <https://platform.openai.com/docs/api-reference/responses> (2025-03 to 2026-10). `input` is text or a
list of items, `output` is a list of items, `instructions` is the system text.
"""

from typing import Any

from pipeline.chat.rows import BadRow
from pipeline.core.jsonl import lax_text
from pipeline.intake.wire.draft import Call, Draft, call_of
from pipeline.intake.wire.shapes import need

CALLS = ("function_call", "custom_tool_call", "local_shell_call")
RESULTS = ("function_call_output", "custom_tool_call_output", "local_shell_call_output")
PARTS = ("input_text", "output_text", "text")


def is_items(value: Any) -> bool:
    """Return True for a list with an item that is no chat message: another type, or other parts."""
    for item in value if isinstance(value, list) else ():
        if isinstance(item, dict) and ("type" in item or _is_part(item.get("content"))):
            return True
    return False


def _is_part(content: Any) -> bool:
    first = content[0] if isinstance(content, list) and content else None
    return isinstance(first, dict) and first.get("type") in ("input_text", "output_text")


def call_of_item(item: dict[str, Any]) -> Call:
    """Return the call of an item. The text of a custom tool's call becomes its argument `input`."""
    identity = item.get("call_id") or item.get("id")
    if item.get("type") == "local_shell_call":
        action = item.get("action")
        if isinstance(action, dict):
            action = {key: value for key, value in action.items() if key != "type" and value is not None}
        return call_of("local_shell", action, identity)
    if item.get("type") == "custom_tool_call":
        return call_of(item.get("name"), {"input": item.get("input")}, identity)
    return call_of(item.get("name"), item.get("arguments"), identity)


def result_of_item(item: dict[str, Any]) -> str | list[Any]:
    """Return the output of a tool: text, or parts. Another value becomes JSON text. Raises `BadLine` if it is
    nested too deep.
    """
    output = item.get("output")
    if isinstance(output, dict) and isinstance(output.get("content"), str):  # the form of older rollouts
        return str(output["content"])
    if output is None:
        return ""
    is_parts = isinstance(output, list) and all(isinstance(part, dict) and "type" in part for part in output)
    return output if isinstance(output, str) or is_parts else lax_text(output)


def reasoning_of_item(item: dict[str, Any]) -> str:
    """Return the reasoning of an item, or its summary if there is none."""
    for key in ("content", "summary"):
        parts = item.get(key)
        if not isinstance(parts, list):
            continue
        texts = [part.get("text") for part in parts if isinstance(part, dict)]
        words = "\n\n".join(text for text in texts if isinstance(text, str))
        if words:
            return words
    return ""


def turns_of_items(value: Any, where: str) -> list[dict[str, Any]]:
    """Return the turns of `input` and `output` of the Responses API.

    Raises `BadRow` for an item that no row can contain.
    """
    draft = Draft()
    for number, item in enumerate(need(list, value, where, "bad_shape"), start=1):
        place = f"{where} {number}"
        if not isinstance(item, dict):
            raise BadRow("bad_shape", f"{place} is not an item")
        kind = item.get("type", "message")
        if kind == "message":
            _add_message(draft, item, place)
        elif kind == "reasoning":
            draft.answer(reasoning=reasoning_of_item(item))
        elif kind in CALLS:
            draft.answer(call=call_of_item(item))
        elif kind in RESULTS:
            output = result_of_item(item)
            draft.result(item.get("call_id"), output if isinstance(output, str) else _text(output, place))
        else:
            raise BadRow("unsupported_field", f"{place} is an item of type {kind}, which would be lost")
    return draft.turns


def _add_message(draft: Draft, item: dict[str, Any], where: str) -> None:
    role = item.get("role")
    content = item.get("content")
    words = content if isinstance(content, str) else _text(need(list, content, where, "bad_shape"), where)
    if role == "assistant":
        draft.answer(words)
    elif role in ("user", "system", "developer"):
        draft.say("user" if role == "user" else "system", words)
    else:
        raise BadRow("bad_role", f"{where}: the role is none of user, assistant, system, developer")


def _text(parts: list[Any], where: str) -> str:
    texts = []
    for number, part in enumerate(parts, start=1):
        if (
            not isinstance(part, dict)
            or part.get("type") not in PARTS
            or not isinstance(part.get("text"), str)
        ):
            raise BadRow("content_not_text", f"{where}: part {number} is not text")
        texts.append(part["text"])
    return "\n".join(texts)
