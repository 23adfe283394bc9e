"""Splitting of conversations that are longer than a row may be, in front of the user's turns."""

from collections.abc import Iterator
from typing import Any

import orjson

from pipeline.core.jsonl import BadLine

# keys of rows that are cut; with any other key each part may belong to the whole
CUT_KEYS = {"messages", "tools"}


def cut_rows(row: dict[str, Any], max_bytes: int) -> Iterator[dict[str, Any] | BadLine]:
    """Yield rows of at most `max_bytes`, each with the system turn and the tools. Together they are the
    conversation, in order.

    An exchange that is longer by itself gives a `BadLine`.
    """
    turns = row.get("messages")
    if not CUT_KEYS.issuperset(row) or not isinstance(turns, list):
        yield BadLine("too_long", f"a conversation of more than {max_bytes:,} bytes")
        return
    leading = [turn for turn in turns[:1] if turn.get("role") == "system"]
    shared = {**row, "messages": leading}
    free = max_bytes - len(orjson.dumps(shared))
    kept: list[Any] = []
    used = 0
    for number, (exchange, size) in enumerate(_exchanges(turns[len(leading) :]), start=1):
        if kept and (used + size > free):
            yield {**shared, "messages": leading + kept}
            kept = []
            used = 0
        if size > free:
            yield BadLine(
                "too_long", f"exchange {number} has {size:,} bytes; a row has at most {max_bytes:,}"
            )
        else:
            kept += exchange
            used += size
    if kept:
        yield {**shared, "messages": leading + kept}


def _exchanges(turns: list[Any]) -> Iterator[tuple[list[Any], int]]:
    """Yield the turns from one of the user's to the next, and their bytes as JSON."""
    exchange: list[Any] = []
    size = 0
    for turn in turns:
        if exchange and turn.get("role") == "user":
            yield exchange, size
            exchange = []
            size = 0
        exchange.append(turn)
        size += len(orjson.dumps(turn)) + 1  # 1 for a comma
    if exchange:
        yield exchange, size
