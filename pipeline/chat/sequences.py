"""Encoding of rows as the sequences that a training method learns from: chats and text as they are, pairs of
answers, single answers with a thumb up or down.

An answer to be compared is a chat that ends with it and trains nothing else. So it is rendered, labeled and
checked like any other (`pipeline.chat.tokens`).
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from pipeline.chat.prompts import as_chat, read_only
from pipeline.chat.rendering import Unrenderable
from pipeline.chat.rows import Row
from pipeline.chat.tokens import NOT_LEARNED, TOGETHER, Encoded, encode, not_learned
from pipeline.config.methods import METHODS, Method

CHOSEN, REJECTED, LEARNED = 1, -1, 0  # roles of a sequence
NAMES = {CHOSEN: "chosen", REJECTED: "rejected"}
CUT = "cut_answer"  # reason of a chat that needs a reference, but has only a part of it
EQUAL = "equal_answers"  # reason of a pair whose answers are identical to the model


def encode_rows(
    tokenizer: Any, rows: Iterable[Row], method: Method
) -> Iterator[tuple[Row, list[Encoded] | Unrenderable]]:
    """Yield each row with the sequences that `method` learns from it, or with the reason why it has none.

    For a preference these are the chosen and the rejected answer, for feedback the last answer; each has its
    `role`. For a prompt it is the expected answer. All rows are those of `pipeline.chat.rows`.
    """
    if not METHODS[method].answers:
        for row, plain in encode(tokenizer, rows):
            unused = isinstance(plain, Unrenderable) and plain.code == NOT_LEARNED
            yield row, not_learned(row, method) if unused else plain
        return
    rows = iter(rows)
    while batch := list(islice(rows, TOGETHER)):
        answers = [
            list(answers_of(row)) if row.get("kind", "chat") in METHODS[method].rows else [] for row in batch
        ]
        encoded = encode(tokenizer, [chat for answer in answers for _, _, chat in answer])
        for row, answer in zip(batch, answers, strict=True):
            parts = [(role, part, next(encoded)[1]) for role, part, _ in answer]
            if METHODS[method].prompts and any("cut" in chat["messages"][-1] for _, _, chat in answer):
                yield row, Unrenderable(CUT, "its answer was cut to fit, so it is no reference")
            else:
                yield row, _sequences(parts) if parts else not_learned(row, method)


def answers_of(row: Row) -> Iterator[tuple[int, str | None, Row]]:
    """Yield (role, name in the row, chat that trains only the answer) of each answer that the row compares or
    judges, and of the expected answer of a prompt or chat.
    """
    if row.get("kind", "chat") in ("prompt", "chat"):
        yield LEARNED, None, as_chat(row)
        return
    tools = {"tools": row["tools"]} if "tools" in row else {}
    if "chosen" in row:
        before = [read_only(turn) for turn in row["messages"]]
        for role, name in NAMES.items():
            yield role, name, {"kind": "chat", "messages": before + row[name], **tools}
        return
    turns = row["messages"]
    last = max((place for place, turn in enumerate(turns) if turn["role"] == "assistant"), default=0)
    context = [read_only(turn) for turn in turns[:last]]
    messages = context + turns[last : last + 1]
    yield CHOSEN if row["label"] else REJECTED, None, {"kind": "chat", "messages": messages, **tools}


def _sequences(parts: list[tuple[int, str | None, Any]]) -> list[Encoded] | Unrenderable:
    """Return the answers as one sequence each, or the reason why they can't be encoded."""
    sequences: list[Encoded] = []
    for role, name, encoded in parts:
        if isinstance(encoded, Unrenderable):
            return encoded
        if len(encoded) > 1:
            return Unrenderable(
                "template_rewrites", "the template shows an answer of several turns in several texts"
            )
        sequences.append(replace(encoded[0], part=name, role=role))
    if len(sequences) > 1 and sequences[0].ids == sequences[1].ids:
        return Unrenderable(EQUAL, "the chosen and the rejected answer are the same")
    return sequences
