"""SillyTavern's chats: JSON lines, a message each, below a line about the chat.

After SillyTavern/SillyTavern `public/script.js` (2023 to 2026): `name`, `is_user`, `is_system`, `mes`
and `swipes`, other versions of an answer of which `mes` is the chosen one. The first line has
`chat_metadata`. Messages of the system are notices, or hidden from the model.
"""

from collections.abc import Iterator

from pipeline.core.jsonl import BadLine
from pipeline.intake.exports.export import Alone, Conversation, Export, Notes, Record, Records, any_record
from pipeline.intake.exports.view import View
from pipeline.intake.wire.draft import Draft


def _is_message(value: View) -> bool:
    return value.has("mes", str) and value.has("is_user", bool)


def read(records: Records, notes: Notes) -> Iterator[Conversation]:
    """Yield the conversation below each line about a chat. It is not read if one of its messages can't be."""
    chat = Alone()
    draft = Draft()
    for record in records:
        try:
            value = _checked(record)
        except BadLine as why:
            yield Conversation(record.number, record.offset, why)
            chat.hole = why
            continue
        if _begins(value):
            yield from _ended(chat, draft, notes)
            chat = Alone()
            draft = Draft()
            continue
        if not draft.turns:
            chat.begin = (record.number, record.offset)
        _add(draft, value, notes)
    yield from _ended(chat, draft, notes)


def _checked(record: Record) -> View:
    """Return a line about a chat, or a message. Raises `BadLine` for any other value."""
    value = record.view()
    if not _begins(value) and not _is_message(value):
        raise BadLine("bad_shape", "a message has mes and is_user")
    return value


def _begins(value: View) -> bool:
    """Return True for a line about a chat, which is its first one."""
    return "chat_metadata" in value or "character_name" in value


def _ended(chat: Alone, draft: Draft, notes: Notes) -> Iterator[Conversation]:
    chat.turns = draft.turns
    yield from chat.conversation(notes)


def _add(draft: Draft, message: View, notes: Notes) -> None:
    """Add a message, and count what is left out of it."""
    if message.get("is_system") is True:
        notes["notices"] += 1
        return
    extra = message.object("extra")
    attached = ("audio", "file", "files", "image", "media", "video")
    notes["attachments"] += sum(bool(extra.get(key)) for key in attached)
    notes["branches_not_current"] += max(0, len(message.array("swipes")) - 1)
    words = message["mes"]
    if not words.strip():
        notes["empty_messages"] += 1
    elif message["is_user"]:
        draft.say("user", words)
    else:
        draft.answer(words, extra.text("reasoning"))


EXPORT = Export("silly_tavern", any_record(_is_message), read)
