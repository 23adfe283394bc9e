"""Edits of the answers that the model's are compared with: `answer` and `other_references`."""

from collections.abc import Callable

from pipeline.chat.rows import OTHERS, Row
from pipeline.stages.curate.rules.changes import Change, Changes, excerpts


def edit_references(row: Row, edit: Callable[[str], str], rule: str, changes: Changes) -> Row:
    """Return the row with these answers edited, and note a change of `rule` for each key that differs."""
    if "answer" not in row and OTHERS not in row:  # The usual case.
        return row
    edited = row
    for key in ("answer", OTHERS):
        if key not in row:
            continue
        stated = [row[key]] if key == "answer" else row[key]
        new = [edit(answer) for answer in stated]
        if new != stated:
            changes.append(Change(rule, key, *excerpts("\n".join(stated), "\n".join(new))))
            edited = edited | {key: new[0] if key == "answer" else new}
    return edited
