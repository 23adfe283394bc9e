"""The log probability of given answers to a question: multiple choice without generating."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np

from pipeline.chat.rendering import Unrenderable, control_ids, implied_ids, renderings
from pipeline.llamacpp.logits import GgufModel, log_softmax


@dataclass(frozen=True)
class Choice:
    """A conversation up to an answer's last token, as ids; the answer's own tokens begin at `first`."""

    ids: list[int]
    first: int


def encode_choice(tokenizer: Any, question: str, answer: str) -> Choice:
    """`answer` as the assistant's turn after `question`, by the model's own template, without what the template adds around it.

    Raises `Unrenderable` where the template doesn't show both, and where a control token comes from one of them.
    """
    (rendered,) = renderings(tokenizer, [{"role": "user", "content": question}, {"role": "assistant", "content": answer}])
    start, end = rendered.spans[0]
    start = rendered.text.rindex(answer, start, end)  # Qwen3's template puts an empty think block before it
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()  # some tokenizer.json files ask for it
    encoding = backend.encode(rendered.text, add_special_tokens=False)
    if control_ids(tokenizer, encoding.ids) != implied_ids(tokenizer, rendered.messages, None, rendered.since):
        raise Unrenderable("control_token", "a text holds one of the tokenizer's control tokens")
    # some tokenizers count the space before a word to none of the tokens
    tokens = [token for place in range(start, start + len(answer)) if (token := encoding.char_to_token(place)) is not None]
    if not tokens or encoding.token_to_chars(tokens[-1])[1] > start + len(answer):
        raise Unrenderable("token_across_turns", "a token lies across the end of the answer")
    return Choice(encoding.ids[: tokens[-1] + 1], tokens[0])


def choice_log_probabilities(model: GgufModel, questions: Iterable[Sequence[Choice]]) -> Iterator[list[float]]:
    """For each question, log p of each choice's own tokens given what is before them, in nats.

    What a choice has in common with the one before it (the question; the system prompt) stays in llama.cpp's memory and isn't
    read again. `model` must not be asked for anything else until the last question is done.
    """
    held: list[int] = []  # the ids whose keys and values are in llama.cpp's memory
    for choices in questions:
        logs = []
        for choice in choices:
            read, answer = choice.ids[:-1], choice.ids[choice.first :]  # the last token is foretold, not read
            common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(held, read, strict=False)))
            kept = model.keep(min(common, choice.first - 1))
            foretold = log_softmax(model.read(read[kept:], kept, set(range(choice.first - 1 - kept, len(read) - kept))))  # (T, V)
            logs.append(float(foretold[np.arange(len(answer)), answer].sum()))
            held = read
        yield logs
