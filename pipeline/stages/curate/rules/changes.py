"""Changes that rules make to rows, recorded in `data/changes.jsonl`."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from pipeline.chat.rows import Row

EXCERPT = 160  # characters of text shown before and after


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one text. `before` and `after` are excerpts, and never contain what was redacted."""

    rule: str  # id of the rule
    place: str  # `messages 2`, as in `pipeline.chat.rows.texts`
    before: str
    after: str


Changes = list[Change]
# A rule returns the row (the same object if it changed nothing) and appends its changes to the list. It
# raises BadRow(reason, detail) to reject the row.
Rule = Callable[[Row, Changes], Row]


def excerpts(before: str, after: str) -> tuple[str, str]:
    """Return both texts around the first place at which they differ, at most `EXCERPT` characters each."""
    ends = range(1, min(len(before), len(after)) + 1)
    # Bisection, because comparing slices is many times faster than comparing characters.
    same = bisect_left(ends, True, key=lambda end: not before.startswith(after[:end]))
    start = max(0, same - EXCERPT // 4)
    return tuple(
        ("…" if start else "") + text[start : start + EXCERPT] + ("…" if len(text) > start + EXCERPT else "")
        for text in (before, after)
    )  # type: ignore[return-value]
