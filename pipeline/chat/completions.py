"""Reader of a choice of a chat completion, as servers of OpenAI's protocol return it."""

from collections.abc import Mapping
from typing import Any


def answer_of(choice: Mapping[str, Any]) -> dict[str, Any]:
    """Return the assistant's `turn` in a choice, and if it `stopped` by itself and `calls` a tool.

    Raises `LookupError`, `TypeError`, `AttributeError` or `ValueError` if the value is not a choice.
    """
    message = choice["message"]
    content = message.get("content") or ""
    reasoning = message.get("reasoning_content") or ""
    if not isinstance(content, str) or not isinstance(reasoning, str):
        raise TypeError("the content is not text")
    f"{content}{reasoning}".encode()  # Half of a surrogate pair can't be kept.
    turn = {"role": "assistant", "content": content}
    if reasoning:
        turn["reasoning_content"] = reasoning
    return {
        "turn": turn,
        "stopped": choice.get("finish_reason") != "length",
        "calls": bool(message.get("tool_calls")),
    }
