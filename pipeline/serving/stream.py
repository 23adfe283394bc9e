"""The lines of a streamed answer (server-sent events of OpenAI's chat protocol), for whoever reads them."""

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Piece:
    """What one event adds: text of the answer, text of the reasoning, calls of tools, and in the last ones usage and llama-server's timings."""

    text: str = ""
    reasoning: str = ""
    calls: list[Any] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, Any] = field(default_factory=dict)
    error: str = ""

    @property
    def says_something(self) -> bool:
        """Whether the model said anything in it."""
        return bool(self.text or self.reasoning or self.calls)


def parse_line(line: str) -> Piece | None:
    """The piece in one line; None for lines that carry none (empty ones, comments, the end mark)."""
    if not line.startswith("data: ") or line == "data: [DONE]":
        return None
    chunk = json.loads(line.removeprefix("data: "))
    if "error" in chunk:
        return Piece(error=str(chunk["error"].get("message", chunk["error"])))
    deltas = [choice.get("delta", {}) for choice in chunk.get("choices", [])]
    return Piece(
        text="".join(delta.get("content") or "" for delta in deltas),
        reasoning="".join(delta.get("reasoning_content") or "" for delta in deltas),
        calls=[call for delta in deltas for call in delta.get("tool_calls") or []],
        usage=chunk.get("usage") or {},
        timings=chunk.get("timings") or {},
    )


def reason(body: bytes) -> str:
    """What a refusal's body says, in the server's words."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")[:300]
