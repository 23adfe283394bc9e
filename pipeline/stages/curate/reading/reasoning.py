"""Reasoning before an answer: below a key of its turn, in parts of the turn's content, or next to the answer
of a row without turns.

Reasoning in a place that is not read makes the row bad, because the answer would be learned without it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.chat.rows import TURN_LISTS, BadRow
from pipeline.stages.curate.reading.values import Value, text

READ = ("reasoning_content", "reasoning", "thinking")
# Other names that are not read. Next to one that is read they repeat it.
UNREAD = ("reasoning_details", "reasoning_text", "thinking_blocks", "thought", "thoughts")
OF_ROWS = (*READ, *UNREAD, "chain_of_thought", "cot", "CoT", "Complex_CoT")
ANY_OF_ROWS = frozenset(OF_ROWS)
PARTS = {"thinking": "thinking", "reasoning": "text"}  # type of a part, and the key of its text


def reasoning_of(item: Mapping[str, Any], role: str, where: str) -> str:
    """Return the reasoning below a turn's own key.

    Raises `BadRow` if it is below a key that is not read, or if two keys have different reasoning.
    """
    stated = [text(item[key], f"{where} {key}") for key in READ if item.get(key)]
    if stated:
        if any(other.strip() != stated[0].strip() for other in stated):
            raise BadRow("unsupported_field", f"{where} has reasoning in two keys, and they differ")
        return stated[0]
    unread = next((key for key in UNREAD if item.get(key)), None)
    if unread is not None and role == "assistant":
        raise BadRow("unsupported_field", f"{where}: {unread} would be lost: write reasoning_content")
    return ""


def split_reasoning(content: Any, where: str) -> tuple[str, Any]:
    """Return the reasoning in separate parts of a turn's content, and the content without them."""
    if not isinstance(content, list):
        return "", content
    thoughts = []
    rest = []
    for part in content:
        key = PARTS.get(str(part.get("type"))) if isinstance(part, dict) else None
        if key is None:
            rest.append(part)
        else:
            thoughts.append(text(part.get(key), f"{where}: reasoning"))
    return "\n".join(thoughts), rest if thoughts else content


def add_reasoning(value: Value, content: dict[str, Any], keys: Sequence[str], *, is_read: bool) -> None:
    """Give the last answer of `content` the reasoning that its row has next to it. `keys` are read otherwise.

    Raises `BadRow` if the row's format does not read it (`is_read`), or not below that key, and no turn
    contains the same. A single word, such as off, is a switch and not reasoning.
    """
    if ANY_OF_ROWS.isdisjoint(value):  # The usual case.
        return
    key = next((key for key in OF_ROWS if key in value and key not in keys and _is_prose(value[key])), None)
    if key is None:
        return
    words = value[key].strip()
    turns = [turn for field in TURN_LISTS for turn in content.get(field, ())]
    if any(words in turn["content"] or words in turn.get("reasoning_content", "") for turn in turns):
        return
    if not is_read or key not in READ:
        raise BadRow(
            "unsupported_field", f"{key} would be lost: write it as reasoning_content of the answer's turn"
        )
    content["messages"][-1]["reasoning_content"] = words


def _is_prose(value: Any) -> bool:
    return isinstance(value, str) and len(value.split()) > 1
