"""Claude.ai's export: conversations.json in the archive of Settings → Privacy → Export data.

Anthropic publishes no schema. The one read here is the one that public readers of real exports describe from
2024 to 2026: `chat_messages` with `sender`, `text` and `content` blocks
(github.com/brandtcormorant/claude-json-schema, github.com/Sinity/polylogue docs/providers/claude-ai.md).
Browser exporters add `parent_message_uuid` and `current_leaf_message_uuid`.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from pipeline.core.jsonl import BadLine
from pipeline.core.text import quoted
from pipeline.intake.exports.answers import Answer, objects, result_text, texts, user_turn
from pipeline.intake.exports.export import Export, Head, Notes, each_record
from pipeline.intake.exports.trees import Reader, Tree, parents_of, tree_rows
from pipeline.intake.wire.draft import Turn

# Placeholder for a block in the `text` of older exports.
UNSUPPORTED = re.compile(r"(?:```\n)?This block is not supported on your current device yet\.\n?(?:```)?\n*")
CUT_OFF = ("max_tokens", "user_canceled")


def is_head(head: Head) -> bool:
    """Return True if a record has a list of chat messages."""
    return any(isinstance(value.get("chat_messages"), list) for value in head.objects())


def rows_of(value: dict[str, Any], notes: Notes) -> Iterator[dict[str, Any]]:
    """Yield the row of a conversation."""
    listed = value.get("chat_messages")
    if not isinstance(listed, list):
        raise BadLine("bad_shape", "a conversation of Claude.ai has a list chat_messages, and this has none")
    messages = {str(message.get("uuid") or n): message for n, message in enumerate(objects(listed))}
    if len(messages) < len(listed):
        notes["messages_not_read"] += len(listed) - len(messages)
    if not messages:
        notes["empty_conversations"] += 1
        return
    places = list(messages)
    if any(message.get("parent_message_uuid") for message in messages.values()):
        parents = parents_of(messages, "parent_message_uuid")
    else:
        parents = dict(zip(places, [None, *places], strict=False))
    current = value.get("current_leaf_message_uuid")
    leaf = current if isinstance(current, str) and current in messages else places[-1]
    tree = Tree(messages, parents)

    def turns(branch: Sequence[str], notes: Notes) -> list[Turn]:
        return [turn for place in branch for turn in _turns(messages[place], notes)]

    def is_user(place: str) -> bool:
        return messages[place].get("sender") == "human"

    yield from tree_rows(tree, leaf, Reader(turns, is_user), notes)


def _turns(message: dict[str, Any], notes: Notes) -> list[Turn]:
    sender = message.get("sender")
    blocks = objects(message.get("content"))
    stated = message.get("text")
    stated = stated if isinstance(stated, str) else ""
    if not any(block.get("type") != "token_budget" for block in blocks):
        stated, skipped = UNSUPPORTED.subn("", stated)
        notes["blocks_not_read"] += skipped
        blocks = [{"type": "text", "text": stated}]
    if sender == "human":
        return _user_turn(message, texts(*(block.get("text") for block in blocks)), notes)
    if sender != "assistant":
        raise BadLine("bad_role", f"the sender is {quoted(sender)}, neither human nor assistant")
    answer = Answer(notes)
    for number, block in enumerate(blocks, start=1):
        _add(answer, block, f"{message.get('uuid')}:{number}")
    return answer.finished(aborted=message.get("truncated") is True or message.get("stop_reason") in CUT_OFF)


def _user_turn(message: dict[str, Any], words: str, notes: Notes) -> list[Turn]:
    """Return the user's turn, with the text of attachments after it."""
    names = []
    for attached in objects(message.get("attachments")):
        name = str(attached.get("file_name") or "")
        extracted = attached.get("extracted_content")
        if isinstance(extracted, str) and extracted.strip():
            notes["attachments_as_text"] += 1
            words = texts(words, f"{name}:\n{extracted}" if name else extracted)
        else:
            names.append(name)
    names += [str(file.get("file_name") or "") for file in objects(message.get("files"))]
    return user_turn(words, names, notes)


def _add(answer: Answer, block: dict[str, Any], place: str) -> None:
    kind = block.get("type")
    if kind == "text":
        answer.say(texts(block.get("text")))
    elif kind == "thinking":
        answer.think(texts(block.get("thinking")))
    elif kind == "tool_use":
        answer.call(str(block.get("id") or place), str(block.get("name")), block.get("input") or {})
    elif kind == "tool_result":
        answer.result(block.get("tool_use_id") or None, result_text(block.get("content")))
    else:
        answer.notes["blocks_not_read"] += 1


EXPORT = Export("claude_ai", is_head, each_record(rows_of), large_keys=(b'"uuid"', b'"chat_messages"'))
