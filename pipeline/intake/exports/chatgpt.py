"""ChatGPT's export: conversations.json next to message_feedback.json.

Since 2026 it may be conversations-000.json and so on instead. OpenAI publishes no schema. The one read here
is the one that public readers of real exports describe from 2023 to September 2026: a conversation has a
`mapping` of nodes (`id`, `parent`, `children`, `message`) and the id of its `current_node`
(github.com/mitkury/chatgpt-export-parser, docs/chatgpt-data-export-format.md;
github.com/danny-avila/LibreChat, importers.js; mohamed-chs/convoviz#49 for the files with numbers).
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pipeline.core.jsonl import BadLine, object_in, parse_lax
from pipeline.core.text import quoted
from pipeline.intake.exports.export import Conversation, Export, Notes, Records, any_record, each_record
from pipeline.intake.exports.trees import Reader, Tree, parents_of, tree_rows
from pipeline.intake.exports.view import View, objects, text_in, texts
from pipeline.intake.wire.draft import Turn

UP = ("thumbs_up", "thumbsUp")
DOWN = ("thumbs_down", "thumbsDown")
# Marks of sources in an answer: 【12†source】, and since 2024 words between private-use characters.
CITATION = re.compile("【\\d[^【】]*†[^【】]*】|\ue200(?!entity)[^\ue200\ue201]*\ue201")
ENTITY = re.compile("\ue200entity\ue202(\\[[^\ue200\ue201]*\\])\ue201")
PRIVATE = re.compile("[\ue200-\ue2ff]")
TEXTS = ("text", "multimodal_text", "code")  # types of content


def _is_conversation(value: View) -> bool:
    """Return True for a mapping of nodes, and the current one or the time of its beginning."""
    return value.has("mapping", dict) and not value.keys().isdisjoint(("current_node", "create_time"))


def read(records: Records, notes: Notes) -> Iterator[Conversation]:
    """Yield the rows of each conversation."""
    thumbs = _thumbs(records.beside("message_feedback.json"))

    def rows_of(value: View, notes: Notes) -> Iterator[dict[str, Any]]:
        return _rows(value, thumbs, notes)

    return each_record(rows_of)(records, notes)


def _thumbs(feedback: Sequence[Any]) -> dict[str, bool]:
    """Return the thumbs by the ids of their messages: True for up."""
    thumbs = {}
    for entry in objects(feedback):
        place = entry.get("message_id") or entry.get("id")
        rating = entry.get("rating")
        if isinstance(place, str) and rating in (*UP, *DOWN):
            thumbs[place] = rating in UP
    return thumbs


def _rows(value: View, thumbs: Mapping[str, bool], notes: Notes) -> Iterator[dict[str, Any]]:
    if not value.has("mapping", dict):
        raise BadLine("bad_shape", "a conversation of ChatGPT has a mapping of nodes, and this has none")
    nodes = value.object("mapping").objects_by_key()
    tree = Tree(nodes, parents_of(nodes, "parent"))
    if not nodes:
        notes["empty_conversations"] += 1
        return
    leaf = value.text_or_none("current_node")
    if leaf not in nodes:
        notes["current_node_missing"] += 1
        leaf = max(tree.leaves() or nodes, key=lambda place: _time(nodes[place]))
    notes["orphans"] += sum(parent is not None and parent not in nodes for parent in tree.parents.values())

    def turns(branch: Iterable[View], notes: Notes) -> list[Turn]:
        return _Turns(notes, thumbs).of(branch)

    yield from tree_rows(tree, leaf, Reader(turns, _is_user), notes, thumbs)


def _time(node: View) -> float:
    return node.object("message").number("create_time")


def _is_user(node: View) -> bool:
    return node.object("message").object("author").get("role") == "user"


class _Turns:
    """Turns of one branch, message by message."""

    def __init__(self, notes: Notes, thumbs: Mapping[str, bool]) -> None:
        self.notes = notes
        self.thumbs = thumbs
        self.turns: list[Turn] = []
        self.thoughts: list[str] = []
        self.calls: dict[str, str] = {}  # calls without a result yet: id → tool

    def of(self, nodes: Iterable[View]) -> list[Turn]:
        """Return the turns of the messages of these nodes, of which some have none."""
        for node in nodes:
            if node.has("message", dict):
                self.add(node.object("message"))
        self._drop_calls()
        self._drop_thoughts()
        return self.turns

    def add(self, message: View) -> None:
        """Add the content of a message. Raises `BadLine` for a type that is not known."""
        role = message.object("author").text_or_none("role")
        if role is None or not message.has("content", dict | None):
            raise BadLine("bad_shape", "a message of ChatGPT has an author with a role, and content")
        content = message.object("content")
        metadata = message.object("metadata")
        instructions = _instructions(content, metadata)
        if instructions:
            self.turns.append({"role": "system", "content": instructions})
            self.notes["custom_instructions"] += 1
        elif metadata.get("is_visually_hidden_from_conversation") or _is_unsaid(content):
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

    def _add_said(self, role: str, content: View, metadata: View) -> None:
        self._drop_calls()
        if role == "user":
            self._drop_thoughts()
        words, images, others = _words(content)
        listed = len(metadata.array("attachments"))
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

    def _add_answer(self, message: View, content: View, metadata: View) -> None:
        kind = content.get("content_type")
        if kind == "thoughts":
            thoughts = content.objects("thoughts")
            stated = [texts(thought.get("content") or thought.get("summary")) for thought in thoughts]
            self.thoughts += filter(None, stated)
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
        recipient = message.text("recipient")
        turn: Turn = {"role": "assistant", "content": ""}
        if self.thoughts:
            turn["reasoning_content"] = "\n\n".join(self.thoughts)
            self.thoughts = []
        if recipient not in ("all", ""):
            place = message.label("id", default=f"call_{len(self.turns)}")
            function = {"name": recipient, "arguments": _arguments(words, kind)}
            turn["tool_calls"] = [{"id": place, "type": "function", "function": function}]
            self.calls[place] = recipient
            self.turns.append(turn)
            return
        self._drop_calls()
        turn["content"] = self._without_citations(words)
        if not turn["content"].strip() and "reasoning_content" not in turn:
            return
        ended = metadata.object("finish_details").get("type")
        is_partial = message.get("status") in ("in_progress", "finished_partial_completion")
        if is_partial or ended in ("interrupted", "max_tokens"):
            self.notes["aborted"] += 1
            turn["train"] = False
        if self.thumbs.get(str(message.get("id"))) is False:
            self.notes["thumbs_down_not_trained"] += 1
            turn["train"] = False
        self.turns.append(turn)

    def _add_result(self, message: View, content: View) -> None:
        name = message.object("author").get("name")
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


def _is_unsaid(content: View) -> bool:
    """Return True for content that neither the user nor the model said."""
    kinds = ("model_editable_context", "system_error", "app_pairing_content")
    return content.get("content_type") in kinds


def _instructions(content: View, metadata: View) -> str:
    """Return the user's custom instructions, in the form of exports of 2024 or of 2023."""
    if content.get("content_type") == "user_editable_context":
        return content.texts("user_profile", "user_instructions")
    if metadata.get("is_user_system_message"):
        data = metadata.object("user_context_message_data")
        return data.texts("about_user_message", "about_model_message")
    return ""


def _words(content: View) -> tuple[str, int, int]:
    """Return a content's text, and the numbers of images and other parts in it."""
    # The parts of a voice chat are objects with text.
    words = [words for words in map(text_in, content.array("parts")) if words is not None]
    others = [part for part in content.objects("parts") if not part.has("text", str)]
    images = sum(part.get("content_type") == "image_asset_pointer" for part in others)
    if not words:
        words = [content.text(key) for key in ("text", "result") if content.has(key, str)]
    return "\n".join(words), images, len(others) - images


def _arguments(words: str, kind: Any) -> dict[str, Any]:
    """Return a call's arguments: the JSON object in the text, or the text below one key."""
    value = object_in(words)
    if value is not None:
        return value
    return {"code" if kind == "code" else "input": words}


EXPORT = Export("chatgpt", any_record(_is_conversation), read, large_keys=(b'"mapping"', b'"create_time"'))
