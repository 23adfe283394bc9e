"""A chat over the token budget: its exchanges, and how many of them fit into a part."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from pipeline.core.jsonl import dump_line
from pipeline.stages.curate.rules.text_parts import CHARACTERS_PER_TOKEN, Size, Span, farthest

Turns = list[dict[str, Any]]

MARKUP = 24  # characters that a template adds to a turn, about


def spans(weights: Sequence[int], size: Size, most: int) -> Iterator[Span]:
    """(first, one past the last, tokens) of neighboring exchanges, in each as many as `size` finds within
    `most` tokens.

    An exchange that doesn't fit comes alone. `weights`: their running sum, one more than there are exchanges
    (see `farthest`).
    """
    exchanges, first, rate = len(weights) - 1, 0, CHARACTERS_PER_TOKEN
    while first < exchanges:
        end, tokens, rate = farthest(weights, size, most, first, rate, enough=math.inf)
        yield first, max(end, first + 1), tokens if end > first else most + 1
        first = max(end, first + 1)


def exchanges_of(messages: Turns) -> tuple[Turns, list[Turns]]:
    """The leading system turns, and the rest cut in front of each user's turn that follows another side's."""
    start = next((i for i, turn in enumerate(messages) if turn["role"] != "system"), len(messages))
    exchanges: list[Turns] = []
    for before, turn in zip([None, *messages[start:]], messages[start:], strict=False):
        if before is None or (turn["role"] == "user" and before["role"] != "user"):
            exchanges.append([])
        exchanges[-1].append(turn)
    return messages[:start], exchanges


def text_of(turn: dict[str, Any]) -> str:
    """All that a template may show of a turn."""
    content: str = turn["content"]
    if len(turn) == 2:
        return content
    calls = dump_line({"": turn["tool_calls"]}).decode() if "tool_calls" in turn else ""
    return f"{content} {turn.get('reasoning_content', '')} {calls}"


def weight_of(turn: dict[str, Any]) -> int:
    """What a turn costs, in characters."""
    return len(text_of(turn)) + MARKUP
