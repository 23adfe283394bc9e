"""Claude.ai's export: conversations.json in the archive of Settings → Privacy → Export data.

Anthropic publishes no schema. The one read here is the one that public readers of real exports describe from
2024 to 2026: `chat_messages` with `sender`, `text` and `content` blocks
(github.com/brandtcormorant/claude-json-schema, github.com/Sinity/polylogue docs/providers/claude-ai.md).
Browser exporters add `parent_message_uuid` and `current_leaf_message_uuid`.
"""

import re
from collections.abc import Iterator
from typing import Any

from pipeline.core.jsonl import BadLine
from pipeline.core.text import quoted
from pipeline.intake.exports.answers import Answer, result_text, user_turn
from pipeline.intake.exports.export import Export, Notes, any_record, each_record
from pipeline.intake.exports.trees import Tree, by_message, parents_of, tree_rows
from pipeline.intake.exports.view import View, texts
from pipeline.intake.wire.draft import Turn

# Placeholder for a block in the `text` of older exports.
UNSUPPORTED = re.compile(r"(?:```\n)?This block is not supported on your current device yet\.\n?(?:```)?\n*")


def _is_conversation(value: View) -> bool:
    return value.has("chat_messages", list)


def rows_of(value: View, notes: Notes) -> Iterator[dict[str, Any]]:
    """Yield the row of a conversation."""
    if not _is_conversation(value):
        raise BadLine("bad_shape", "a conversation of Claude.ai has a list chat_messages, and this has none")
    listed = value.objects("chat_messages")
    messages = {message.label("uuid", default=number): message for number, message in enumerate(listed)}
    notes["messages_not_read"] += len(value["chat_messages"]) - len(messages)
    if not messages:
        notes["empty_conversations"] += 1
        return
    places = list(messages)
    if any(message.get("parent_message_uuid") for message in messages.values()):
        parents = parents_of(messages, "parent_message_uuid")
    else:
        parents = dict(zip(places, [None, *places], strict=False))
    leaf = value.text_or_none("current_leaf_message_uuid")
    if leaf not in messages:
        leaf = places[-1]
    yield from tree_rows(Tree(messages, parents), leaf, by_message(_turns, _is_user), notes)


def _is_user(message: View) -> bool:
    return message.get("sender") == "human"


def _turns(message: View, notes: Notes) -> list[Turn]:
    sender = message.get("sender")
    blocks = message.objects("content")
    if all(block.get("type") == "token_budget" for block in blocks):
        words, skipped = UNSUPPORTED.subn("", message.text("text"))
        notes["blocks_not_read"] += skipped
        blocks = [View({"type": "text", "text": words})]
    if sender == "human":
        return _user_turn(message, texts(*(block.get("text") for block in blocks)), notes)
    if sender != "assistant":
        raise BadLine("bad_role", f"the sender is {quoted(sender)}, neither human nor assistant")
    answer = Answer(notes)
    for number, block in enumerate(blocks, start=1):
        _add(answer, block, f"{message.get('uuid')}:{number}")
    is_cut_off = message.get("stop_reason") in ("max_tokens", "user_canceled")
    return answer.finished(aborted=message.get("truncated") is True or is_cut_off)


def _user_turn(message: View, words: str, notes: Notes) -> list[Turn]:
    """Return the user's turn, with the text of attachments after it."""
    names = []
    for attached in message.objects("attachments"):
        name = attached.label("file_name")
        extracted = attached.texts("extracted_content")
        if extracted:
            notes["attachments_as_text"] += 1
            words = texts(words, f"{name}:\n{extracted}" if name else extracted)
        else:
            names.append(name)
    names += [file.label("file_name") for file in message.objects("files")]
    return user_turn(words, names, notes)


def _add(answer: Answer, block: View, place: str) -> None:
    kind = block.get("type")
    if kind == "text":
        answer.say(block.text("text"))
    elif kind == "thinking":
        answer.think(block.text("thinking"))
    elif kind == "tool_use":
        answer.call(block.label("id", default=place), str(block.get("name")), block.get("input") or {})
    elif kind == "tool_result":
        answer.result(block.get("tool_use_id") or None, result_text(block.get("content")))
    else:
        answer.notes["blocks_not_read"] += 1


EXPORT = Export(
    "claude_ai",
    any_record(_is_conversation),
    each_record(rows_of),
    large_keys=(b'"uuid"', b'"chat_messages"'),
)
