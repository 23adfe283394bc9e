"""ChatGPT's export: conversations.json next to message_feedback.json.

Since 2026 it may be conversations-000.json and so on instead. OpenAI publishes no schema. The one read here
is the one that public readers of real exports describe from 2023 to September 2026: a conversation has a
`mapping` of nodes (`id`, `parent`, `children`, `message`) and the id of its `current_node`
(github.com/mitkury/chatgpt-export-parser, docs/chatgpt-data-export-format.md;
github.com/danny-avila/LibreChat, importers.js; mohamed-chs/convoviz#49 for the files with numbers).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.core.jsonl import BadLine, object_in, parse_lax
from pipeline.core.text import quoted
from pipeline.intake.exports.export import Conversation, Export, Head, Notes, Records, each_record
from pipeline.intake.exports.trees import Reader, Tree, parents_of, tree_rows
from pipeline.intake.wire.draft import Turn

FEEDBACK = "message_feedback.json"
UP = ("thumbs_up", "thumbsUp")
DOWN = ("thumbs_down", "thumbsDown")
# Marks of sources in an answer: 【12†source】, and since 2024 words between private-use characters.
CITATION = re.compile("【\\d[^【】]*†[^【】]*】|\ue200(?!entity)[^\ue200\ue201]*\ue201")
ENTITY = re.compile("\ue200entity\ue202(\\[[^\ue200\ue201]*\\])\ue201")
PRIVATE = re.compile("[\ue200-\ue2ff]")
ABORTED = ("in_progress", "finished_partial_completion")
CUT_OFF = ("interrupted", "max_tokens")
TEXTS = ("text", "multimodal_text", "code")
IMAGE = "image_asset_pointer"
# types of content that no one said
SKIPPED = ("model_editable_context", "system_error", "app_pairing_content")


def is_head(head: Head) -> bool:
    """Return True if a record has a mapping of nodes, and the current one or the time of its beginning."""
    return any(
        isinstance(value.get("mapping"), dict)
        and not value.keys().isdisjoint(("current_node", "create_time"))
        for value in head.objects()
    )


def read(records: Records, notes: Notes) -> Iterator[Conversation]:
    """Yield the rows of each conversation."""
    thumbs = _thumbs(records.beside(FEEDBACK))

    def rows_of(value: dict[str, Any], notes: Notes) -> Iterator[dict[str, Any]]:
        return _rows(value, thumbs, notes)

    return each_record(rows_of)(records, notes)


def _thumbs(feedback: Sequence[Any]) -> dict[str, bool]:
    """Return the thumbs by the ids of their messages: True for up."""
    thumbs = {}
    for entry in feedback:
        if not isinstance(entry, dict):
            continue
        place = entry.get("message_id") or entry.get("id")
        rating = entry.get("rating")
        if isinstance(place, str) and rating in (*UP, *DOWN):
            thumbs[place] = rating in UP
    return thumbs


def _rows(value: dict[str, Any], thumbs: Mapping[str, bool], notes: Notes) -> Iterator[dict[str, Any]]:
    mapping = value.get("mapping")
    if not isinstance(mapping, dict):
        raise BadLine("bad_shape", "a conversation of ChatGPT has a mapping of nodes, and this has none")
    nodes = {place: node for place, node in mapping.items() if isinstance(node, dict)}
    tree = Tree(nodes, parents_of(nodes, "parent"))
    if not nodes:
        notes["empty_conversations"] += 1
        return
    current = value.get("current_node")
    if isinstance(current, str) and current in nodes:
        leaf = current
    else:
        notes["current_node_missing"] += 1
        leaf = max(tree.leaves() or nodes, key=lambda place: _time(nodes[place]))
    notes["orphans"] += sum(parent is not None and parent not in nodes for parent in tree.parents.values())

    def turns(places: Sequence[str], notes: Notes) -> list[Turn]:
        return _Turns(notes, thumbs).of(nodes[place].get("message") for place in places)

    def is_user(place: str) -> bool:
        return _role(nodes[place].get("message")) == "user"

    yield from tree_rows(tree, leaf, Reader(turns, is_user), notes, thumbs)


def _time(node: Mapping[str, Any]) -> float:
    message = node.get("message")
    time = message.get("create_time") if isinstance(message, dict) else None
    return time if isinstance(time, int | float) else 0.0


def _role(message: Any) -> str | None:
    author = message.get("author") if isinstance(message, dict) else None
    role = author.get("role") if isinstance(author, dict) else None
    return role if isinstance(role, str) else None


class _Turns:
    """Turns of one branch, message by message."""

    def __init__(self, notes: Notes, thumbs: Mapping[str, bool]) -> None:
        self.notes = notes
        self.thumbs = thumbs
        self.turns: list[Turn] = []
        self.thoughts: list[str] = []
        self.calls: dict[str, str] = {}  # calls without a result yet: id → tool

    def of(self, messages: Iterator[Any]) -> list[Turn]:
        """Return the turns of these messages."""
        for message in messages:
            if isinstance(message, dict):
                self.add(message)
        self._drop_calls()
        self._drop_thoughts()
        return self.turns

    def add(self, message: dict[str, Any]) -> None:
        """Add the content of a message. Raises `BadLine` for a type that is not known."""
        role = _role(message)
        content = message.get("content")
        if role is None or not isinstance(content, dict | None):
            raise BadLine("bad_shape", "a message of ChatGPT has an author with a role, and content")
        content = content or {}
        metadata = message.get("metadata")
        metadata = metadata if isinstance(metadata, dict) else {}
        instructions = _instructions(content, metadata)
        if instructions:
            self.turns.append({"role": "system", "content": instructions})
            self.notes["custom_instructions"] += 1
        elif metadata.get("is_visually_hidden_from_conversation") or content.get("content_type") in SKIPPED:
            self.notes["hidden"] += 1
        elif message.get("weight") == 0 and role != "tool":
            self.notes["weight_0"] += 1
        elif role == "tool":
            self._add_result(message, content)
        elif role == "assistant":
            self._add_answer(message, content, metadata)
        elif role in ("system", "user"):
            self._add_said(role, content, metadata)
        else:
            raise BadLine("bad_role", f"the author's role is {quoted(role)}")

    def _add_said(self, role: str, content: dict[str, Any], metadata: dict[str, Any]) -> None:
        self._drop_calls()
        if role == "user":
            self._drop_thoughts()
        words, images, others = _words(content)
        attached = metadata.get("attachments")
        listed = len(attached) if isinstance(attached, list) else 0
        if images:
            raise BadLine(
                "unsupported_field", "the user shows an image, without which the rest can't be told"
            )
        if not words.strip() and content.get("content_type") not in (None, *TEXTS):
            kind = quoted(content["content_type"])
            raise BadLine("unsupported_field", f"the {role}'s content is {kind}, which is not read")
        self.notes["attachments"] += max(others, listed)
        if role == "user" and not words.strip() and (others or listed):
            raise BadLine("unsupported_field", "a turn of the user is nothing but an attachment")
        if words.strip() or role == "user":
            self.turns.append({"role": role, "content": words})

    def _add_answer(self, message: dict[str, Any], content: dict[str, Any], metadata: dict[str, Any]) -> None:
        kind = content.get("content_type")
        if kind == "thoughts":
            self.thoughts += _thoughts(content)
            return
        if kind == "reasoning_recap":  # "Thought for 8s"
            self.notes["reasoning_recaps"] += 1
            return
        if kind not in TEXTS:
            raise BadLine(
                "unsupported_field", f"the assistant's content is {quoted(kind)}, which is not read"
            )
        words, images, others = _words(content)
        self.notes["attachments"] += images + others
        recipient = message.get("recipient")
        turn: Turn = {"role": "assistant", "content": ""}
        if self.thoughts:
            turn["reasoning_content"] = "\n\n".join(self.thoughts)
            self.thoughts = []
        if isinstance(recipient, str) and recipient not in ("all", ""):
            place = str(message.get("id") or f"call_{len(self.turns)}")
            function = {"name": recipient, "arguments": _arguments(words, kind)}
            turn["tool_calls"] = [{"id": place, "type": "function", "function": function}]
            self.calls[place] = recipient
            self.turns.append(turn)
            return
        self._drop_calls()
        turn["content"] = self._without_citations(words)
        if not turn["content"].strip() and "reasoning_content" not in turn:
            return
        details = metadata.get("finish_details")
        ended = details.get("type") if isinstance(details, dict) else None
        if message.get("status") in ABORTED or ended in CUT_OFF:
            self.notes["aborted"] += 1
            turn["train"] = False
        if self.thumbs.get(str(message.get("id"))) is False:
            self.notes["thumbs_down_not_trained"] += 1
            turn["train"] = False
        self.turns.append(turn)

    def _add_result(self, message: dict[str, Any], content: dict[str, Any]) -> None:
        name = message["author"].get("name")
        place = next((identity for identity, tool in self.calls.items() if tool == name), None)
        place = place or next(iter(self.calls), None)
        words, images, others = _words(content)
        self.notes["attachments"] += images + others
        last = self.turns[-1] if self.turns else {}
        if place is not None:
            del self.calls[place]
            self.turns.append({"role": "tool", "tool_call_id": place, "content": words})
        elif last.get("role") == "tool":
            last["content"] = "\n".join(filter(None, (last["content"], words)))
        else:
            self.notes["results_without_call"] += 1

    def _drop_calls(self) -> None:
        """Remove the calls that got no result."""
        if not self.calls:
            return
        self.notes["calls_without_result"] += len(self.calls)
        self.turns = [
            turn
            for turn in self.turns
            if not ("tool_calls" in turn and turn["tool_calls"][0]["id"] in self.calls)
        ]
        self.calls = {}

    def _drop_thoughts(self) -> None:
        """Remove the thoughts of an answer that never came."""
        self.notes["thoughts_without_answer"] += bool(self.thoughts)
        self.thoughts = []

    def _without_citations(self, words: str) -> str:
        """Return an answer without marks of its sources, which ChatGPT's page adds."""
        if "【" not in words and not PRIVATE.search(words):
            return words
        words, entities = ENTITY.subn(_entity, words)
        words, marks = CITATION.subn("", words)
        self.notes["citations"] += marks + entities
        return PRIVATE.sub("", words)


