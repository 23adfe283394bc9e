"""Labels on what is asked too, not on the answers alone (`train.train_on_prompt`).

Every token is trained, but for assistant turns with `train: false`. Of a conversation that the template
unfolds (`pipeline.chat.rendering`) only the first part learns its prompt: those of the later parts repeat it.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from pipeline.chat.rendering import Unrenderable
from pipeline.chat.template_probe import Message
from pipeline.chat.tokens import IGNORED, Encoded, Row, encode


def with_prompts(
    tokenizer: Any, encoded: Iterable[tuple[Row, list[Encoded] | Unrenderable]]
) -> Iterator[tuple[Row, list[Encoded] | Unrenderable]]:
    """`encode`'s rows with their prompts labeled too."""
    for row, found in encoded:
        if isinstance(found, Unrenderable):
            yield row, found
            continue
        try:
            yield row, [_with_prompt(tokenizer, row, found[0]), *found[1:]]
        except Unrenderable as why:
            yield row, why


def held_turns(messages: list[Message]) -> list[int]:
    """The places of the assistant turns that are read only."""
    return [
        turn
        for turn, message in enumerate(messages)
        if message["role"] == "assistant" and message.get("train") is False
    ]


def _with_prompt(tokenizer: Any, row: Row, one: Encoded) -> Encoded:
    if row.get("kind", "chat") == "text" or not held_turns(row["messages"]):
        return Encoded(one.ids, list(one.ids), one.part)
    if one.part is not None:
        raise Unrenderable(
            "template_rewrites", "turns with train: false, and the template unfolds the conversation"
        )
    held = _only_held(tokenizer, row)
    if held.ids != one.ids:
        raise Unrenderable("template_rewrites", "turns with train: false are rendered differently alone")
    labels = [
        token if label == IGNORED else IGNORED for token, label in zip(one.ids, held.labels, strict=True)
    ]
    return Encoded(one.ids, labels)


def _only_held(tokenizer: Any, row: Row) -> Encoded:
    """The row with labels on the very turns that are read only."""
    other = [
        message | {"train": message.get("train") is False} if message["role"] == "assistant" else message
        for message in row["messages"]
    ]
    ((_, found),) = encode(tokenizer, [row | {"messages": other}])
    if isinstance(found, Unrenderable):
        raise found
    return found[0]
