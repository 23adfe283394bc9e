"""Chats to measure and calibrate with, whatever kinds of rows a project has.

Where a file has no chat, the others stand in with the answer that is wanted: a preference with its chosen
one, a conversation with a thumb up as it is, a prompt with the answer that its checker expects.
"""

from collections.abc import Iterator
from pathlib import Path

from pipeline.chat.rows import TRAINED, Row
from pipeline.core.jsonl import read_rows


def chats_in(path: Path) -> Iterator[Row]:
    """The chats of a file of rows; where there are none, what stands in for them."""
    yield from _with_stand_ins(path, ("chat",))


def learned_in(path: Path) -> Iterator[Row]:
    """The chats and texts of a file; where there are none, what stands in for them."""
    yield from _with_stand_ins(path, TRAINED)


def _with_stand_ins(path: Path, kinds: tuple[str, ...]) -> Iterator[Row]:
    some = False
    for row in read_rows(path):
        if row.get("kind", "chat") in kinds:
            some = True
            yield row
    if not some:
        yield from (chat for row in read_rows(path) if (chat := stand_in(row)))


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
