"""LibreChat's export of a conversation as JSON, flat or recursive.

After the program's source (github.com/danny-avila/LibreChat, useExportConversation.ts and importers.js, as of
2026): `conversationId` next to `messages`, or `messagesTree` with `children`. A message has `messageId`,
`parentMessageId`, `isCreatedByUser`, `text` or `content` parts.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.core.jsonl import BadLine
from pipeline.intake.exports.answers import Answer, objects, result_text, texts, user_turn
from pipeline.intake.exports.export import Export, Head, Notes, each_record
from pipeline.intake.exports.trees import Reader, Tree, tree_rows
from pipeline.intake.wire.draft import Turn

LISTS = ("messagesTree", "messages")
THUMBS = {"thumbsUp": True, "thumbsDown": False}
SYSTEMS = ("promptPrefix", "instructions", "system")  # options that contain the system text


def is_head(head: Head) -> bool:
    """Return True if a record is a conversation of LibreChat."""
    return any(_is_conversation(value) for value in head.objects())


def _is_conversation(value: Mapping[str, Any]) -> bool:
    listed = next((value[key] for key in LISTS if isinstance(value.get(key), list)), None)
    if listed is None or "conversationId" not in value:
        return False
    return not listed or any("messageId" in message for message in objects(listed))


def rows_of(value: dict[str, Any], notes: Notes) -> Iterator[dict[str, Any]]:
    """Yield the rows of a conversation."""
    if not _is_conversation(value):
        raise BadLine(
            "bad_shape", "a conversation of LibreChat has conversationId and messages or messagesTree"
        )
    listed = next(value[key] for key in LISTS if isinstance(value.get(key), list))
    messages, parents = _flat(objects(listed))
    if not messages:
        notes["empty_conversations"] += 1
        return
    thumbs = {place: up for place, message in messages.items() if (up := _thumb(message)) is not None}
    tree = Tree(messages, parents)
    leaves = tree.leaves() or [*messages]
    newest = max(reversed(leaves), key=lambda place: str(messages[place].get("createdAt") or ""))
    options = value.get("options")
    given = options if isinstance(options, dict) else {}
    system = next((words for key in SYSTEMS if (words := texts(given.get(key)))), "")

    def turns(branch: Sequence[str], notes: Notes) -> list[Turn]:
        branch_turns: list[Turn] = [{"role": "system", "content": system}] if system else []
        for place in branch:
            branch_turns += _turns(messages[place], notes, is_down=thumbs.get(place) is False)
        return branch_turns

    def is_user(place: str) -> bool:
        return bool(messages[place].get("isCreatedByUser"))

    yield from tree_rows(tree, newest, Reader(turns, is_user), notes, thumbs)


def _flat(listed: list[dict[str, Any]]) -> tuple[dict[str, dict[str, Any]], dict[str, str | None]]:
    """Return all messages by id, and their parents, also of a tree of any depth."""
    messages: dict[str, dict[str, Any]] = {}
    parents: dict[str, str | None] = {}
    stack: list[tuple[dict[str, Any], str | None]] = [(message, None) for message in reversed(listed)]
    while stack:
        message, above = stack.pop()
        place = str(message.get("messageId") or f"message {len(messages)}")
        parent = message.get("parentMessageId")
        messages[place] = message
        parents[place] = above or (parent if isinstance(parent, str) else None)
        stack += [(child, place) for child in reversed(objects(message.get("children")))]
    return messages, parents


def _thumb(message: Mapping[str, Any]) -> bool | None:
    feedback = message.get("feedback")
    return THUMBS.get(str(feedback.get("rating"))) if isinstance(feedback, dict) else None


def _turns(message: dict[str, Any], notes: Notes, *, is_down: bool) -> list[Turn]:
    stated = message.get("text")
    words = stated if isinstance(stated, str) else ""
    parts = objects(message.get("content"))
    files = objects(message.get("files"))
    if message.get("isCreatedByUser"):
        words = words or texts(*(_part_text(part, "text") for part in parts))
        names = [str(file.get("filename") or "") for file in files]
        shows_image = any(str(file.get("type") or "").startswith("image/") for file in files)
        return user_turn(words, names, notes, shows_image=shows_image)
    notes["attachments"] += len(files)
    answer = Answer(notes)
    for number, part in enumerate(parts, start=1):
        _add(answer, part, f"{message.get('messageId')}:{number}")
    if not parts:
        answer.say(words)
    aborted = bool(message.get("unfinished") or message.get("error"))
    return answer.finished(aborted=aborted, is_down=is_down)


def _part_text(part: Mapping[str, Any], key: str) -> str:
    """Return a part's text, which may be an object with a value."""
    words = part.get(key)
    if isinstance(words, dict):
        words = words.get("value")
    return words if isinstance(words, str) else ""


def _add(answer: Answer, part: dict[str, Any], place: str) -> None:
    kind = part.get("type")
    if kind == "text":
        answer.say(_part_text(part, "text"))
    elif kind == "think":
        answer.think(_part_text(part, "think"))
    elif kind == "tool_call" and isinstance(part.get("tool_call"), dict):
        call = part["tool_call"]
        place = str(call.get("id") or place)
        answer.call(place, str(call.get("name")), call.get("args") or {})
        if call.get("output") is not None:
            answer.result(place, result_text(call["output"]))
    else:
        answer.notes["blocks_not_read"] += 1


EXPORT = Export("librechat", is_head, each_record(rows_of), large_keys=(b'"conversationId"', b'"exportAt"'))
