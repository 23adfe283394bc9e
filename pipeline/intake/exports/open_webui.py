"""Open WebUI's chats: Settings → Data Controls → Export Chats (all-chats-export-….json), or a chat's menu.

After the program's source (github.com/open-webui/open-webui, models/chats.py, as of 2026): `chat.history` has
`messages` by id (`parentId`, `role`, `content`, `annotation.rating`) and `currentId`. The content contains
reasoning and tool calls as `<details type="…">`.
"""

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.core.jsonl import BadLine, parse_lax
from pipeline.core.text import quoted
from pipeline.intake.exports.answers import Answer, objects, result_text, texts, user_turn
from pipeline.intake.exports.export import Export, Head, Notes, each_record
from pipeline.intake.exports.trees import Reader, Tree, parents_of, tree_rows
from pipeline.intake.wire.draft import Turn

DETAILS = re.compile(r"<details\s([^>]*)>(.*?)</details>\n?", re.DOTALL)
ATTRIBUTE = re.compile(r'([\w-]+)="([^"]*)"')
SUMMARY = re.compile(r"\s*<summary>.*?</summary>\s*", re.DOTALL)
QUOTE = re.compile(r"^> ?", re.MULTILINE)


def is_head(head: Head) -> bool:
    """Return True if a record is a chat with a history of messages by id."""
    return any(_history(value) is not None for value in head.objects())


def _chat(value: dict[str, Any]) -> dict[str, Any]:
    chat = value.get("chat")
    return chat if isinstance(chat, dict) else value


def _history(value: dict[str, Any]) -> dict[str, Any] | None:
    history = _chat(value).get("history")
    return history if isinstance(history, dict) and isinstance(history.get("messages"), dict) else None


def rows_of(value: dict[str, Any], notes: Notes) -> Iterator[dict[str, Any]]:
    """Yield the rows of a chat."""
    history = _history(value)
    if history is None:
        raise BadLine("bad_shape", "a chat of Open WebUI has history.messages by id, and this has none")
    stored = history["messages"]
    messages = {place: message for place, message in stored.items() if isinstance(message, dict)}
    if not messages:
        notes["empty_conversations"] += 1
        return
    thumbs = {place: up for place, message in messages.items() if (up := _thumb(message)) is not None}
    current = history.get("currentId", history.get("current_id"))
    if not isinstance(current, str) or current not in messages:
        notes["current_node_missing"] += 1
        current = [*messages][-1]
    tree = Tree(messages, parents_of(messages, "parentId"))
    chat = _chat(value)
    params = chat.get("params")
    system = texts((params if isinstance(params, dict) else {}).get("system")) or texts(chat.get("system"))

    def turns(places: Sequence[str], notes: Notes) -> list[Turn]:
        branch_turns: list[Turn] = [{"role": "system", "content": system}] if system else []
        for place in places:
            branch_turns += _turns(messages[place], notes, is_down=thumbs.get(place) is False)
        return branch_turns

    def is_user(place: str) -> bool:
        return messages[place].get("role") == "user"

    yield from tree_rows(tree, current, Reader(turns, is_user), notes, thumbs)


def _thumb(message: Mapping[str, Any]) -> bool | None:
    """Return True for a thumb up, False for one down, None without a thumb."""
    annotation = message.get("annotation")
    rating = annotation.get("rating") if isinstance(annotation, dict) else None
    return {1: True, -1: False}.get(rating) if isinstance(rating, int) else None


def _turns(message: dict[str, Any], notes: Notes, *, is_down: bool) -> list[Turn]:
    role = message.get("role")
    content = message.get("content")
    words = content if isinstance(content, str) else result_text(content)
    if role == "user":
        files = objects(message.get("files"))
        names = [str(file.get("name") or file.get("url") or "") for file in files]
        return user_turn(words, names, notes, shows_image=any(file.get("type") == "image" for file in files))
    if role == "system":
        return [{"role": "system", "content": words}]
    if role != "assistant":
        raise BadLine("bad_role", f"the role is {quoted(role)}")
    notes["attachments"] += len(objects(message.get("files")))
    answer = Answer(notes)
    end = 0
    for block in DETAILS.finditer(words):
        answer.say(words[end : block.start()].strip())
        end = block.end()
        _add(answer, dict(ATTRIBUTE.findall(block[1])), block[2])
    answer.say(words[end:].strip())
    aborted = message.get("done") is False or bool(message.get("error"))
    return answer.finished(aborted=aborted, is_down=is_down)


def _add(answer: Answer, attributes: Mapping[str, str], inside: str) -> None:
    kind = attributes.get("type")
    if kind == "reasoning":
        thoughts = QUOTE.sub("", SUMMARY.sub("", inside, count=1))
        answer.think(html.unescape(thoughts).strip())
    elif kind == "tool_calls":
        place = attributes.get("id") or f"call_{len(answer.turns)}"
        answer.call(
            place, html.unescape(attributes.get("name", "")), _decoded(attributes.get("arguments", ""))
        )
        if "result" in attributes:
            answer.result(place, result_text(_decoded(attributes["result"])))
    else:
        answer.notes["blocks_not_read"] += 1


def _decoded(attribute: str) -> Any:
    """Return an attribute's value: text that is JSON, which may be JSON text again."""
    words: Any = html.unescape(attribute)
    for _ in range(2):
        if not isinstance(words, str):
            break
        try:
            words = parse_lax(words)
        except BadLine:
            break
    return words


EXPORT = Export(
    "open_webui", is_head, each_record(rows_of), large_keys=(b'"history"', b'"chat"'), has_rows=True
)
