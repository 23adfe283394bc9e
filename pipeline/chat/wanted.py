"""Chats to measure and calibrate with, whatever kinds of rows a project has.

Other rows stand in with the answer that is wanted: a preference with its chosen one, a conversation with a
thumb up as it is, a prompt with the answer that its checker expects.

What measures takes a file's chats alone if it has any, for somebody may have put them there to be scored.
What calibrates or distills needs much text of the kind that is served: there the others stand in beside the
chats and texts as soon as they are more.
"""

from collections.abc import Iterator
from pathlib import Path

from pipeline.chat.rows import TRAINED, Row
from pipeline.core.jsonl import read_rows


def chats_in(path: Path) -> Iterator[Row]:
    """The chats of a file of rows; where there are none, what stands in for them."""
    some = False
    for row in read_rows(path):
        if row.get("kind", "chat") == "chat":
            some = True
            yield row
    if not some:
        yield from (chat for row in read_rows(path) if (chat := stand_in(row)))


def learned_in(path: Path, stand_ins: bool | None = None) -> Iterator[Row]:
    """The chats and texts of a file, and what stands in for its other rows if these are more: whoever knows
    that by `has_stand_ins` gives it, for it takes a reading of the file.
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
    kind, turns = row.get("kind", "chat"), row["messages"]
    if kind == "preference":
        turns = turns + row["chosen"]
    elif kind == "prompt":
        turns = [*turns, {"role": "assistant", "content": row["answer"]}]
    elif kind != "feedback" or not row["label"]:
        return None
    found: Row = {key: row[key] for key in ("id", "source", "domain", "tools") if key in row}
    return found | {"kind": "chat", "messages": turns}
