"""The lines of a streamed answer (server-sent events of OpenAI's chat protocol), for whoever reads them."""

import json
from dataclasses import dataclass, field
from typing import Any

BROKEN_OFF = "see logs/, start it again with `quench serve`"  # what to do about a server that broke off


@dataclass(frozen=True)
class Piece:
    """What one event adds: text of the answer or the reasoning, calls of tools; the last ones have usage and
    llama-server's timings."""

    text: str = ""
    reasoning: str = ""
    calls: list[Any] = field(default_factory=list)
    usage: dict[str, float] = field(default_factory=dict)
    timings: dict[str, float] = field(default_factory=dict)
    error: str = ""

    @property
    def says_something(self) -> bool:
        """Whether the model said anything in it."""
        return bool(self.text or self.reasoning or self.calls)


def parse_line(line: str) -> Piece | None:
    """The piece in one line; None for lines without one (empty, comments, the end mark), an error for what is
    not of the protocol."""
    if not line.startswith("data: ") or line == "data: [DONE]":
        return None
    try:
        return _piece(json.loads(line.removeprefix("data: ")))
    except (ValueError, TypeError, AttributeError):
        return Piece(error="a line of the answer is not an event of OpenAI's protocol")


def _piece(chunk: dict[str, Any]) -> Piece:
    error = chunk.get("error")
    if error is not None:
        return Piece(error=str((error.get("message") if isinstance(error, dict) else error) or error))
    deltas = [choice.get("delta") or {} for choice in chunk.get("choices") or []]
    return Piece(
        text="".join(delta.get("content") or "" for delta in deltas),
        reasoning="".join(delta.get("reasoning_content") or "" for delta in deltas),
        calls=[call for delta in deltas for call in delta.get("tool_calls") or []],
        usage=_numbers(chunk.get("usage")),
        timings=_numbers(chunk.get("timings")),
    )


def _numbers(values: dict[str, Any] | None) -> dict[str, float]:
    return {name: value for name, value in (values or {}).items() if isinstance(value, int | float)}


def reason(body: bytes) -> str:
    """What a refusal's body says, in the server's words."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")[:300]
