"""Files without conversations that programs write next to their conversations: lists of sessions, contents of
the screen, figures. They are below data/raw if the user puts a program's folder there.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pipeline.intake.exports.chatgpt import DOWN, UP
from pipeline.intake.exports.export import Conversation, Export, Head, Notes, Record


def is_screen(record: dict[str, Any]) -> bool:
    """Return True for Cline's and Roo Code's ui_messages.json: the same conversation as on the screen."""
    return "ts" in record and record.get("type") in ("say", "ask")


def is_task(record: dict[str, Any]) -> bool:
    """Return True for Cline's task_metadata.json and Roo Code's history_item.json."""
    return "files_in_context" in record or {"task", "tokensIn", "tokensOut"} <= record.keys()


def is_session(record: dict[str, Any]) -> bool:
    """Return True for Continue's sessions.json and Claude Code's sessions-index.json."""
    keys = record.keys()
    is_continue = {"sessionId", "dateCreated"} <= keys and keys.isdisjoint(("history", "messages"))
    return is_continue or {"version", "entries", "originalPath"} <= keys


def is_account(record: dict[str, Any]) -> bool:
    """Return True for ChatGPT's user.json, message_feedback.json … and Claude.ai's users.json and
    memories.json, if an archive was unpacked.
    """
    keys = record.keys()
    if {"id", "email"} <= keys and str(record["id"]).startswith("user-"):
        return True
    if {"conversation_id", "rating", "user_id"} <= keys and record["rating"] in (*UP, *DOWN):
        return True
    others = (
        {"uuid", "email_address"},
        {"id", "conversation_id", "is_anonymous"},
        {"conversations_memory", "account_uuid"},
    )
    return any(needed <= keys for needed in others)


def is_workspace(record: dict[str, Any]) -> bool:
    """Return True for Slack's users.json, channels.json and dms.json, of which the last has no other keys."""
    keys = record.keys()
    of_dms = {"id", "created", "members"}
    is_channel = of_dms <= keys and not keys.isdisjoint(("creator", "name"))
    return {"id", "team_id", "profile"} <= keys or is_channel or of_dms == keys


def side_file(name: str, counted: str, is_record: Callable[[dict[str, Any]], bool]) -> Export:
    """Return the kind of a file whose records are all such. It yields no row; `counted` notes how many."""

    def is_head(head: Head) -> bool:
        return bool(head.values) and all(
            isinstance(value, dict) and is_record(value) for value in head.values
        )

    def read(records: Iterable[Record], notes: Notes) -> Iterator[Conversation]:
        notes[counted] += sum(1 for _ in records)
        yield from ()

    return Export(name, is_head, read)


EXPORTS = (
    side_file("cline_screen", "messages_of_the_screen", is_screen),
    side_file("cline_task", "figures_of_tasks", is_task),
    side_file("session_list", "lists_of_sessions", is_session),
    side_file("account", "records_of_the_account", is_account),
    side_file("slack_workspace", "records_of_the_workspace", is_workspace),
)
