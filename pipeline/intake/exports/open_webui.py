"""Open WebUI's chats: Settings → Data Controls → Export Chats (all-chats-export-….json), or a chat's menu.

After the program's source (github.com/open-webui/open-webui, models/chats.py, as of 2026): `chat.history` has
`messages` by id (`parentId`, `role`, `content`, `annotation.rating`) and `currentId`. The content contains
reasoning and tool calls as `<details type="…">`.
"""

import html
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.core.jsonl import BadLine, parse_lax
from pipeline.core.text import quoted
from pipeline.intake.exports.answers import Answer, result_text, user_turn
from pipeline.intake.exports.export import Export, Notes, any_record, each_record
from pipeline.intake.exports.trees import Tree, by_message, parents_of, thumbs_of, tree_rows
from pipeline.intake.exports.view import View
from pipeline.intake.wire.draft import Turn

DETAILS = re.compile(r"<details\s([^>]*)>(.*?)</details>\n?", re.DOTALL)
ATTRIBUTE = re.compile(r'([\w-]+)="([^"]*)"')
SUMMARY = re.compile(r"\s*<summary>.*?</summary>\s*", re.DOTALL)
QUOTE = re.compile(r"^> ?", re.MULTILINE)


def _has_history(value: View) -> bool:
    return _chat(value).object("history").has("messages", dict)


def _chat(value: View) -> View:
    return value.object("chat") if value.has("chat", dict) else value


def rows_of(value: View, notes: Notes) -> Iterator[dict[str, Any]]:
    """Yield the rows of a chat."""
    if not _has_history(value):
        raise BadLine("bad_shape", "a chat of Open WebUI has history.messages by id, and this has none")
    chat = _chat(value)
    history = chat.object("history")
    messages = history.object("messages").objects_by_key()
    if not messages:
        notes["empty_conversations"] += 1
        return
    current = history.text_or_none("currentId" if "currentId" in history else "current_id")
    if current not in messages:
        notes["current_node_missing"] += 1
        current = [*messages][-1]
    tree = Tree(messages, parents_of(messages, "parentId"))
    system = chat.object("params").texts("system") or chat.texts("system")
    reader = by_message(_turns, _is_user, system)
    yield from tree_rows(tree, current, reader, notes, thumbs_of(messages, _thumb))


def _is_user(message: View) -> bool:
    return message.get("role") == "user"


def _thumb(message: View) -> bool | None:
    """Return True for a thumb up, False for one down, None without a thumb."""
    return {1: True, -1: False}.get(message.object("annotation").integer("rating"))


def _turns(message: View, notes: Notes) -> list[Turn]:
    role = message.get("role")
    words = result_text(message.get("content"))
    if role == "user":
        files = message.objects("files")
        names = [file.label("name", "url") for file in files]
        return user_turn(words, names, notes, shows_image=any(file.get("type") == "image" for file in files))
    if role == "system":
        return [{"role": "system", "content": words}]
    if role != "assistant":
        raise BadLine("bad_role", f"the role is {quoted(role)}")
    notes["attachments"] += len(message.objects("files"))
    answer = Answer(notes)
    end = 0
    for block in DETAILS.finditer(words):
        answer.say(words[end : block.start()].strip())
        end = block.end()
        _add(answer, dict(ATTRIBUTE.findall(block[1])), block[2])
    answer.say(words[end:].strip())
    aborted = message.get("done") is False or bool(message.get("error"))
    return answer.finished(aborted=aborted, is_down=_thumb(message) is False)


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
    "open_webui",
    any_record(_has_history),
    each_record(rows_of),
    large_keys=(b'"history"', b'"chat"'),
    has_rows=True,
)
