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
from pipeline.intake.exports.export import Conversation, Export, Notes, Records, any_record
from pipeline.intake.exports.people import (
    Message,
    conversation_of,
    direct_conversations,
    is_direct,
    reply_chains,
    seconds,
)
from pipeline.intake.exports.view import View, texts


def _is_channel(value: View) -> bool:
    return value.has("channel", dict) and value.has("messages", list)


def read(records: Records, notes: Notes) -> Iterator[Conversation]:
    """Yield the conversations of each channel. All of a channel's messages are in memory."""
    before = 0  # messages of earlier channels; a channel that can't be read counts as one
    for record in records:
        before = max(before, record.number - 1)  # Records of other programs may precede it.
        try:
            value = record.view()
            if not _is_channel(value):
                raise BadLine("bad_shape", "a channel of DiscordChatExporter has channel and messages")
        except BadLine as why:
            before += 1
            yield Conversation(before, record.offset, why)
        else:
            yield from _conversations(before, value["messages"], notes)
            before += len(value["messages"])


def _conversations(before: int, stated: list[Any], notes: Notes) -> Iterator[Conversation]:
    messages: dict[str, Message] = {}
    for number, value in enumerate(stated, start=before + 1):
        try:
            message = _message(number, View(value), notes)
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


# Types of messages that somebody wrote.
SAID = ("Default", "Reply", "ChatInputCommand", "ContextMenuCommand", "ThreadStarterMessage", "20", "23")


def _message(number: int, value: View, notes: Notes) -> Message | None:
    """Return a message that somebody wrote; None for other messages. Raises `BadLine`."""
    if not value.has("author", dict) or not value.has("id", str):
        raise BadLine("bad_shape", "a message of DiscordChatExporter has id, type, author and content")
    if value.get("type") not in SAID:
        notes["notices"] += 1
        return None
    embeds = [embed.texts("title", "description") for embed in value.objects("embeds")]
    words = value.texts("content") or texts(*embeds)
    notes["attachments"] += len(value.objects("attachments")) + len(value.objects("stickers"))
    if not words:
        notes["empty_messages"] += 1
        return None
    notes["edited_messages"] += bool(value.get("timestampEdited"))
    author = value.object("author")
    return Message(
        place=value["id"],
        number=number,
        author=author.label("name", default=author.get("id")),
        is_bot=author.get("isBot") is True,
        words=words,
        time=seconds(value.get("timestamp")),
        follows=value.object("reference").text_or_none("messageId"),
    )


EXPORT = Export("discord", any_record(_is_channel), read, large_keys=(b'"guild"', b'"channel"'))
