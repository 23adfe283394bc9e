"""Instructions for the writing model, one for each kind of row and flaw, and the rows that they are about.

An instruction's name is what it asks for and its version ("rejected.vague/1"). Each written row contains that
name. Another wording is another version, and its texts are requested again.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.chat.rows import ANSWERED, TURN_LISTS, Row, is_copy, untrained_turns
from pipeline.chat.selection import drawn, is_answerable
from pipeline.chat.tokens import chat_request
from pipeline.config.sections import Augment, AugmentKind
from pipeline.core.jsonl import read_rows

WRITTEN_SPLITS = ("train", "val")
WATCHED_PART = 4  # training rows for each additional row of val
WATCHED = 32  # maximum rows of val
QUESTION = (
    "Say this message in other words, in its own language. Keep its meaning, and every number, name, path, "
    "command and quoted text as it is. Do not answer it. Write only the message in other words."
)
FLAWED = "{flaw} Use the language and the form of the right answer. Write only that answer."
FLAWS = {
    "wrong": "Write another answer, which looks right and is wrong in what matters.",
    "vague": "Write another answer, which is so vague that it does not help.",
    "incomplete": "Write another answer, which leaves out something that matters.",
}
TEXTS: Mapping[str, str] = {
    "questions/1": QUESTION,
    **{f"rejected.{flaw}/1": FLAWED.format(flaw=told) for flaw, told in FLAWS.items()},
    "answers/1": "",  # The conversation itself is the request.
}


class Call(NamedTuple):
    """One text to be written: the row and its split, the instruction, and the request to send."""

    row: Row
    split: str
    number: int
    instruction: str
    seed: int
    request: dict[str, Any]


def calls_of(kind: AugmentKind, settings: Augment, final: Path) -> list[Call]:
    """Return the calls for a kind, in the order in which they are made. Only rejected answers are also
    written to rows of val, so that what the model learns from pairs can be watched.
    """
    calls = []
    for split in WRITTEN_SPLITS if kind == "rejected" else WRITTEN_SPLITS[:1]:
        wanted = settings.rows
        if split == "val":
            wanted = min(WATCHED, -(-settings.rows // WATCHED_PART))
        whole = filter(_is_whole, read_rows(final / f"{split}.jsonl"))
        usable = filter(USABLE[kind], whole)
        for row in drawn(usable, wanted, settings.seed):
            calls += [call_of(kind, settings, row, split, number) for number in range(settings.per_row)]
    return calls


def _is_whole(row: Row) -> bool:
    """Return True if a row is not a later copy that curation made ("a.jsonl:7*2"), and none of its turns was
    cut off. A cut answer is not one to learn from twice.
    """
    if is_copy(row):
        return False
    return not any("cut" in turn for turns in TURN_LISTS for turn in row.get(turns, ()))


def call_of(kind: AugmentKind, settings: Augment, row: Row, split: str, number: int) -> Call:
    """Return the call for the text of this `number` to a row."""
    seed = seed_of(settings.seed, kind, row, number)
    instruction, request = MESSAGES[kind](row, seed + number)
    request |= {"temperature": settings.temperature, "max_tokens": settings.max_new_tokens, "seed": seed}
    return Call(row, split, number, instruction, seed, request)


def seed_of(seed: int, kind: str, row: Row, number: int) -> int:
    """Return a seed of 31 bits, which every server accepts."""
    digest = hashlib.sha256(f"{seed}:{kind}:{row['id']}:{number}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def question_place(row: Row) -> int | None:
    """Return the index of the user's turn that the row answers, or None if it answers something else."""
    place = len(row["messages"]) - (2 if row["kind"] in ANSWERED else 1)
    if place < 0 or row["messages"][place]["role"] != "user":
        return None
    return place if row["messages"][place]["content"].strip() else None


def question_of(row: Row) -> str:
    """Return the text of that turn, or "" if it is missing."""
    place = question_place(row)
    return "" if place is None else str(row["messages"][place]["content"])


def right_answer(row: Row) -> str:
    """Return the row's answer in words, or "" if it has none."""
    if row["kind"] == "prompt":
        return str(row["answer"])
    if row["kind"] == "chat" and row["messages"]:
        return str(row["messages"][-1]["content"])
    return ""


def asked_turns(row: Row) -> list[dict[str, Any]]:
    """Return the turns before a row's answer, as an untrained conversation."""
    turns = row["messages"][:-1] if row["kind"] in ANSWERED else row["messages"]
    return untrained_turns(turns)


def _is_rejectable(row: Row) -> bool:
    """Return True if a row has an answer in words that its author doesn't call bad."""
    if row["kind"] not in ("chat", "prompt") or question_place(row) is None:
        return False
    if row["kind"] == "chat" and not is_answerable(row):
        return False
    if row["kind"] == "chat" and not row["messages"][-1].get("train", True):
        return False
    return bool(right_answer(row).strip()) and row.get("reward", 1.0) > 0


def _question(row: Row, _: int) -> tuple[str, dict[str, Any]]:
    return "questions/1", _chat_request(f"Message:\n{question_of(row)}", TEXTS["questions/1"])


def _rejected(row: Row, drawn_flaw: int) -> tuple[str, dict[str, Any]]:
    instruction = f"rejected.{list(FLAWS)[drawn_flaw % len(FLAWS)]}/1"
    turns = [turn for turn in asked_turns(row) if turn["content"].strip()]
    question = turns[-1]["content"] if len(turns) == 1 else "\n\n".join(map(_named, turns))
    material = f"Question:\n{question}\n\nRight answer:\n{right_answer(row)}"
    return instruction, _chat_request(material, TEXTS[instruction])


def _answer(row: Row, _: int) -> tuple[str, dict[str, Any]]:
    return "answers/1", chat_request(row["messages"], row.get("tools"))


def _chat_request(material: str, instruction: str) -> dict[str, Any]:
    """Return the request. The instruction comes last because small models follow it best there."""
    return {"messages": [{"role": "user", "content": f"{material}\n\n{instruction}"}]}


def _named(turn: Mapping[str, Any]) -> str:
    return f"{str(turn['role']).capitalize()}: {turn['content']}"


USABLE: Mapping[AugmentKind, Callable[[Row], bool]] = {
    "questions": lambda row: question_place(row) is not None,
    "rejected": _is_rejectable,
    "answers": lambda row: row["kind"] == "prompt" and not row["answer"].strip(),
}
MESSAGES: Mapping[AugmentKind, Callable[[Row, int], tuple[str, dict[str, Any]]]] = {
    "questions": _question,
    "rejected": _rejected,
    "answers": _answer,
}


def request_bytes(calls: list[Call]) -> Iterator[int]:
    """Yield the number of text bytes that each call sends."""
    for call in calls:
        yield sum(len(str(turn.get("content") or "").encode()) for turn in call.request["messages"])
