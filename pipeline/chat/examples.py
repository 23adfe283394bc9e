"""Training chats put before a question as examples: what the untuned base reaches by a prompt alone."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipeline.chat.rendering import Unrenderable
from pipeline.chat.rows import Row
from pipeline.chat.selection import SPARE, chats_in, drawn, is_answerable
from pipeline.chat.tokens import encode


def example_rows(tokenizer: Any, rows: Path, count: int, max_tokens: int) -> list[Row]:
    """Return up to `count` drawn chats that can be examples, of at most `max_tokens` tokens together."""
    examples = list[Row]()
    left = max_tokens
    candidates = drawn(filter(is_example, chats_in(rows)), SPARE * count)
    for row, encoded in encode(tokenizer, candidates):
        if isinstance(encoded, Unrenderable):
            continue
        tokens = max(len(part.ids) for part in encoded)
        if tokens <= left and len(examples) < count:
            examples.append(row)
            left -= tokens
    return examples


def is_example(row: Row) -> bool:
    """Return True if a chat consists of questions and answers in words, after at most a system prompt.

    Calls of tools are left out: the question that follows may offer other tools.
    """
    roles = [turn["role"] for turn in _turns(row)]
    return roles == ["user", "assistant"] * (len(roles) // 2) and not row.get("tools") and is_answerable(row)


def with_examples(row: Row, examples: Iterable[Row]) -> Row:
    """Return the chat `row` with the turns of the `examples` after its system prompt."""
    turns = _turns(row)
    system = row["messages"][: len(row["messages"]) - len(turns)]
    shown = [turn for example in examples for turn in _turns(example)]
    return row | {"messages": [*system, *shown, *turns]}


def _turns(row: Row) -> list[dict[str, Any]]:
    """Return the turns of a chat after its system prompt."""
    messages: list[dict[str, Any]] = row["messages"]
    return [turn for turn in messages if turn["role"] != "system"]
