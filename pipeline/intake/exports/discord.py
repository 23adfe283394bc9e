"""Discord's channels in the form of DiscordChatExporter (`--format Json`).

After the program's source (github.com/Tyrrrz/DiscordChatExporter, JsonMessageWriter.cs, as of 2026): one
object with `guild`, `channel` and `messages`. A chain of replies is a conversation. If only two people write,
a conversation is the messages between two silences.

A conversation has the number of its first message among all in the file, not that of its channel: chains that
begin with one message belong together, and those of a channel don't.
"""

from collections.abc import Iterator
from typing import Any

from pipeline.core.jsonl import BadLine
from pipeline.intake.exports.answers import objects, texts
from pipeline.intake.exports.export import Conversation, Export, Head, Notes, Records
from pipeline.intake.exports.people import (
    Message,
    conversation_of,
    direct_conversations,
    is_direct,
    reply_chains,
    seconds,
)

SAID = ("Default", "Reply", "ChatInputCommand", "ContextMenuCommand", "ThreadStarterMessage", "20", "23")


def is_head(head: Head) -> bool:
    """Return True if a record is a channel with its messages."""
    return any(_is_channel(value) for value in head.objects())


def _is_channel(value: dict[str, Any]) -> bool:
    return isinstance(value.get("channel"), dict) and isinstance(value.get("messages"), list)


def read(records: Records, notes: Notes) -> Iterator[Conversation]:
    """Yield the conversations of each channel. All of a channel's messages are in memory."""
    before = 0  # messages of earlier channels; a channel that can't be read counts as one
    for number, offset, value in records:
        before = max(before, number - 1)  # Records of other programs may precede it.
        if isinstance(value, BadLine):
            before += 1
            yield Conversation(before, offset, value)
        elif not isinstance(value, dict) or not _is_channel(value):
            before += 1
            why = BadLine("bad_shape", "a channel of DiscordChatExporter has channel and messages")
            yield Conversation(before, offset, why)
        else:
            yield from _conversations(before, value["messages"], notes)
            before += len(value["messages"])


def _conversations(before: int, stated: list[Any], notes: Notes) -> Iterator[Conversation]:
    messages: dict[str, Message] = {}
    for number, value in enumerate(stated, start=before + 1):
        try:
            message = _message(number, value, notes)
        except BadLine as why:
            yield Conversation(number, None, why)
            continue
        if message is not None:
            notes["messages_repeated"] += message.place in messages
            messages[message.place] = message
    if not messages:
        notes["empty_conversations"] += 1
    ordered = [*messages.values()]
    divide = direct_conversations if is_direct(ordered) else reply_chains
    # Conversations that begin with one message follow each other.
    conversations = sorted(divide(ordered, notes), key=lambda conversation: conversation[0].number)
    yield from map(conversation_of, conversations)


def _message(number: int, value: Any, notes: Notes) -> Message | None:
    """Return a message that somebody wrote; None for other messages. Raises `BadLine`."""
    author = value.get("author") if isinstance(value, dict) else None
    if not isinstance(author, dict) or not isinstance(value.get("id"), str):
        raise BadLine("bad_shape", "a message of DiscordChatExporter has id, type, author and content")
    if value.get("type") not in SAID:
        notes["notices"] += 1
        return None
    embeds = objects(value.get("embeds"))
    words = texts(value.get("content")) or texts(
        *(texts(embed.get("title"), embed.get("description")) for embed in embeds)
    )
    notes["attachments"] += len(objects(value.get("attachments"))) + len(objects(value.get("stickers")))
    if not words:
        notes["empty_messages"] += 1
        return None
    notes["edited_messages"] += bool(value.get("timestampEdited"))
    reference = value.get("reference")
    follows = reference.get("messageId") if isinstance(reference, dict) else None
    return Message(
        place=value["id"],
        number=number,
        author=str(author.get("name") or author.get("id")),
        is_bot=author.get("isBot") is True,
        words=words,
        time=seconds(value.get("timestamp")),
        follows=follows if isinstance(follows, str) else None,
    )


EXPORT = Export("discord", is_head, read, large_keys=(b'"guild"', b'"channel"'))