def _entity(match: re.Match[str]) -> str:
    """Return the name that a mark of an entity shows."""
    try:
        names = parse_lax(match[1])
    except BadLine:
        return ""
    return names[1] if len(names) > 1 and isinstance(names[1], str) else ""


def _instructions(content: dict[str, Any], metadata: dict[str, Any]) -> str:
    """Return the user's custom instructions, in the form of exports of 2024 or of 2023."""
    if content.get("content_type") == "user_editable_context":
        stated = [content.get("user_profile"), content.get("user_instructions")]
    elif metadata.get("is_user_system_message"):
        data = metadata.get("user_context_message_data")
        data = data if isinstance(data, dict) else {}
        stated = [data.get("about_user_message"), data.get("about_model_message")]
    else:
        return ""
    return "\n\n".join(words for words in stated if isinstance(words, str) and words.strip())


def _words(content: dict[str, Any]) -> tuple[str, int, int]:
    """Return a content's text, and the numbers of images and other parts in it."""
    texts = []
    images = others = 0
    parts = content.get("parts")
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and isinstance(part.get("text"), str):  # a voice chat
            texts.append(part["text"])
        elif isinstance(part, dict):
            images += part.get("content_type") == IMAGE
            others += part.get("content_type") != IMAGE
    if not texts:
        stated = (content.get(key) for key in ("text", "result"))
        texts = [words for words in stated if isinstance(words, str)]
    return "\n".join(texts), images, others


def _thoughts(content: dict[str, Any]) -> list[str]:
    thoughts = content.get("thoughts")
    stated = []
    for thought in thoughts if isinstance(thoughts, list) else ():
        if isinstance(thought, dict):
            words = thought.get("content") or thought.get("summary")
            if isinstance(words, str) and words.strip():
                stated.append(words)
    return stated


def _arguments(words: str, kind: Any) -> dict[str, Any]:
    """Return a call's arguments: the JSON object in the text, or the text below one key."""
    value = object_in(words)
    if value is not None:
        return value
    return {"code" if kind == "code" else "input": words}


EXPORT = Export("chatgpt", is_head, read, large_keys=(b'"mapping"', b'"create_time"'))
