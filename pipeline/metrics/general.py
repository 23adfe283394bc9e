"""General ability: the number of questions of common knowledge that a model answers correctly, so that
forgetting by fine-tuning shows.

Stages `evaluate` and `compare` ask the questions that `evaluate.general` names
(`pipeline.metrics.general_questions`).

The measure is lm-evaluation-harness's `acc_norm` on a chat: the choice whose text is likeliest as the
assistant's whole answer, its log probability divided by its length in bytes (`lm_eval.api.task`,
multiple_choice; the model doesn't see the other choices). The question is put in the model's own chat
template. It asks for a few words and the end of turn isn't counted. So a model that learned to be brief, or
to continue, isn't scored for that instead of for its knowledge.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.chat.rendering import Unrenderable, control_ids, implied_ids, renderings
from pipeline.core.errors import DataError
from pipeline.core.progress import progress
from pipeline.llamacpp.logits import CHUNK, GgufModel
from pipeline.metrics.general_questions import Question
from pipeline.metrics.log_probabilities import negative_log, shifted

ROWS = 32  # choices that are read in one pass over the weights
# Without it, answers in a sentence are likelier and a base seems to know less.
ASKED = "{question} Answer in a few words."


def general_ability(model: GgufModel, tokenizer: Any, questions: Sequence[Question]) -> dict[str, Any]:
    """Score `questions`: the share right with its 95 % bootstrap interval, by subject, and each as 1 or 0.

    Raises `DataError` if a question can't be shown by the chat template or doesn't fit the context.
    """
    from pipeline.metrics.statistics import interval

    encoded = [_encode(model, tokenizer, question) for question in questions]
    right = []
    with progress("general ability", len(questions)) as advance:
        for question, logs in zip(questions, choice_log_probabilities(model, encoded), strict=True):
            right.append(int(likeliest(question.choices, logs) == question.answer))
            advance(1)
    low, high = interval([float(point) for point in right])
    return {
        "file": questions[0].file,
        "sha256": _hash(questions),
        "rows": len(right),
        "score": round(sum(right) / len(right), 4),
        "score_low": round(low, 4),
        "score_high": round(high, 4),
        "subjects": _by_subject(questions, right),
        "right": right,
    }


def likeliest(choices: Sequence[str], logs: Sequence[float]) -> int:
    """Return the index of the choice of highest log probability (nats) per UTF-8 byte; first of equals."""
    per_byte = [log / len(choice.encode()) for choice, log in zip(choices, logs, strict=True)]
    return per_byte.index(max(per_byte))


@dataclass(frozen=True)
class Choice:
    """Conversation up to an answer's last token, as ids; the answer's own tokens begin at `first`."""

    ids: list[int]
    first: int


def encode_choice(tokenizer: Any, question: str, answer: str) -> Choice:
    """Return `answer` as the assistant's turn after `question`, by the model's own template, without what the
    template adds around it.

    Raises `Unrenderable` if the template doesn't show both, and if a control token comes from one of them.
    """
    (rendered,) = renderings(
        tokenizer, [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    )
    start, end = rendered.spans[0]
    start = rendered.text.rindex(answer, start, end)  # Qwen3's template puts an empty think block before it.
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()  # Some tokenizer.json files enable it.
    encoding = backend.encode(rendered.text, add_special_tokens=False)
    if control_ids(tokenizer, encoding.ids) != implied_ids(
        tokenizer, rendered.messages, None, rendered.since
    ):
        raise Unrenderable("control_token", "a text holds one of the tokenizer's control tokens")
    # Some tokenizers count the space before a word to none of the tokens.
    tokens = [
        token
        for place in range(start, start + len(answer))
        if (token := encoding.char_to_token(place)) is not None
    ]
    if not tokens or encoding.token_to_chars(tokens[-1])[1] > start + len(answer):
        raise Unrenderable("token_across_turns", "a token lies across the end of the answer")
    return Choice(encoding.ids[: tokens[-1] + 1], tokens[0])


def choice_log_probabilities(
    model: GgufModel, questions: Sequence[Sequence[Choice]]
) -> Iterator[list[float]]:
    """Yield for each question log p of each choice's own tokens given what is before them, in nats.

    Choices are read together, also those of more than one question: a pass over the weights costs as much as
    one choice would, and a common prefix (the system prompt, the question) is read once. `model` must not be
    used for anything else until the last question is done.
    """
    logs = (
        log
        for together in passes([choice for choices in questions for choice in choices], model.ctx_size)
        for log in _log_probabilities(model, together)
    )
    for choices in questions:
        yield [next(logs) for _ in choices]


def passes(choices: Sequence[Choice], room: int) -> Iterator[list[Choice]]:
    """Yield the choices in parts that are read together: at most `ROWS`, with at most `room` tokens without
    the shared ones, and `CHUNK` logits, unless a single choice has more.
    """
    together: list[Choice] = []
    tokens: set[tuple[int, ...]] = set()
    for choice in choices:
        prefixes = {tuple(choice.ids[:end]) for end in range(1, len(choice.ids))}
        logits = sum(len(each.ids) - each.first for each in (*together, choice))
        if together and (len(together) == ROWS or len(tokens | prefixes) > room or logits > CHUNK):
            yield together
            together = []
            tokens = set()
        together.append(choice)
        tokens |= prefixes
    if together:
        yield together


def _log_probabilities(model: GgufModel, choices: Sequence[Choice]) -> Iterator[float]:
    # The last token is predicted, not read.
    rows = [(choice.ids[:-1], range(choice.first - 1, len(choice.ids) - 1)) for choice in choices]
    for choice, logits in zip(choices, model.read_together(rows), strict=True):
        yield -float(negative_log(shifted(logits), np.array(choice.ids[choice.first :])).sum())


def _encode(model: GgufModel, tokenizer: Any, question: Question) -> list[Choice]:
    place = f"{question.file}, line {question.line}"
    try:
        encoded = [
            encode_choice(tokenizer, ASKED.format(question=question.question), choice)
            for choice in question.choices
        ]
    except Unrenderable as why:
        raise DataError(
            "Q-EVALUATE-006", f"evaluate.general: the question of {place} can't be asked ({why}): correct it"
        ) from why
    longest = max(len(choice.ids) for choice in encoded)
    if longest > model.ctx_size:
        raise DataError(
            "Q-EVALUATE-006",
            f"evaluate.general: the question of {place} has {longest} tokens, preprocess.max_length "
            f"is {model.ctx_size}: shorten it or raise that",
        )
    return encoded


def _hash(questions: Sequence[Question]) -> str:
    """Return the sha256 of questions and right answers: answers to other questions are not compared."""
    return hashlib.sha256(
        repr([(question.question, question.choices, question.answer) for question in questions]).encode()
    ).hexdigest()


def _by_subject(questions: Sequence[Question], right: Sequence[int]) -> dict[str, dict[str, Any]]:
    by_subject: dict[str, list[int]] = {}
    for question, point in zip(questions, right, strict=True):
        by_subject.setdefault(question.subject, []).append(point)
    return {
        name: {"rows": len(points), "score": round(sum(points) / len(points), 4)}
        for name, points in by_subject.items()
    }
