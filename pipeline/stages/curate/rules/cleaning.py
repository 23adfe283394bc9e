"""The rules that bring a row's texts into shape: composed Unicode, and reasoning in its own field.

Reasoning inside the answer, `<think>…</think>` at its beginning, goes to where templates look for it. Only
for a base whose tokenizer has these tokens: there they would be control tokens inside text, and its template
writes them itself around `reasoning_content`. For other bases they are plain text and stay.
"""

import re
import unicodedata
from collections.abc import Iterable

from pipeline.chat.rows import TURN_LISTS, BadRow, Row, edit_texts
from pipeline.stages.curate.rules.changes import Change, Changes, Rule, excerpts

MOST_MARKS = 64  # Unicode's own limit for text streams is 30 (UAX #15, Stream-Safe Text Format)
THOUGHT = re.compile(r"\s*<think>(.*?)</think>\s*", re.DOTALL)
MARKS_BY_PARTS = "\u0f73\u0f75\u0f81"  # of class 0 themselves, made of marks


def normalize(row: Row, changes: Changes) -> Row:
    """Every text in Unicode's composed form (NFC).

    Raises `BadRow` if that makes two keys of an object equal, and where a character carries `MOST_MARKS`
    marks or more: Python sorts a run of marks in quadratic time.
    """

    def compose(place: str, text: str) -> str:
        if text.isascii():
            return text
        if has_endless_marks(text):
            raise BadRow(
                "endless_marks", f"{place} has {MOST_MARKS} or more combining marks on one character"
            )
        if unicodedata.is_normalized("NFC", text):
            return text
        composed = unicodedata.normalize("NFC", text)
        changes.append(Change("normalize", place, *excerpts(text, composed)))
        return composed

    return edit_texts(row, compose)


def has_endless_marks(text: str) -> bool:
    """Whether `MOST_MARKS` or more combining marks follow each other; such a run covers one of every
    `MOST_MARKS` places.
    """
    for hit in range(0, len(text), MOST_MARKS):
        if not _is_mark(text[hit]):
            continue
        first, end = hit, hit + 1
        while first > 0 and end - first < MOST_MARKS and _is_mark(text[first - 1]):
            first -= 1
        while end < len(text) and end - first < MOST_MARKS and _is_mark(text[end]):
            end += 1
        if end - first >= MOST_MARKS:
            return True
    return False


def _is_mark(character: str) -> bool:
    return unicodedata.combining(character) > 0 or character in MARKS_BY_PARTS


def reasoning(added_tokens: Iterable[str]) -> Rule | None:
    """The rule for a tokenizer with these added tokens; None if it has no `<think>`."""
    return move_reasoning if {"<think>", "</think>"} <= set(added_tokens) else None


def move_reasoning(row: Row, changes: Changes) -> Row:
    """The row with the thoughts of every assistant turn in its `reasoning_content`; a turn that already has
    one is unchanged.
    """
    moved = row
    for field in TURN_LISTS:
        for number, turn in enumerate(row.get(field, ()), start=1):
            if (
                turn["role"] != "assistant"
                or "reasoning_content" in turn
                or not (thought := THOUGHT.match(turn["content"]))
            ):
                continue
            answer, stated = turn["content"][thought.end() :], thought[1].strip()
            # templates say "none" by an empty thought
            new = {**turn, "content": answer} | ({"reasoning_content": stated} if stated else {})
            moved = {**moved, field: [*moved[field][: number - 1], new, *moved[field][number:]]}
            changes.append(Change("reasoning", f"{field} {number}", *excerpts(turn["content"], answer)))
    return moved
