"""LibreChat's export of a conversation as JSON, flat or recursive.

After the program's source (github.com/danny-avila/LibreChat, useExportConversation.ts and importers.js, as of
2026): `conversationId` next to `messages`, or `messagesTree` with `children`. A message has `messageId`,
`parentMessageId`, `isCreatedByUser`, `text` or `content` parts.
"""

from collections.abc import Iterator
from typing import Any

from pipeline.core.jsonl import BadLine
from pipeline.intake.exports.answers import Answer, result_text, user_turn
from pipeline.intake.exports.export import Export, Notes, any_record, each_record
from pipeline.intake.exports.trees import Tree, by_message, thumbs_of, tree_rows
from pipeline.intake.exports.view import View, text_in, texts
from pipeline.intake.wire.draft import Turn


def _is_conversation(value: View) -> bool:
    key = _key_of_messages(value)
    if key is None or "conversationId" not in value:
        return False
    return not value[key] or any("messageId" in message for message in value.objects(key))


def _key_of_messages(value: View) -> str | None:
    return next((key for key in ("messagesTree", "messages") if value.has(key, list)), None)


def rows_of(value: View, notes: Notes) -> Iterator[dict[str, Any]]:
    """Yield the rows of a conversation."""
    key = _key_of_messages(value)
    if key is None or not _is_conversation(value):
        raise BadLine(
            "bad_shape", "a conversation of LibreChat has conversationId and messages or messagesTree"
        )
    messages, parents = _flat(value.objects(key))
    if not messages:
        notes["empty_conversations"] += 1
        return
    tree = Tree(messages, parents)
    leaves = tree.leaves() or [*messages]
    newest = max(reversed(leaves), key=lambda place: str(messages[place].get("createdAt") or ""))
    options = value.object("options")
    system = options.texts("promptPrefix") or options.texts("instructions") or options.texts("system")
    reader = by_message(_turns, _is_user, system)
    yield from tree_rows(tree, newest, reader, notes, thumbs_of(messages, _thumb))


def _flat(listed: list[View]) -> tuple[dict[str, View], dict[str, str | None]]:
    """Return all messages by id, and their parents, also of a tree of any depth."""
    messages: dict[str, View] = {}
    parents: dict[str, str | None] = {}
    stack: list[tuple[View, str | None]] = [(message, None) for message in reversed(listed)]
    while stack:
        message, above = stack.pop()
        place = message.label("messageId", default=f"message {len(messages)}")
        messages[place] = message
        parents[place] = above or message.text_or_none("parentMessageId")
        stack += [(child, place) for child in reversed(message.objects("children"))]
    return messages, parents


def _is_user(message: View) -> bool:
    return bool(message.get("isCreatedByUser"))


def _thumb(message: View) -> bool | None:
    """Return True for a thumb up, False for one down, None without a thumb."""
    return {"thumbsUp": True, "thumbsDown": False}.get(str(message.object("feedback").get("rating")))


def _turns(message: View, notes: Notes) -> list[Turn]:
    words = message.text("text")
    parts = message.objects("content")
    files = message.objects("files")
    if _is_user(message):
        words = words or texts(*(_part_text(part, "text") for part in parts))
        names = [file.label("filename") for file in files]
        shows_image = any(file.label("type").startswith("image/") for file in files)
        return user_turn(words, names, notes, shows_image=shows_image)
    notes["attachments"] += len(files)
    answer = Answer(notes)
    for number, part in enumerate(parts, start=1):
        _add(answer, part, f"{message.get('messageId')}:{number}")
    if not parts:
        answer.say(words)
    aborted = bool(message.get("unfinished") or message.get("error"))
    return answer.finished(aborted=aborted, is_down=_thumb(message) is False)


def _part_text(part: View, key: str) -> str:
    """Return a part's text, which may be an object with a value."""
    return text_in(part.get(key), "value") or ""


def _add(answer: Answer, part: View, place: str) -> None:
    kind = part.get("type")
    if kind == "text":
        answer.say(_part_text(part, "text"))
    elif kind == "think":
        answer.think(_part_text(part, "think"))
    elif kind == "tool_call" and part.has("tool_call", dict):
        call = part.object("tool_call")
        place = call.label("id", default=place)
        answer.call(place, str(call.get("name")), call.get("args") or {})
        if call.get("output") is not None:
            answer.result(place, result_text(call["output"]))
    else:
        answer.notes["blocks_not_read"] += 1


EXPORT = Export(
    "librechat",
    any_record(_is_conversation),
    each_record(rows_of),
    large_keys=(b'"conversationId"', b'"exportAt"'),
)
