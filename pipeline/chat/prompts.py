"""What stands before an answer: prompts for a model to answer by itself, and labels on what is asked too
(`train.train_on_prompt`).

A prompt is a row's conversation up to the answer, and what a scorer gets to know of it. A row of kind prompt
ends with the user and brings the expected answer; of a chat the last turn of the assistant is the reference.
Both are encoded as the chat that ends with it and trains nothing else, so all that is proven of a trained row
(nothing dropped, no control token from what is said) is proven of a prompt: it is what stands before the
first label.

With labels on prompts every token is trained, but for assistant turns with `train: false`. Of a conversation
that the template unfolds (`pipeline.chat.rendering`) only the first part learns its prompt: those of the
later parts repeat it.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pipeline.chat.rendering import Unrenderable, trained_turns
from pipeline.chat.rows import completed, is_unended, other_references
from pipeline.chat.template_probe import Message
from pipeline.chat.tokens import IGNORED, Encoded, Row, chat_request, encode

QUESTIONS = "questions"  # of the files in data/tokens with a line per prompt: questions-train.jsonl
REWARDS = "rewards"  # folder in data/tokens with the user's functions that reward, as they were
UNKNOWN = "unknown"  # the domain of a row without one


def as_chat(row: Row) -> Row:
    """A row of kind prompt or chat as a chat that ends with the expected answer, of which alone it is."""
    turns = completed(row)
    last = max((place for place, turn in enumerate(turns) if turn["role"] == "assistant"), default=-1)
    context = [read_only(turn) for turn in turns[: max(last, 0)]]
    answer = [
        {key: value for key, value in turn.items() if key != "train"} for turn in turns[last : last + 1]
    ]
    return {**row, "kind": "chat", "messages": context + answer}


def read_only(turn: Message) -> Message:
    """The turn, not trained if it is the assistant's."""
    return turn | {"train": False} if turn["role"] == "assistant" else turn


def prompt_ids(ids: Sequence[int], labels: Sequence[int]) -> list[int]:
    """The ids of a sequence (T,) before its first label, with the template's generation prompt."""
    return list(ids[: next(place for place, label in enumerate(labels) if label != IGNORED)])


def question(name: str, row: Row) -> dict[str, Any]:
    """What a scorer gets to know of a row, as in stage evaluate: id, domain, the last turn before the answer
    (`prompt`) and all turns up to there (`messages`), the reference and others that are accepted.
    """
    *prompt, last = as_chat(row)["messages"]
    domain = row.get("domain")
    return {
        "id": name,
        "domain": domain if isinstance(domain, str) else UNKNOWN,
        "prompt": prompt[-1]["content"] if prompt else "",
        "messages": chat_request(prompt)["messages"],
        "reference": last["content"],
        **other_references(row),
    }


def with_prompts(
    tokenizer: Any, encoded: Iterable[tuple[Row, list[Encoded] | Unrenderable]]
) -> Iterator[tuple[Row, list[Encoded] | Unrenderable]]:
    """`encode`'s rows with their prompts labeled too."""
    for row, encodings in encoded:
        if isinstance(encodings, Unrenderable):
            yield row, encodings
            continue
        try:
            yield row, [_with_prompt(tokenizer, row, encodings[0]), *encodings[1:]]
        except Unrenderable as why:
            yield row, why


def _with_prompt(tokenizer: Any, row: Row, encoded: Encoded) -> Encoded:
    if row.get("kind", "chat") == "text" or not any(
        turn["role"] == "assistant" and turn.get("train") is False for turn in row["messages"]
    ):
        labels = _without_ends_cut_off(tokenizer, row, encoded, list(encoded.ids))
        return Encoded(encoded.ids, labels, encoded.part)
    if encoded.part is not None:
        raise Unrenderable(
            "template_rewrites", "turns with train: false, and the template unfolds the conversation"
        )
    held = _only_held(tokenizer, row)
    if held.ids != encoded.ids:
        raise Unrenderable("template_rewrites", "turns with train: false are rendered differently alone")
    labels = [
        token if label == IGNORED else IGNORED for token, label in zip(encoded.ids, held.labels, strict=True)
    ]
    return Encoded(encoded.ids, _without_ends_cut_off(tokenizer, row, encoded, labels))


def _without_ends_cut_off(tokenizer: Any, row: Row, encoded: Encoded, labels: list[int]) -> list[int]:
    """The labels without those from the end of an answer whose end was cut off to the end of its turn.

    `encoded` has labels on the answers alone; each is followed by one that is not labeled.
    """
    turns = [row["messages"][turn] for turn in trained_turns(row.get("messages", []))]
    if not any(map(is_unended, turns)):
        return labels
    answer = -1
    is_after = False  # True behind an answer whose end was cut off, up to the end of its turn
    before = IGNORED
    for place, label in enumerate(encoded.labels):
        if label != IGNORED and before == IGNORED:
            answer += 1
        if label == IGNORED and before != IGNORED:
            is_after = is_unended(turns[answer])
        if is_after:
            labels[place] = IGNORED
            is_after = encoded.ids[place] != tokenizer.eos_token_id
        before = label
    return labels


def _only_held(tokenizer: Any, row: Row) -> Encoded:
    """The row with labels on the very turns that are read only."""
    other = [
        message | {"train": message.get("train") is False} if message["role"] == "assistant" else message
        for message in row["messages"]
    ]
    ((_, encoded),) = encode(tokenizer, [row | {"messages": other}])
    if isinstance(encoded, Unrenderable):
        raise encoded
    return encoded[0]
