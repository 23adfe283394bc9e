"""Slack's export of a workspace: a zip archive with channels.json, users.json and CHANNEL/YYYY-MM-DD.json.

Slack describes the files in slack.com/help/articles/220556107 ("How to read Slack data exports"), a message
in the message event of api.slack.com. A thread (`thread_ts`) is a conversation. It may extend over several
days.
"""

import html
import re
from collections.abc import Iterator, Mapping

from pipeline.core.jsonl import BadLine
from pipeline.intake.exports.export import Conversation, Export, Head, Notes, Record, Records
from pipeline.intake.exports.people import Message, conversation_of, direct_conversations, is_direct, spoken
from pipeline.intake.exports.view import View, objects, texts

MARKUP = re.compile(r"<([@#!]?)([^<>|]+)(?:\|([^<>]*))?>")


def is_head(head: Head) -> bool:
    """Return True if the file is an array of messages with Slack's times."""
    return head.layout == "array" and any(
        value.get("type") == "message" and value.has("ts", str) for value in head.objects()
    )


def read(records: Records, notes: Notes) -> Iterator[Conversation]:
    """Yield the threads of a channel."""
    users = objects(records.beside("users.json"))
    names = {user["id"]: user.label("name", "id") for user in users if user.has("id", str)}
    messages: dict[tuple[str, str], Message] = {}
    for record in records:
        try:
            message = _message(record, names, notes)
        except BadLine as why:
            yield Conversation(record.number, record.offset, why)
            continue
        if message is not None:
            notes["messages_repeated"] += (message.place, message.author) in messages
            messages[message.place, message.author] = message
    ordered = sorted(messages.values(), key=lambda message: message.time)
    threads: dict[str, list[Message]] = {}
    alone = []
    for message in ordered:
        if message.follows is None:
            alone.append(message)
        else:
            threads.setdefault(message.follows, []).append(message)
    for place, thread in threads.items():
        if thread[0].place != place:
            broken = BadLine(
                "bad_shape",
                "the thread's first message is in another day's file, or was deleted: read the zip archive "
                "that Slack hands out, not its files",
            )
            yield Conversation(thread[0].number, None, broken)
        else:
            yield from map(conversation_of, spoken(thread, notes))
    if is_direct(ordered):
        yield from map(conversation_of, direct_conversations(alone, notes))
    else:
        notes["messages_without_thread"] += len(alone)


def _message(record: Record, names: Mapping[str, str], notes: Notes) -> Message | None:
    """Return a message that somebody wrote; None for other messages. Raises `BadLine`."""
    value = record.view()
    if not value.has("ts", str):
        raise BadLine("bad_shape", "a message of Slack is an object with type, ts and text")
    subtype = value.get("subtype")
    if subtype in ("tombstone", "message_deleted"):
        notes["deleted_messages"] += 1
        return None
    is_said = subtype in (None, "bot_message", "file_share", "me_message", "thread_broadcast")
    if value.get("type") != "message" or not is_said:
        notes["notices"] += 1
        return None
    words = value.texts("text") or texts(*map(_attached, value.objects("attachments")))
    notes["attachments"] += len(value.objects("files"))
    if not words:
        notes["empty_messages"] += 1
        return None
    notes["edited_messages"] += "edited" in value
    return Message(
        place=value["ts"],
        number=record.number,
        author=_author(value, names),
        is_bot=bool(value.get("bot_id")) or subtype == "bot_message",
        words=_plain(words, names),
        time=_seconds(value["ts"]),
        follows=value.text_or_none("thread_ts"),
    )


def _author(value: View, names: Mapping[str, str]) -> str:
    """Return the author's name: that in users.json, the message's own, or an id."""
    return (
        names.get(str(value.get("user")))
        or value.object("user_profile").text("name")
        or value.object("bot_profile").text("name")
        or value.text("username")
        or value.text("user")
        or value.text("bot_id")
        or "unknown"
    )


def _attached(attachment: View) -> str:
    return attachment.texts("pretext", "text") or attachment.texts("fallback")


def _plain(words: str, names: Mapping[str, str]) -> str:
    """Return a text without Slack's markup of mentions and links."""

    def shown(match: re.Match[str]) -> str:
        sign, place, label = match.groups()
        if sign == "@":
            return "@" + (label or names.get(place, place))
        if sign:
            return f"{'#' if sign == '#' else '@'}{label or place}"
        return f"[{label}]({place})" if label and label != place else place

    return html.unescape(MARKUP.sub(shown, words))


def _seconds(stamp: str) -> float:
    try:
        return float(stamp)
    except ValueError:
        return 0.0


EXPORT = Export("slack", is_head, read, joins_folder=True)
