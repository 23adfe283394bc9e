"""SillyTavern's chats: JSON lines, a message each, below a line about the chat.

After SillyTavern/SillyTavern `public/script.js` (2023 to 2026): `name`, `is_user`, `is_system`, `mes`
and `swipes`, other versions of an answer of which `mes` is the chosen one. The first line has
`chat_metadata`. Messages of the system are notices, or hidden from the model.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.core.jsonl import BadLine
from pipeline.intake.exports.export import Alone, Conversation, Export, Head, Notes, Records
from pipeline.intake.wire.draft import Draft

ATTACHED = ("audio", "file", "files", "image", "media", "video")  # keys of a message's `extra`


def is_head(head: Head) -> bool:
    """Return True if a record is a message."""
    return any(map(_is_message, head.objects()))


def _is_message(value: Mapping[str, Any]) -> bool:
    return isinstance(value.get("mes"), str) and isinstance(value.get("is_user"), bool)


def read(records: Records, notes: Notes) -> Iterator[Conversation]:
    """Yield the conversation below each line about a chat. It is not read if one of its messages can't be."""
    chat = Alone()
    draft = Draft()
    for number, offset, value in records:
        if isinstance(value, dict) and ("chat_metadata" in value or "character_name" in value):
            yield from _ended(chat, draft, notes)
            chat = Alone()
            draft = Draft()
            continue
        if not isinstance(value, dict) or not _is_message(value):
            hole = (
                value if isinstance(value, BadLine) else BadLine("bad_shape", "a message has mes and is_user")
            )
            yield Conversation(number, offset, hole)
            chat.hole = hole
            continue
        if not draft.turns:
            chat.begin = (number, offset)
        _add(draft, value, notes)
    yield from _ended(chat, draft, notes)


def _ended(chat: Alone, draft: Draft, notes: Notes) -> Iterator[Conversation]:
    chat.turns = draft.turns
    yield from chat.conversation(notes)


def _add(draft: Draft, message: Mapping[str, Any], notes: Notes) -> None:
    """Add a message, and count what is left out of it."""
    if message.get("is_system") is True:
        notes["notices"] += 1
        return
    extra = message.get("extra")
    extra = extra if isinstance(extra, dict) else {}
    notes["attachments"] += sum(bool(extra.get(key)) for key in ATTACHED)
    swipes = message.get("swipes")
    notes["branches_not_current"] += max(0, len(swipes) - 1) if isinstance(swipes, list) else 0
    words = message["mes"]
    if not words.strip():
        notes["empty_messages"] += 1
    elif message["is_user"]:
        draft.say("user", words)
    else:
        reasoning = extra.get("reasoning")
        draft.answer(words, reasoning if isinstance(reasoning, str) else "")


EXPORT = Export("silly_tavern", is_head, read)
