"""Reasoning before an answer: below a key of its turn, in parts of the turn's content, or next to the answer
of a row without turns.

Reasoning in a place that is not read makes the row bad, because the answer would be learned without it. A key
speaks of reasoning if one of its words does, as in `deepseek_thinking`.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from pipeline.chat.rows import TURN_LISTS, BadRow
from pipeline.intake.rows.marks import words_in
from pipeline.intake.rows.values import Value, text

READ = ("reasoning_content", "reasoning", "thinking")
# Other names that are not read. Next to one that is read they repeat it.
UNREAD = ("reasoning_details", "reasoning_text", "thinking_blocks", "thought", "thoughts")
# Words of keys that hold reasoning, also of those from which a mapping is guessed.
WORDS = frozenset(
    (
        *("cot", "monologue", "rationale", "rationales", "reasoning", "scratchpad", "thinking", "thought"),
        "thoughts",
    )
)
EXPLAINS = frozenset(("explanation", "explanations"))  # It may follow the answer, so no mapping is guessed.
COMPARES = EXPLAINS | {"rationale", "rationales"}  # Beside a pair or a thumb it is the judge's.
# Last words of keys that say something about reasoning.
ABOUT = frozenset(
    (
        *("budget", "category", "domain", "effort", "format", "id", "language", "length", "level", "mode"),
        *("model", "name", "quality", "required", "score", "source", "status", "style", "tag", "tags"),
        *("template", "time", "tokens", "type"),
    )
)
LONGEST_SWITCH = 8  # characters of a word without spaces around it, in a script that writes none
KNOWN_KEYS = 4096
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
    if role == "assistant":
        for key, value in item.items():
            if value and (key in UNREAD or (_speaks(key) and _is_prose(value))):
                raise BadRow("unsupported_field", f"{where}: {key} would be lost: write reasoning_content")
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
    if not any(map(_speaks, value)):  # The usual case.
        return
    is_judged = "chosen" in content or "label" in content
    stated = [
        key
        for key in value
        if key not in keys and _speaks(key) and _is_prose(value[key])
        if not (is_judged and COMPARES.intersection(words_in(key)))
    ]
    key = next((key for key in READ if key in stated), next(iter(stated), None))
    if key is None:
        return
    texts = [words.strip() for words in _strings(value[key])]
    turns = [turn for field in TURN_LISTS for turn in content.get(field, ())]
    said = [words for turn in turns for words in (turn["content"], turn.get("reasoning_content", ""))]
    if all(any(words in other for other in said) for words in texts):
        return
    if not is_read:
        raise BadRow(
            "unsupported_field",
            f"{key} would be lost: write it as reasoning_content of the answer's turn, or set it to null in "
            "curate.fields",
        )
    if len(texts) > 1:
        raise BadRow(
            "unsupported_field",
            f"{key} holds {len(texts)} texts of reasoning: map one of them in curate.fields, "
            f"reasoning_content: {key}.0 for example, or set it to null there",
        )
    if key not in READ:
        raise BadRow(
            "unsupported_field",
            f"{key} would be lost: map it in curate.fields, reasoning_content: {key}, or set it to null "
            "there",
        )
    content["messages"][-1]["reasoning_content"] = texts[0]


@lru_cache(KNOWN_KEYS)
def _speaks(key: str) -> bool:
    """Return True if a word of a key speaks of reasoning, and its last word not of a property of that."""
    words = words_in(key)
    return not (WORDS | EXPLAINS).isdisjoint(words) and words[-1] not in ABOUT


def _is_prose(value: Any) -> bool:
    """Return True for a text of several words, also within lists and objects."""
    return any(
        len(words.split()) > 1 or (not words.isascii() and len(words.strip()) > LONGEST_SWITCH)
        for words in _strings(value)
    )


def _strings(value: Any) -> Iterator[str]:
    """Yield the texts of a value that are not blank, also those within lists and objects."""
    if isinstance(value, str) and value.strip():
        yield value
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)
