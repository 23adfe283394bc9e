"""Files without conversations that programs write next to their conversations: lists of sessions, contents of
the screen, figures. They are below data/raw if the user puts a program's folder there.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pipeline.intake.exports.chatgpt import DOWN, UP
from pipeline.intake.exports.export import Conversation, Export, Head, Notes, Record


def _are(check: Callable[[dict[str, Any]], bool]) -> Callable[[Head], bool]:
    """Return a check of a file's beginning: that all its records are objects of this kind."""

    def is_head(head: Head) -> bool:
        return bool(head.values) and all(isinstance(value, dict) and check(value) for value in head.values)

    return is_head


def _left_out(name: str) -> Callable[[Iterable[Record], Notes], Iterator[Conversation]]:
    """Return a reader that yields no row, and counts the records."""

    def read(records: Iterable[Record], notes: Notes) -> Iterator[Conversation]:
        notes[name] += sum(1 for _ in records)
        yield from ()

    return read


# Cline's and Roo Code's ui_messages.json: the same conversation as on the screen.
SCREENS = Export(
    "cline_screen",
    _are(lambda value: value.get("type") in ("say", "ask") and "ts" in value),
    _left_out("messages_of_the_screen"),
)
# Cline's task_metadata.json, Roo Code's history_item.json.
TASKS = Export(
    "cline_task",
    _are(lambda value: "files_in_context" in value or {"task", "tokensIn", "tokensOut"} <= value.keys()),
    _left_out("figures_of_tasks"),
)
# Continue's sessions.json, Claude Code's sessions-index.json.
LISTS = Export(
    "session_list",
    _are(
        lambda value: (
            (
                {"sessionId", "dateCreated"} <= value.keys()
                and value.keys().isdisjoint(("history", "messages"))
            )
            or ({"version", "entries", "originalPath"} <= value.keys())
        )
    ),
    _left_out("lists_of_sessions"),
)
# ChatGPT's user.json, message_feedback.json … and Claude.ai's users.json and memories.json, if an archive was
# unpacked.
ACCOUNTS = Export(
    "account",
    _are(
        lambda value: (
            ({"id", "email"} <= value.keys() and str(value["id"]).startswith("user-"))
            or {"uuid", "email_address"} <= value.keys()
            or ({"conversation_id", "rating", "user_id"} <= value.keys() and value["rating"] in (*UP, *DOWN))
            or {"id", "conversation_id", "is_anonymous"} <= value.keys()
            or {"conversations_memory", "account_uuid"} <= value.keys()
        )
    ),
    _left_out("records_of_the_account"),
)
# Slack's users.json, channels.json and dms.json.
WORKSPACES = Export(
    "slack_workspace",
    _are(
        lambda value: (
            {"id", "team_id", "profile"} <= value.keys()
            or (
                {"id", "created", "members"} <= value.keys()
                and not value.keys().isdisjoint(("creator", "name"))
            )
            or {"id", "created", "members"} == value.keys()
        )
    ),
    _left_out("records_of_the_workspace"),
)
EXPORTS = (SCREENS, TASKS, LISTS, ACCOUNTS, WORKSPACES)
