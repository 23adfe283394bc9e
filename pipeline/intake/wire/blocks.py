"""Anthropic's content blocks: a tool call is inside the assistant's content, its result inside the user's.

After the Messages API (anthropic-version 2023-06-01, blocks `text`, `thinking`, `tool_use`, `tool_result`,
`image` and others, <https://docs.anthropic.com/en/api/messages>). Claude Code, Cline and Roo Code store the
same blocks.
"""

from collections.abc import Mapping
from typing import Any

from pipeline.chat.rows import BadRow

CALL, RESULT = "tool_use", "tool_result"
MEDIA = ("image", "document", "file")  # types of parts that are not text


def has_blocks(content: Any) -> bool:
    """Return True for a content with a part that is a call or the result of one."""
    return isinstance(content, list) and any(_type_of(part) in (CALL, RESULT) for part in content)


def spread(message: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """Return the turns in OpenAI's form for a message with such blocks: the assistant's turn with its calls,
    or a turn for each result and then the user's.

    Raises `BadRow` for a call that is not the assistant's and for a result that is.
    """
    content = message["content"]
    calls = [part for part in content if _type_of(part) == CALL]
    results = [part for part in content if _type_of(part) == RESULT]
    rest = [part for part in content if _type_of(part) not in (CALL, RESULT)]
    if message.get("role", message.get("from")) == "assistant":
        if results:
            raise BadRow("bad_shape", f"{where} is the assistant's, and has the result of a tool")
        return [{**message, "content": rest or "", "tool_calls": list(map(_call, calls))}]
    if calls:
        raise BadRow("bad_tool_call", f"{where}: only the assistant calls tools")
    turns = [_result(part, where) for part in results]
    return [*turns, {**message, "content": rest}] if rest else turns


def _type_of(part: Any) -> Any:
    return part.get("type") if isinstance(part, dict) else None


def _call(part: dict[str, Any]) -> dict[str, Any]:
    return {"id": part.get("id"), "function": {"name": part.get("name"), "arguments": part.get("input")}}


def _result(part: dict[str, Any], where: str) -> dict[str, Any]:
    content = part.get("content")
    for inner in content if isinstance(content, list) else ():
        if isinstance(inner, dict) and inner.get("type") in MEDIA:
            raise BadRow("content_not_text", f"{where}: the result of a tool is not text")
    return {
        "role": "tool",
        "tool_call_id": part.get("tool_use_id"),
        "content": "" if content is None else content,
    }
