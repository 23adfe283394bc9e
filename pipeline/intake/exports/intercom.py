"""Conversations of Intercom with their parts, as its API returns them.

After <https://developers.intercom.com/docs/references/rest-api/api.intercom.io/conversations> (2.0 to 2.14):
`source` is the first message, `conversation_parts` the others. Each has an `author` with a type, and a `body`
in HTML. Contacts (`user`, `lead`, `contact`) are the user; `admin`, `bot` and `team` the assistant.
"""

from collections.abc import Iterator
from typing import Any

from pipeline.core.jsonl import BadLine
from pipeline.core.text import quoted
from pipeline.intake.exports.export import Export, Notes, any_record, each_record
from pipeline.intake.exports.markdown import markdown_of
from pipeline.intake.exports.people import Message, row_of, spoken
from pipeline.intake.exports.view import View, texts


def _is_conversation(value: View) -> bool:
    return value.has("source", dict) and _listed(value).has("conversation_parts", list)


def _listed(value: View) -> View:
    """Return the object with the list of parts. Older versions have the list itself."""
    return value.object("conversation_parts") if value.has("conversation_parts", dict) else value


def rows_of(value: View, notes: Notes) -> Iterator[dict[str, Any]]:
    """Yield the row of a conversation."""
    if not _is_conversation(value):
        raise BadLine("bad_shape", "a conversation of Intercom has source and conversation_parts")
    parts = _listed(value).array("conversation_parts")
    total = value.object("conversation_parts").integer("total_count")
    if total > len(parts):
        raise BadLine(
            "bad_shape",
            f"{total - len(parts)} of {total} parts are missing: fetch the conversation by its id",
        )
    messages = []
    for number, part in enumerate([value["source"], *parts]):
        if not isinstance(part, dict):
            raise BadLine("bad_shape", f"conversation_parts {number} is not an object")
        where = f"conversation_parts {number}" if number else "source"
        messages += _messages(View(part), where, number, notes)
    yield from map(row_of, spoken(messages, notes))


CONTACTS = ("user", "lead", "contact")
STAFF = ("admin", "bot", "team")


def _messages(part: View, where: str, number: int, notes: Notes) -> list[Message]:
    """Return the message of a part; none for a note, and for a part that only records an action."""
    if part.get("part_type") in ("note", "note_and_reopen", "attribute_collected_note"):
        notes["private_comments"] += 1
        return []
    notes["attachments"] += len(part.objects("attachments"))
    if part.get("redacted") is True:
        notes["deleted_messages"] += 1
        return []
    words = markdown_of(part.texts("body"))
    if number == 0:
        words = texts(markdown_of(part.texts("subject")), words)
    if not words:
        notes["notices" if number else "empty_messages"] += 1
        return []
    author = part.object("author")
    kind = author.get("type")
    if kind not in (*CONTACTS, *STAFF):
        raise BadLine(
            "bad_role",
            f"{where}: the author's type {quoted(kind)} is none of {', '.join((*CONTACTS, *STAFF))}",
        )
    name = author.label("id", default=kind)
    return [Message(str(number), number, f"{kind} {name}", kind in STAFF, words)]


EXPORT = Export("intercom", any_record(_is_conversation), each_record(rows_of))
