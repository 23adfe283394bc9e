"""Conversations of Intercom with their parts, as its API returns them.

After <https://developers.intercom.com/docs/references/rest-api/api.intercom.io/conversations> (2.0 to 2.14):
`source` is the first message, `conversation_parts` the others. Each has an `author` with a type, and a `body`
in HTML. Contacts (`user`, `lead`, `contact`) are the user; `admin`, `bot` and `team` the assistant.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.core.jsonl import BadLine
from pipeline.core.text import quoted
from pipeline.intake.exports.answers import objects, texts
from pipeline.intake.exports.export import Export, Head, Notes, each_record
from pipeline.intake.exports.markdown import markdown_of
from pipeline.intake.exports.people import Message, row_of, spoken

CONTACTS = ("user", "lead", "contact")
STAFF = ("admin", "bot", "team")
NOTES = ("note", "note_and_reopen", "attribute_collected_note")


def is_head(head: Head) -> bool:
    """Return True if a record is a conversation with parts."""
    return any(
        isinstance(_parts(value), list) and isinstance(value.get("source"), dict) for value in head.objects()
    )


def _parts(value: Mapping[str, Any]) -> Any:
    listed = value.get("conversation_parts")
    return listed.get("conversation_parts") if isinstance(listed, dict) else listed


def rows_of(value: dict[str, Any], notes: Notes) -> Iterator[dict[str, Any]]:
    """Yield the row of a conversation."""
    parts = _parts(value)
    source = value.get("source")
    if not isinstance(source, dict) or not isinstance(parts, list):
        raise BadLine("bad_shape", "a conversation of Intercom has source and conversation_parts")
    listed = value["conversation_parts"]
    total = listed.get("total_count") if isinstance(listed, dict) else None
    if isinstance(total, int) and total > len(parts):
        raise BadLine(
            "bad_shape",
            f"{total - len(parts)} of {total} parts are missing: fetch the conversation by its id",
        )
    messages = []
    for number, part in enumerate([source, *parts]):
        if not isinstance(part, dict):
            raise BadLine("bad_shape", f"conversation_parts {number} is not an object")
        where = f"conversation_parts {number}" if number else "source"
        messages += _messages(part, where, number, notes)
    yield from map(row_of, spoken(messages, notes))


def _messages(part: Mapping[str, Any], where: str, number: int, notes: Notes) -> list[Message]:
    """Return the message of a part; none for a note, and for a part that only records an action."""
    if part.get("part_type") in NOTES:
        notes["private_comments"] += 1
        return []
    notes["attachments"] += len(objects(part.get("attachments")))
    if part.get("redacted") is True:
        notes["deleted_messages"] += 1
        return []
    words = markdown_of(texts(part.get("body")))
    if number == 0:
        words = texts(markdown_of(texts(part.get("subject"))), words)
    if not words:
        notes["notices" if number else "empty_messages"] += 1
        return []
    author = part.get("author")
    author = author if isinstance(author, dict) else {}
    kind = author.get("type")
    if kind not in (*CONTACTS, *STAFF):
        raise BadLine(
            "bad_role",
            f"{where}: the author's type {quoted(kind)} is none of {', '.join((*CONTACTS, *STAFF))}",
        )
    name = str(author.get("id") or kind)
    return [Message(str(number), number, f"{kind} {name}", kind in STAFF, words, 0.0, None)]


EXPORT = Export("intercom", is_head, each_record(rows_of))
