"""Prompts for a model to answer by itself: a row's conversation up to the answer, and what a scorer gets to
know of it.

A row of kind prompt ends with the user and brings the expected answer; of a chat the last turn of the
assistant is the reference. Both are encoded as the chat that ends with it and trains nothing else, so all
that is proven of a trained row (nothing dropped, no control token from what is said) is proven of a prompt:
it is what stands before the first label.
"""

from collections.abc import Sequence
from typing import Any

from pipeline.chat.tokens import IGNORED, Row, chat_request

QUESTIONS = "questions"  # of the files in data/tokens with a line per prompt: questions-train.jsonl
REWARDS = "rewards"  # folder in data/tokens with the user's functions that reward, as they were
UNKNOWN = "unknown"  # the domain of a row without one


def as_chat(row: Row) -> Row:
    """A row of kind prompt or chat as a chat that ends with the expected answer, of which alone it is."""
    turns = row["messages"]
    if row.get("kind") == "prompt":
        turns = [*turns, {"role": "assistant", "content": row["answer"]}]
    last = max((place for place, turn in enumerate(turns) if turn["role"] == "assistant"), default=-1)
    asked = [
        turn | {"train": False} if turn["role"] == "assistant" else turn for turn in turns[: max(last, 0)]
    ]
    answer = [
        {key: value for key, value in turn.items() if key != "train"} for turn in turns[last : last + 1]
    ]
    return {**row, "kind": "chat", "messages": asked + answer}


def prompt_ids(ids: Sequence[int], labels: Sequence[int]) -> list[int]:
    """The ids of a sequence (T,) before its first label, with the template's generation prompt."""
    return list(ids[: next(place for place, label in enumerate(labels) if label != IGNORED)])


def question(name: str, row: Row) -> dict[str, Any]:
    """What a scorer gets to know of a row, as in stage evaluate: id, domain, the last turn before the answer
    (`prompt`) and all turns up to there (`messages`), the reference.
    """
    *asked, last = as_chat(row)["messages"]
    domain = row.get("domain")
    return {
        "id": name,
        "domain": domain if isinstance(domain, str) else UNKNOWN,
        "prompt": asked[-1]["content"] if asked else "",
        "messages": chat_request(asked)["messages"],
        "reference": last["content"],
    }
