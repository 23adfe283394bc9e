"""Slack's export of a workspace: a zip archive with channels.json, users.json and CHANNEL/YYYY-MM-DD.json.

Slack describes the files in slack.com/help/articles/220556107 ("How to read Slack data exports"), a message
in the message event of api.slack.com. A thread (`thread_ts`) is a conversation. It may extend over several
days.
"""

import html
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.core.jsonl import BadLine
from pipeline.intake.exports.answers import objects, texts
from pipeline.intake.exports.export import Conversation, Export, Head, Notes, Records
from pipeline.intake.exports.people import Message, conversation_of, direct_conversations, is_direct, spoken

# subtypes of messages that somebody wrote
SAID = (None, "bot_message", "file_share", "me_message", "thread_broadcast")
DELETED = ("tombstone", "message_deleted")
MARKUP = re.compile(r"<([@#!]?)([^<>|]+)(?:\|([^<>]*))?>")


def is_head(head: Head) -> bool:
    """Return True if the file is an array of messages with Slack's times."""
    return head.layout == "array" and any(
        value.get("type") == "message" and isinstance(value.get("ts"), str) for value in head.objects()
    )


def read(records: Records, notes: Notes) -> Iterator[Conversation]:
    """Yield the threads of a channel."""
    users = objects(records.beside("users.json"))
    names = {user["id"]: _name(user) for user in users if isinstance(user.get("id"), str)}
    messages: dict[tuple[str, str], Message] = {}
    for number, offset, value in records:
        try:
            message = _message(number, value, names, notes)
        except BadLine as why:
            yield Conversation(number, offset, why)
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


def _name(user: Mapping[str, Any]) -> str:
    return str(user.get("name") or user["id"])


def _message(number: int, value: Any, names: Mapping[str, str], notes: Notes) -> Message | None:
    """Return a message that somebody wrote; None for other messages. Raises `BadLine`."""
    if isinstance(value, BadLine):
        raise value
    if not isinstance(value, dict) or not isinstance(value.get("ts"), str):
        raise BadLine("bad_shape", "a message of Slack is an object with type, ts and text")
    if value.get("subtype") in DELETED:
        notes["deleted_messages"] += 1
        return None
    if value.get("type") != "message" or value.get("subtype") not in SAID:
        notes["notices"] += 1
        return None
    attached = [_attached(entry) for entry in objects(value.get("attachments"))]
    words = texts(value.get("text")) or texts(*attached)
    notes["attachments"] += len(objects(value.get("files")))
    if not words:
        notes["empty_messages"] += 1
        return None
    notes["edited_messages"] += "edited" in value
    is_bot = bool(value.get("bot_id")) or value.get("subtype") == "bot_message"
    thread = value.get("thread_ts")
    return Message(
        place=value["ts"],
        number=number,
        author=_author(value, names),
        is_bot=is_bot,
        words=_plain(words, names),
        time=_seconds(value["ts"]),
        follows=thread if isinstance(thread, str) else None,
    )


def _author(value: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """Return the author's name: that in users.json, the message's own, or an id."""
    user = value.get("user")
    profiles = [value.get(key) for key in ("user_profile", "bot_profile")]
    stated = [profile.get("name") for profile in profiles if isinstance(profile, dict)]
    candidates = [names.get(str(user)), *stated, value.get("username"), user, value.get("bot_id")]
    return next((name for name in candidates if isinstance(name, str) and name), "unknown")


def _attached(attachment: Mapping[str, Any]) -> str:
    return texts(attachment.get("pretext"), attachment.get("text")) or texts(attachment.get("fallback"))


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
