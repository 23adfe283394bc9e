"""The page's first screens: three answers before and after, and what the run took."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.config.levels import UNTUNED
from pipeline.config.products import product_of
from pipeline.core.usage import Usage
from pipeline.gate.evaluations import Answer, Answers
from pipeline.gate.inputs import Inputs
from pipeline.metrics.tool_calls import answer_text
from pipeline.pages.differences import clipped
from pipeline.stages.report.calls_section import answer_with_calls

LONGEST = 400  # letters of a text that is shown; the section of all answers has the rest
UNSCORED = 3  # rows that are shown if none has a score
BY_GAIN = ("Gained most", "In the middle", "Gained least")
NO_GAIN = "No row gained"  # title of the first row then
BY_SCORE = ("Best", "In the middle", "Worst")


@dataclass(frozen=True)
class Said:
    """A model's answer, and its score from 0 to 1 (None without one)."""

    model: str
    text: str
    score: float | None


@dataclass(frozen=True)
class Example:
    """A held-out row: why it is shown, the question, the right answer, and what was said before and after
    training. `before` is None if no untuned model was asked.
    """

    title: str
    id: str
    prompt: str
    reference: str
    before: Said | None
    after: Said


@dataclass(frozen=True)
class Cost:
    """What the run took: the machine, the seconds of training and of all stages. None is not recorded."""

    machine: str | None
    training: float | None
    total: float | None


def examples(inputs: Inputs, level: str) -> list[Example]:
    """Return three rows before and after training: the one that gained most, the one in the middle and the
    one that gained least, so that they are not the best ones only.

    Without a score of the untuned model the order is that of the scores; without any, that of the rows.
    """
    answers = inputs.answers
    rows = answers.get(level)
    if not rows:
        return []
    base = _untuned(answers, level)
    others: Sequence[Answer | None] = answers[base] if base else [None] * len(rows)
    gains = [_gain(before, after) for before, after in zip(others, rows, strict=True)]
    scored = {number: gain for number, gain in enumerate(gains) if gain is not None}
    order = sorted(scored, key=lambda number: (-scored[number], number))
    first, middle, last = BY_GAIN if base else BY_SCORE
    if base and order and scored[order[0]] <= 0:
        first = NO_GAIN
    # The outermost are named last: of one or two rows none is in the middle.
    titles = {len(order) // 2: middle, len(order) - 1: last, 0: first}
    if not order:
        order = list(range(min(UNSCORED, len(rows))))
        titles = {number: f"Row {number + 1}" for number in order}
    return [
        _example(title, others[order[place]], rows[order[place]], base, level)
        for place, title in sorted(titles.items())
    ]


def _gain(before: Answer | None, after: Answer) -> float | None:
    """Return by how much the score rose; the score itself if there is no answer from before."""
    if before is None or after.score is None:
        return after.score
    return None if before.score is None else after.score - before.score


def _untuned(answers: Answers, level: str) -> str | None:
    """Return the untuned model to compare with: at the same level if that was asked."""
    product = product_of(answers)
    names = (UNTUNED + level, product.untuned(answers))
    return next((name for name in names if name in answers), None)


def _example(title: str, before: Answer | None, after: Answer, base: str | None, level: str) -> Example:
    reference = after.reference
    if after.expected_calls:
        reference = answer_text(reference, after.expected_calls)
    return Example(
        title,
        after.id,
        _shown(after.prompt),
        _shown(reference),
        Said(base, _shown(answer_with_calls(before)), before.score) if base and before else None,
        Said(level, _shown(answer_with_calls(after)), after.score),
    )


def _shown(value: object) -> str:
    """Return a text without its empty lines, which would take the place of words."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    lines = [line for line in text.splitlines() if line.strip()]
    return clipped("\n".join(lines), LONGEST)


def cost(inputs: Inputs, used: Mapping[str, Usage]) -> Cost:
    """Return what the run took, by the run record and the usage of its stages on this machine."""
    record = inputs.train.model_extra or {}
    hardware = ((inputs.train.run.model_extra or {}) if inputs.train.run else {}).get("hardware") or {}
    cards = hardware.get("gpus")
    cards = [card.get("name") for card in cards if card.get("name")] if isinstance(cards, list) else []
    machine = ", ".join(cards) or hardware.get("cpu")
    cores = hardware.get("cores")
    if machine and not cards and cores:
        machine = f"{cores} cores of {machine}"
    seconds = [usage.seen.seconds for usage in used.values() if usage.seen.seconds is not None]
    return Cost(machine, record.get("seconds"), sum(seconds) if seconds else None)
