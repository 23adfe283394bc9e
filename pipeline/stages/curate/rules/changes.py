"""What a rule did to a row: a change, kept in `data/changes.jsonl`."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from pipeline.chat.rows import Row

EXCERPT = 160  # characters of text shown before and after


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one text; `before` and `after` are excerpts, and never hold what was redacted."""

    rule: str  # the rule's id
    place: str  # `messages 2`, as in `pipeline.chat.rows.texts`
    before: str
    after: str


Changes = list[Change]
# a rule gives the row (the same object where it changed nothing) and adds what it changed to the list;
# it raises BadRow(reason, detail) to reject the row
Rule = Callable[[Row, Changes], Row]


def excerpts(before: str, after: str) -> tuple[str, str]:
    """Both texts around the first place where they differ, at most `EXCERPT` characters each."""
    ends = range(1, min(len(before), len(after)) + 1)
    # halving: comparing slices is many times faster than comparing characters
    same = bisect_left(ends, True, key=lambda end: not before.startswith(after[:end]))
    start = max(0, same - EXCERPT // 4)
    return tuple(
        ("…" if start else "") + text[start : start + EXCERPT] + ("…" if len(text) > start + EXCERPT else "")
        for text in (before, after)
    )  # type: ignore[return-value]
