"""Which held-out rows are measured: drawn by a seed, since curation writes them file by file and the first
ones would all be of one.

The draw is by a hash of the row's id: nothing but `count` rows is held, and rows that are added or leave move
no others.
"""

import hashlib
import heapq
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from pipeline.chat.tokens import Encoded, Row, encodable
from pipeline.chat.wanted import chats_in
from pipeline.core.errors import DataError

# as many candidates as rows that are wanted, since some are longer than the context or can't be rendered
SPARE = 4


def drawn(rows: Iterable[Row], count: int, seed: int) -> list[Row]:
    """`count` of `rows` (all of them, where they are fewer), each as likely as another; the same ones for the
    same seed.
    """
    return heapq.nsmallest(
        count, rows, key=lambda row: hashlib.sha256(f"{seed}:{row['id']}".encode()).digest()
    )


def encoded_rows(tokenizer: Any, rows: Path, count: int, seed: int, ctx_size: int) -> list[Encoded]:
    """The sequences of `count` drawn chats that the template can render and `ctx_size` tokens hold; none, if
    there are none.
    """
    candidates = drawn(chats_in(rows), SPARE * count, seed)
    return list(islice(encodable(tokenizer, candidates, ctx_size), count))


def answerable_rows(rows: Path, count: int, seed: int) -> list[Row]:
    """`count` drawn chats whose last turn is an answer in words: a call of a tool is not scored. Raises
    `DataError` if there is none.
    """
    found = drawn(filter(is_answerable, chats_in(rows)), count, seed)
    if not found:
        raise DataError(
            "Q-CHAT-004",
            f"no chat of {rows} ends in an answer that can be scored: set evaluate.scorers to [], or fix "
            "the chats",
        )
    return found


def is_answerable(row: Row) -> bool:
    """Whether a chat ends in what an assistant says in words."""
    last = row["messages"][-1]
    return last["role"] == "assistant" and not last.get("tool_calls")
