"""Prompts (the text before an answer) that a model answers, and labels on them (`train.train_on_prompt`).

A prompt is a row's conversation up to the answer, and the data that a scorer gets on it. A row of kind prompt
ends with the user and contains the expected answer. In a chat the last turn of the assistant is the
reference. Both are encoded as a chat that ends with that answer and trains nothing else. So everything
checked for a trained row (nothing dropped, no control token from the text) is checked for a prompt: it is the
part before the first label.

With labels on prompts every token is trained, except assistant turns with `train: false`. If the template
unfolds a conversation (`pipeline.chat.rendering`), only the first part learns its prompt, because the prompts
of the later parts repeat it.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pipeline.chat.rendering import Unrenderable, trained_turns
from pipeline.chat.rows import completed, is_unended, other_references
from pipeline.chat.template_probe import Message
from pipeline.chat.tokens import IGNORED, Encoded, Row, chat_request, encode

QUESTIONS = "questions"  # prefix of the files in data/tokens with a line per prompt: questions-train.jsonl
REWARDS = "rewards"  # folder in data/tokens with an unchanged copy of the user's reward functions
UNKNOWN = "unknown"  # domain of a row without one


def as_chat(row: Row) -> Row:
    """Return a row of kind prompt or chat as a chat that ends with the expected answer.

    Only this answer is trained.
    """
    turns = completed(row)
    last = max((place for place, turn in enumerate(turns) if turn["role"] == "assistant"), default=-1)
    context = [read_only(turn) for turn in turns[: max(last, 0)]]
    answer = [
        {key: value for key, value in turn.items() if key != "train"} for turn in turns[last : last + 1]
    ]
    return {**row, "kind": "chat", "messages": context + answer}


def read_only(turn: Message) -> Message:
    """Return the turn, not trained if it is the assistant's."""
    return turn | {"train": False} if turn["role"] == "assistant" else turn


def prompt_ids(ids: Sequence[int], labels: Sequence[int]) -> list[int]:
    """Return the ids of a sequence (T,) before its first label, with the template's generation prompt."""
    return list(ids[: next(place for place, label in enumerate(labels) if label != IGNORED)])


def question(name: str, row: Row) -> dict[str, Any]:
    """Return the data on a row that a scorer gets, as in stage evaluate.

    These are id, domain, the last turn before the answer (`prompt`) and all turns up to there (`messages`),
    the reference and others that are accepted.
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
    """Yield the rows of `encode` with their prompts labeled too."""
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
    """Return the labels without those from the end of a truncated answer to the end of its turn.

    `encoded` has labels only on the answers. Each answer is followed by a token that is not labeled.
    """
    turns = [row["messages"][turn] for turn in trained_turns(row.get("messages", []))]
    if not any(map(is_unended, turns)):
        return labels
    answer = -1
    is_after = False  # True after a truncated answer, up to the end of its turn
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
    """Return the row with labels on exactly those turns that are only read."""
    other = [_with_opposite_mark(message) for message in row["messages"]]
    ((_, encoded),) = encode(tokenizer, [row | {"messages": other}])
    if isinstance(encoded, Unrenderable):
        raise encoded
    return encoded[0]


def _with_opposite_mark(turn: Message) -> Message:
    """Return the turn, trained if it is the assistant's and the row only reads it."""
    if turn["role"] != "assistant":
        return turn
    return turn | {"train": turn.get("train") is False}
