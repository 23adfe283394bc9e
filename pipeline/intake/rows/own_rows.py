"""Rows of the user's own that have a key or two of a program's export (`conversationId` next to turns,
`email` and `id` next to a question and its answer), or that are in one file with an export.
"""

from typing import Any

from pipeline.intake.exports import side_files
from pipeline.intake.exports.export import Export, Head, Record
from pipeline.intake.exports.registry import export_of
from pipeline.intake.rows.chats import CONVERSATIONS
from pipeline.intake.rows.formats import FORMATS

EXCHANGES = tuple(
    keys
    for format in ("preference", "alpaca", "prompt_completion", "query_response", "prompt")
    for keys in FORMATS[format].keys
    if not set(keys).intersection(CONVERSATIONS)
)
TURNS = (("role", "content"), ("from", "value"))  # keys of a turn


def export_in(head: Head) -> Export | None:
    """Return the export of a file with this beginning, None for rows in a format of the user's own."""
    export = export_of(head)
    if export is None or export.has_rows or not _has_rows(head):
        return export
    return None


def export_with(value: dict[str, Any]) -> Export | None:
    """Return the export that an object is a conversation of, None for any other object."""
    export = export_of(Head("lines", (value,)))
    return None if export in side_files.EXPORTS else export


class Recognizer:
    """Classifier of an export's records: the user's own rows, and another program's conversations."""

    def __init__(self, export: Export) -> None:
        self.export = export

    def __call__(self, record: Record) -> Export | None:
        """Return the export that reads a record, None for one of the user's own rows. A record that
        identifies none is read as the one before it.
        """
        value = record.value
        if not isinstance(value, dict) or self.export.is_head(Head("array", (value,))):
            return self.export
        if _is_row(value):
            return None
        self.export = export_with(value) or self.export
        return self.export


def _has_rows(head: Head) -> bool:
    """Return True if the first records are rows already: exchanges, or conversations of turns."""
    objects = head.objects()
    return bool(objects) and all(map(_is_row, objects))


def _is_row(value: dict[str, Any]) -> bool:
    if any(all(isinstance(value.get(key), str) for key in keys) for keys in EXCHANGES):
        return True
    return any(_are_turns(value.get(key)) for key in CONVERSATIONS)


def _are_turns(turns: Any) -> bool:
    if not isinstance(turns, list) or not turns:
        return False
    return all(map(_is_turn, turns))


def _is_turn(value: Any) -> bool:
    return isinstance(value, dict) and any(all(key in value for key in keys) for keys in TURNS)
