"""Reasoning that stands inside the answer, `<think>…</think>` first thing, goes to where templates look for it.

Only for a base whose tokenizer has these tokens: there they would be control tokens inside text, and its template writes
them itself around `reasoning_content`. For other bases they are plain text and stay.
"""

import re
from collections.abc import Iterable

from pipeline.chat.rows import TURN_LISTS, Row
from pipeline.stages.curate.rules.changes import Change, Changes, Rule, excerpts

_THOUGHT = re.compile(r"\s*<think>(.*?)</think>\s*", re.DOTALL)


def reasoning(added_tokens: Iterable[str]) -> Rule | None:
    """The rule for a tokenizer with these added tokens; None where it has no `<think>`."""
    return move_reasoning if {"<think>", "</think>"} <= set(added_tokens) else None


def move_reasoning(row: Row, changes: Changes) -> Row:
    """The row with the thoughts of every assistant turn in its `reasoning_content`; a turn that has one already stays as it is."""
    moved = dict(row)
    for field in TURN_LISTS:
        for number, turn in enumerate(row.get(field, ()), start=1):
            if turn["role"] != "assistant" or "reasoning_content" in turn or not (thought := _THOUGHT.match(turn["content"])):
                continue
            answer = turn["content"][thought.end() :]
            if moved[field] is row[field]:
                moved[field] = list(row[field])
            said = {"reasoning_content": thought[1].strip()} if thought[1].strip() else {}  # an empty thought is how templates say "none"
            moved[field][number - 1] = {**turn, "content": answer, **said}
            changes.append(Change("reasoning", f"{field} {number}", *excerpts(turn["content"], answer)))
    return row if all(moved[field] is row[field] for field in row) else moved
