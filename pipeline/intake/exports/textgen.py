"""Histories of text-generation-webui: `internal` and `visible`, lists of pairs of question and answer.

After oobabooga/text-generation-webui `modules/chat.py` (2023 to 2026); before that the keys were `data` and
`data_visible`. `visible` is the same for the browser, with HTML, so the internal texts are read. A
character's greeting is an answer to a marker.
"""

from collections.abc import Iterator
from typing import Any

from pipeline.core.jsonl import BadLine
from pipeline.intake.exports.export import Export, Notes, any_record, conversation_rows, each_record
from pipeline.intake.exports.view import View
from pipeline.intake.wire.draft import Turn

KEYS = (("internal", "visible"), ("data", "data_visible"))


def is_history(value: View) -> bool:
    """Return True for an object with both lists, of which the internal one begins with a pair."""
    pairs = _pairs(value)
    return bool(pairs) and isinstance(pairs[0], list) and len(pairs[0]) == 2


def _pairs(value: View) -> list[Any]:
    """Return the internal pairs of a history; none for anything else."""
    for internal, visible in KEYS:
        if value.has(internal, list) and value.has(visible, list):
            return value.array(internal)
    return []


def rows_of(value: View, notes: Notes) -> Iterator[dict[str, Any]]:
    """Yield the conversation of a history, if it has any turn. Raises `BadLine` if a pair is none."""
    if not any(key in value for keys in KEYS for key in keys):
        raise BadLine("bad_shape", "a history of text-generation-webui has the lists internal and visible")
    turns: list[Turn] = []
    for number, pair in enumerate(_pairs(value), start=1):
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            raise BadLine("bad_shape", f"internal {number} is not a pair of texts")
        question, answer = pair
        if question.strip() and question != "<|BEGIN-VISIBLE-CHAT|>":  # marker before a greeting
            turns.append({"role": "user", "content": question})
        if answer.strip():
            turns.append({"role": "assistant", "content": answer})
    yield from conversation_rows(turns, notes)


EXPORT = Export("textgen", any_record(is_history), each_record(rows_of))
