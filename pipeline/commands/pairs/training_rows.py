"""The requests of training that the model is asked; never those of rows that are held out."""

import math
from collections.abc import Iterator
from pathlib import Path

from pipeline.chat.held_out import drawn, is_answerable
from pipeline.chat.tokens import Row
from pipeline.core.errors import DataError
from pipeline.core.hashing import json_hash
from pipeline.core.jsonl import read_rows

TRAINING = Path("data/final/train.jsonl")


def training_requests(root: Path, count: int, seed: int) -> list[Row]:
    """`count` drawn rows of data/final/train.jsonl as chats that end in the reference answer: chats, and
    prompts with their `answer`. Of chats that make the same request only the one with the highest reward.

    Raises `DataError` if the file is missing or has no such row.
    """
    file = root / TRAINING
    if not file.is_file():
        raise DataError("Q-PAIRS-003", f"{file} is missing: stage curate makes it, so run `snakemake curate`")
    best: dict[str, tuple[float, str]] = {}  # request → (reward, id)
    for row in _answerable(file):
        key, reward = _request(row), row.get("reward", -math.inf)
        if key not in best or reward > best[key][0]:
            best[key] = reward, row["id"]
    asked = {id for _, id in best.values()}
    rows = {
        row["id"]: row for row in drawn((row for row in _answerable(file) if row["id"] in asked), count, seed)
    }
    if not rows:
        raise DataError(
            "Q-PAIRS-003",
            f"{file} has no chat that ends in an answer in words and no prompt, so there is nothing to ask",
        )
    return list(rows.values())


def _answerable(file: Path) -> Iterator[Row]:
    for row in read_rows(file):
        kind = row.get("kind", "chat")
        if kind == "prompt":
            yield row | {"messages": [*row["messages"], {"role": "assistant", "content": row["answer"]}]}
        elif kind == "chat" and len(row["messages"]) > 1 and is_answerable(row):
            yield row


def _request(row: Row) -> str:
    turns = [{key: turn[key] for key in turn if key != "train"} for turn in row["messages"][:-1]]
    return json_hash([turns, row.get("tools")])
