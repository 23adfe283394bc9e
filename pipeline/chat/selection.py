"""The chats of a file used for measuring or calibrating, whatever kinds of rows a project has.

Other rows are used with the wanted answer: a preference with its chosen one, a conversation with a thumb up
as it is, a prompt with the answer that its checker expects. Measurements use only the chats of a file if it
has any, because they may have been put there to be scored. If it has none, measurements of only the next
token (perplexity, divergence) use its texts. Calibration and distillation need much text of the kind that is
served. There the other rows are used in addition to the chats and texts as soon as they outnumber them.

Held-out rows are drawn by a seed, because curation writes them file by file and the first ones would all come
from one. The draw is by a hash of the row's id. So only `count` rows are in memory, and added or removed rows
don't change the draw of the others.
"""

import hashlib
import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import filterfalse, islice
from pathlib import Path
from typing import Any

from pipeline.chat.rows import OTHERS, TRAINED, Row, calling_turns, completed, is_copy
from pipeline.chat.tokens import Encoded, encodable
from pipeline.config.scorers import TOOL_CALLS
from pipeline.core.errors import DataError
from pipeline.core.jsonl import read_rows

# Candidates for each wanted row, because some are longer than the context or can't be rendered.
SPARE = 4
# Seed of the held-out rows, the same ones for every model. Intervals and the sampler use it too.
SEED = 42
# Rows that compared models answer: a share of them is certain within 7 points of 100.
COMPARED_ROWS = 200


def chats_in(path: Path) -> Iterator[Row]:
    """Yield the chats of a file of rows, or the rows used instead if there are none."""
    has_chats = False
    for row in read_rows(path):
        if row.get("kind", "chat") == "chat":
            has_chats = True
            yield row
    if not has_chats:
        yield from (chat for row in read_rows(path) if (chat := stand_in(row)))


def texts_in(path: Path) -> Iterator[Row]:
    """Yield the rows of kind text of a file."""
    return (row for row in read_rows(path) if row.get("kind") == "text")


def measured_in(path: Path) -> Iterator[Row]:
    """Yield the rows for perplexity and divergence: a file's chats, or its texts if there are none."""
    has_chats = False
    for row in chats_in(path):
        has_chats = True
        yield row
    if not has_chats:
        yield from texts_in(path)


def why_unanswered(path: Path) -> str | None:
    """Return a sentence on a file of texts without a chat, and so without a question; None for others."""
    if next(chats_in(path), None) is None and next(texts_in(path), None):
        return f"no row of {path.name} is a chat, all are texts"
    return None


def learned_in(path: Path, stand_ins: bool | None = None) -> Iterator[Row]:
    """Yield the chats and texts of a file, and its other rows as chats if these are more.

    `stand_ins` is the result of `has_stand_ins`, if it is known already, because it takes a pass over the
    file.
    """
    also = has_stand_ins(path) if stand_ins is None else stand_ins
    for row in read_rows(path):
        if row.get("kind", "chat") in TRAINED:
            yield row
        elif also and (chat := stand_in(row)):
            yield chat


def has_stand_ins(path: Path) -> bool:
    """Return True if a file's other rows with a wanted answer are more than its chats and texts."""
    lead = 0
    for row in read_rows(path):
        if row.get("kind", "chat") in TRAINED:
            lead -= 1
        elif stand_in(row):
            lead += 1
    return lead > 0


def stand_in(row: Row) -> Row | None:
    """Return the row as a chat that ends in the wanted answer; None if it has none."""
    if row.get("kind", "chat") in TRAINED or not row.get("label", True):
        return None
    prompt: Row = {key: row[key] for key in ("id", "source", "domain", "tools", OTHERS) if key in row}
    return prompt | {"kind": "chat", "messages": completed(row)}


def drawn(rows: Iterable[Row], count: int, seed: int = SEED) -> list[Row]:
    """Return `count` random `rows` (all if there are fewer), equally likely, and the same for the same seed.

    Copies of a row that curation repeats are not drawn.
    """
    return heapq.nsmallest(
        count,
        filterfalse(is_copy, rows),
        key=lambda row: hashlib.sha256(f"{seed}:{row['id']}".encode()).digest(),
    )


def encoded_rows(tokenizer: Any, rows: Path, count: int, ctx_size: int) -> list[Encoded]:
    """Return the sequences of up to `count` drawn chats, or texts if there is no chat, in at most `ctx_size`
    tokens each. Rows that the template can't render are skipped.
    """
    candidates = drawn(measured_in(rows), SPARE * count)
    return list(islice(encodable(tokenizer, candidates, ctx_size), count))


def answerable_rows(rows: Path, count: int, scorers: Sequence[str]) -> list[Row]:
    """Return `count` drawn chats that end in a turn which one of `scorers` can score (`questions`).

    Raises `DataError` if there is none.
    """
    chats = drawn(questions(chats_in(rows), scorers), count)
    if not chats:
        raise DataError(
            "Q-CHAT-004",
            f"no chat of {rows} {endings(scorers)} that can be scored: set evaluate.scorers to [], or fix "
            "the chats",
        )
    return chats


def endings(scorers: Sequence[str]) -> str:
    """Return a phrase on the turns that a chat needs for one of `scorers`."""
    words = []
    if scores_words(scorers):
        words.append("ends in an answer")
    if TOOL_CALLS in scorers:
        words.append("calls a tool that it offers")
    return " or ".join(words)


def scores_words(scorers: Sequence[str]) -> bool:
    """Return True if one of `scorers` scores answers in words."""
    return bool(set(scorers) - {TOOL_CALLS})


def questions(chats: Iterable[Row], scorers: Sequence[str]) -> Iterator[Row]:
    """Yield each chat in the form in which it is asked: up to its last turn if that is in words and a scorer
    scores words, and up to the last turn that calls tools if `tool_calls` is among the scorers.
    """
    asks_words = scores_words(scorers)
    for row in chats:
        if asks_words and is_answerable(row):
            yield row
        called = up_to_calls(row) if TOOL_CALLS in scorers else None
        if called:
            yield called


def up_to_calls(row: Row) -> Row | None:
    """Return the chat up to its last trained turn that calls tools.

    The chat has an id of its own if other turns follow. None if there is no such turn, or if the row offers
    no tools: llama-server then parses no calls.
    """
    turns = row["messages"]
    calling = list(filter(None, calling_turns(row)))  # There is no question before the first turn.
    if not calling or not row.get("tools"):
        return None
    end = calling[-1] + 1
    if end == len(turns):
        return row
    return {**row, "id": f"{row['id']}#{end}", "messages": turns[:end]}


def is_answerable(row: Row) -> bool:
    """Return True if a chat ends in an assistant's complete text: a part of it is not a reference."""
    last = row["messages"][-1]
    return last["role"] == "assistant" and not last.get("tool_calls") and "cut" not in last
