"""Which chats of a file are measured or calibrated with, whatever kinds of rows a project has.

Other rows stand in with the answer that is wanted: a preference with its chosen one, a conversation with a
thumb up as it is, a prompt with the answer that its checker expects. What measures takes a file's chats alone
if it has any, for they may have been put there to be scored. Where it has none, what looks at the next token
alone (perplexity, divergence) takes its texts. What calibrates or distills needs much text of the kind that
is served: there the others stand in beside the chats and texts as soon as they are more.

Held-out rows are drawn by a seed, since curation writes them file by file and the first ones would all be of
one. The draw is by a hash of the row's id: nothing but `count` rows is held, and rows that are added or leave
move no others.
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

# as many candidates as rows that are wanted, since some are longer than the context or can't be rendered
SPARE = 4
# draws the held-out rows, the same ones for every model; intervals and the sampler take it too
SEED = 42
# rows that models which are compared answer: a share of them is certain within 7 points of 100
COMPARED_ROWS = 200


def chats_in(path: Path) -> Iterator[Row]:
    """The chats of a file of rows; where there are none, what stands in for them."""
    has_chats = False
    for row in read_rows(path):
        if row.get("kind", "chat") == "chat":
            has_chats = True
            yield row
    if not has_chats:
        yield from (chat for row in read_rows(path) if (chat := stand_in(row)))


def texts_in(path: Path) -> Iterator[Row]:
    """The rows of kind text of a file."""
    return (row for row in read_rows(path) if row.get("kind") == "text")


def measured_in(path: Path) -> Iterator[Row]:
    """What perplexity and divergence are measured on: a file's chats; where there are none, its texts."""
    has_chats = False
    for row in chats_in(path):
        has_chats = True
        yield row
    if not has_chats:
        yield from texts_in(path)


def why_unanswered(path: Path) -> str | None:
    """A sentence on a file that holds texts and no chat, so that nothing in it can be asked; else None."""
    if next(chats_in(path), None) is None and next(texts_in(path), None):
        return f"no row of {path.name} is a chat, all are texts"
    return None


def learned_in(path: Path, stand_ins: bool | None = None) -> Iterator[Row]:
    """The chats and texts of a file, and what stands in for its other rows if these are more; `stand_ins` is
    what `has_stand_ins` gave, if it was asked before, for it takes a reading of the file.
    """
    also = has_stand_ins(path) if stand_ins is None else stand_ins
    for row in read_rows(path):
        if row.get("kind", "chat") in TRAINED:
            yield row
        elif also and (chat := stand_in(row)):
            yield chat


def has_stand_ins(path: Path) -> bool:
    """Whether a file's other rows with a wanted answer are more than its chats and texts."""
    lead = 0
    for row in read_rows(path):
        if row.get("kind", "chat") in TRAINED:
            lead -= 1
        elif stand_in(row):
            lead += 1
    return lead > 0


def stand_in(row: Row) -> Row | None:
    """The row as a chat that ends in the wanted answer; None if it has none."""
    if row.get("kind", "chat") in TRAINED or not row.get("label", True):
        return None
    prompt: Row = {key: row[key] for key in ("id", "source", "domain", "tools", OTHERS) if key in row}
    return prompt | {"kind": "chat", "messages": completed(row)}


def drawn(rows: Iterable[Row], count: int, seed: int = SEED) -> list[Row]:
    """`count` random `rows` (all if there are fewer), equally likely; the same rows for the same seed. Of a
    row that curation repeats no copy is drawn.
    """
    return heapq.nsmallest(
        count,
        filterfalse(is_copy, rows),
        key=lambda row: hashlib.sha256(f"{seed}:{row['id']}".encode()).digest(),
    )


def encoded_rows(tokenizer: Any, rows: Path, count: int, ctx_size: int) -> list[Encoded]:
    """The sequences of up to `count` drawn chats, or texts where there is no chat, in at most `ctx_size`
    tokens each; what the template can't render is passed over.
    """
    candidates = drawn(measured_in(rows), SPARE * count)
    return list(islice(encodable(tokenizer, candidates, ctx_size), count))


def answerable_rows(rows: Path, count: int, scorers: Sequence[str]) -> list[Row]:
    """`count` drawn chats that end in a turn which one of `scorers` can score (`questions`). Raises
    `DataError` if there is none.
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
    """Say what a chat must have for one of `scorers`."""
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
    """Each chat as it is asked: up to its last turn if that is in words and a scorer scores words, and up to
    the last turn that calls tools if `tool_calls` is among the scorers.
    """
    asks_words = scores_words(scorers)
    for row in chats:
        if asks_words and is_answerable(row):
            yield row
        called = up_to_calls(row) if TOOL_CALLS in scorers else None
        if called:
            yield called


def up_to_calls(row: Row) -> Row | None:
    """The chat up to its last trained turn that calls tools, with an id of its own if other turns follow.

    None if there is no such turn, or the row offers no tools: llama-server then reads no calls.
    """
    turns = row["messages"]
    calling = list(filter(None, calling_turns(row)))  # nothing is asked before the first turn
    if not calling or not row.get("tools"):
        return None
    end = calling[-1] + 1
    return row if end == len(turns) else {**row, "id": f"{row['id']}#{end}", "messages": turns[:end]}


def is_answerable(row: Row) -> bool:
    """Return True if a chat ends in an assistant's words, and in all of them: a part is no reference."""
    last = row["messages"][-1]
    return last["role"] == "assistant" and not last.get("tool_calls") and "cut" not in last
