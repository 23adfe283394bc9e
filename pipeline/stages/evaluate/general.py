"""General ability: how many questions of common knowledge a model answers right, so that what fine-tuning
made it forget shows.

Reads `pipeline/stages/evaluate/general.jsonl` (120 questions, written for Quench) or a file of the same form
below `data/evaluation` (`evaluate.general`). Part of `python -m pipeline evaluate@Q4_K_M`.

The measure is lm-evaluation-harness's `acc_norm` on a chat: the choice whose text is likeliest as the
assistant's whole answer, its log probability divided by its length in bytes (`lm_eval.api.task`,
multiple_choice; the model doesn't see the other choices). The question stands in the model's own chat
template. It asks for a few words and the end of turn isn't counted, so that a model which learned to be
brief, or to go on, isn't scored for that instead of for what it knows.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.chat.rendering import Unrenderable, control_ids, implied_ids, renderings
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.jsonl import BadLine, parse_line, read_raw_lines
from pipeline.core.progress import progress
from pipeline.llamacpp.logits import GgufModel, log_softmax
from pipeline.metrics.text import common_start

BUILTIN = Path(__file__).with_name("general.jsonl")
# without it, answers in a sentence are likelier and a base seems to know less
ASKED = "{question} Answer in a few words."
KEYS = {"subject", "question", "choices", "answer"}


@dataclass(frozen=True)
class Question:
    """A question of `file` ("builtin" or a name below data/evaluation), line `line`; `answer` is the index of
    the right choice.
    """

    file: str
    line: int
    subject: str
    question: str
    choices: tuple[str, ...]
    answer: int


def load_questions(name: str, root: Path) -> list[Question]:
    """The questions of `evaluate.general`: "builtin", "none" (no question), or a JSONL file below
    `data/evaluation` of the project.

    Raises `ConfigError` if there is no such file, `DataError` with file and line where a line is no question.
    """
    if name == "none":
        return []
    folder = root / "data/evaluation"
    path = BUILTIN if name == "builtin" else folder / name
    if path != BUILTIN and not (path.is_file() and path.resolve().is_relative_to(folder.resolve())):
        raise ConfigError(
            "Q-EVALUATE-003",
            f"evaluate.general is {name!r}, but there is no file {path}: set it to builtin, none or the "
            f"name of a file below {folder}",
        )
    questions = []
    with path.open("rb") as file:
        for number, _, line in read_raw_lines(file):
            try:
                questions.append(_question(name, number, line))
            except BadLine as error:
                raise DataError(
                    "Q-EVALUATE-004",
                    f"{path}, line {number}: {error}: correct the line, docs/data-formats.md shows one",
                ) from error
    if not questions:
        raise DataError(
            "Q-EVALUATE-005", f"{path} holds no question: fill it, or set evaluate.general to builtin or none"
        )
    return questions


def _question(file: str, number: int, line: bytes | None) -> Question:
    if line is None:
        raise BadLine("too_long", "the line is too long for a question")
    row = parse_line(line)
    if set(row) != KEYS:
        raise BadLine(
            "keys",
            f"a question has the keys {', '.join(sorted(KEYS))}, this has {', '.join(sorted(row)) or 'none'}",
        )
    for key in ("subject", "question"):
        if not isinstance(row[key], str) or not row[key].strip():
            raise BadLine(key, f"{key} must be a text")
    choices, answer = row["choices"], row["answer"]
    if (
        not isinstance(choices, list)
        or len(choices) < 2
        or not all(isinstance(choice, str) and choice.strip() == choice != "" for choice in choices)
    ):
        raise BadLine("choices", "choices must be two texts or more, without white space around them")
    if len(set(choices)) < len(choices):
        raise BadLine("choices", "a choice is there twice")
    if type(answer) is not int or not 0 <= answer < len(choices):
        raise BadLine(
            "answer", f"answer is {answer!r}, but must be the index of a choice, 0 to {len(choices) - 1}"
        )
    return Question(file, number, row["subject"], row["question"], tuple(choices), answer)


def general_ability(
    model: GgufModel, tokenizer: Any, questions: Sequence[Question], seed: int
) -> dict[str, Any] | None:
    """Score `questions`: the share right with its 95 % bootstrap interval, by subject, and 1 or 0 for each
    question; None if there is none.

    Raises `DataError` if a question can't be shown by the chat template or doesn't fit the context.
    """
    from pipeline.metrics.intervals import interval

    if not questions:
        return None
    encoded = [_encode(model, tokenizer, question) for question in questions]
    right = []
    with progress("evaluate: general ability", len(questions)) as advance:
        for question, logs in zip(questions, choice_log_probabilities(model, encoded), strict=True):
            right.append(int(likeliest(question.choices, logs) == question.answer))
            advance(1)
    low, high = interval([float(one) for one in right], seed)
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
    """The index of the choice with the highest log probability (nats) per byte of UTF-8; the first of
    equals.
    """
    per_byte = [log / len(choice.encode()) for choice, log in zip(choices, logs, strict=True)]
    return per_byte.index(max(per_byte))


@dataclass(frozen=True)
class Choice:
    """A conversation up to an answer's last token, as ids; the answer's own tokens begin at `first`."""

    ids: list[int]
    first: int


def encode_choice(tokenizer: Any, question: str, answer: str) -> Choice:
    """`answer` as the assistant's turn after `question`, by the model's own template, without what the
    template adds around it.

    Raises `Unrenderable` if the template doesn't show both, and where a control token comes from one of them.
    """
    (rendered,) = renderings(
        tokenizer, [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    )
    start, end = rendered.spans[0]
    start = rendered.text.rindex(answer, start, end)  # Qwen3's template puts an empty think block before it
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()  # some tokenizer.json files ask for it
    encoding = backend.encode(rendered.text, add_special_tokens=False)
    if control_ids(tokenizer, encoding.ids) != implied_ids(
        tokenizer, rendered.messages, None, rendered.since
    ):
        raise Unrenderable("control_token", "a text holds one of the tokenizer's control tokens")
    # some tokenizers count the space before a word to none of the tokens
    tokens = [
        token
        for place in range(start, start + len(answer))
        if (token := encoding.char_to_token(place)) is not None
    ]
    if not tokens or encoding.token_to_chars(tokens[-1])[1] > start + len(answer):
        raise Unrenderable("token_across_turns", "a token lies across the end of the answer")
    return Choice(encoding.ids[: tokens[-1] + 1], tokens[0])


def choice_log_probabilities(
    model: GgufModel, questions: Iterable[Sequence[Choice]]
) -> Iterator[list[float]]:
    """For each question, log p of each choice's own tokens given what is before them, in nats.

    What a choice has in common with the one before it (the question; the system prompt) stays in llama.cpp's
    memory and isn't read again. `model` must not be asked for anything else until the last question is done.
    """
    held: list[int] = []  # the ids whose keys and values are in llama.cpp's memory
    for choices in questions:
        logs = []
        for choice in choices:
            read, answer = choice.ids[:-1], choice.ids[choice.first :]  # the last token is foretold, not read
            kept = model.keep(min(common_start(held, read), choice.first - 1))
            foretold = log_softmax(
                model.read(read[kept:], kept, set(range(choice.first - 1 - kept, len(read) - kept)))
            )  # (T, V)
            logs.append(float(foretold[np.arange(len(answer)), answer].sum()))
            held = read
        yield logs


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
    if (longest := max(len(one.ids) for one in encoded)) > model.ctx_size:
        raise DataError(
            "Q-EVALUATE-006",
            f"evaluate.general: the question of {place} has {longest} tokens, evaluate.ctx_size is "
            f"{model.ctx_size}: shorten it or raise that",
        )
    return encoded


def _hash(questions: Sequence[Question]) -> str:
    """sha256 over what is asked and what is right: answers to other questions are not compared."""
    return hashlib.sha256(
        repr([(one.question, one.choices, one.answer) for one in questions]).encode()
    ).hexdigest()


def _by_subject(questions: Sequence[Question], right: Sequence[int]) -> dict[str, dict[str, Any]]:
    found: dict[str, list[int]] = {}
    for question, one in zip(questions, right, strict=True):
        found.setdefault(question.subject, []).append(one)
    return {
        name: {"rows": len(mine), "score": round(sum(mine) / len(mine), 4)} for name, mine in found.items()
    }
