"""Rewards of completions: points by the scorers of `train.grpo.rewards`, each with its weight, and
advantages within their group.

The scorers are stage evaluate's, the functions are the user's in data/evaluation, and `external` is a program
in any language. A reward is the weighted sum of their points.
"""

import hashlib
import math
import statistics
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.chat.prompts import REWARDS
from pipeline.config.sections.training import EXTERNAL, Grpo
from pipeline.core.errors import DataError
from pipeline.metrics import own
from pipeline.metrics.external import ExternalScorer
from pipeline.metrics.refusals import is_refusal
from pipeline.metrics.score import Scorer, best_score, references
from pipeline.metrics.scorers import parse

# a line of data/tokens/questions-SPLIT.jsonl: id, domain, prompt, messages, reference
Question = Mapping[str, Any]
# Seconds that a scorer may need for one group's answers. A program has limits of its own.
GROUP_SECONDS = 60.0
EPSILON = 1e-4  # TRL's, added to the standard deviation
# TRL's (`torch.isclose`): a smaller standard deviation counts as none.
SAME = 1e-8


class Answer(NamedTuple):
    """A completion as text, and whether the model ended it by itself."""

    text: str
    stopped: bool


# (question, its group's answers) → points of each answer
Measure = Callable[[Question, Sequence[Answer]], Sequence[float | None]]


class Rewards:
    """Rewards from measures, by their spelling in `train.grpo.rewards`, with their weights."""

    def __init__(self, measures: Mapping[str, Measure], weights: Mapping[str, float], seconds: float) -> None:
        self.measures = measures
        self.weights = weights
        self.seconds = seconds

    def of(self, question: Question, answers: Sequence[Answer]) -> tuple[list[float], dict[str, list[float]]]:
        """Return the reward of each answer of a group, and its points by each scorer.

        Raises `DataError` if a scorer takes longer than `seconds`, fails, or gives anything but a finite
        number for each answer.
        """
        points = {
            name: self._points(name, measure, question, answers) for name, measure in self.measures.items()
        }
        rewards = [
            math.fsum(self.weights[name] * values[place] for name, values in points.items())
            for place in range(len(answers))
        ]
        return rewards, points

    def _points(
        self, name: str, measure: Measure, question: Question, answers: Sequence[Answer]
    ) -> list[float]:
        where = f"train.grpo.rewards: {name}, row {question['id']}"
        try:
            if name == EXTERNAL:  # A program has time limits of its own.
                points = measure(question, answers)
            else:
                points = within(self.seconds, lambda: measure(question, answers))
        except TimeoutError:
            raise DataError(
                "Q-GRPO-001",
                f"{where}: it took longer than {self.seconds:g} s for {len(answers)} answers: correct the "
                "scorer, or have a program of yours give the reward (train.grpo.external)",
            ) from None
        except ValueError as error:
            raise DataError(
                "Q-GRPO-002", f"{where}: {error}: correct the row's reference, or take another scorer"
            ) from error
        if len(points) != len(answers) or not all(map(_is_finite, points)):
            raise DataError(
                "Q-GRPO-003",
                f"{where}: it gave {str(list(points))[:120]} for {len(answers)} answers: a finite number for "
                "each is wanted",
            )
        return [float(value) for value in points if value is not None]


def _is_finite(points: Any) -> bool:
    return isinstance(points, int | float) and math.isfinite(points)


@contextmanager
def open_rewards(settings: Grpo, tokens: Path) -> Iterator[Rewards]:
    """Yield the rewards of `train.grpo`. The user's functions were copied to `tokens`/rewards. The external
    program runs as long as the body. Raises `ConfigError` for a scorer that can't be made.
    """
    with ExitStack() as opened:
        measures: dict[str, Measure] = {}
        for spelling in settings.rewards:
            if spelling == EXTERNAL:
                assert settings.external  # Otherwise the settings are refused.
                external = settings.external
                root = tokens.parent.parent
                program = ExternalScorer(external.command, external.seconds, external.start_seconds, root)
                measures[spelling] = by_program(opened.enter_context(program))
            else:
                measures[spelling] = by_scorer(scorer_of(spelling, tokens))
        yield Rewards(measures, settings.rewards, GROUP_SECONDS)


def scorer_of(spelling: str, tokens: Path) -> Scorer:
    """Return the scorer of this spelling."""
    kind, _, name = spelling.partition(":")
    if kind != "python":
        return parse(spelling)
    shown = tokens.parent / "evaluation"
    return Scorer(spelling, own.function(name, tokens / REWARDS, shown))


def by_scorer(scorer: Scorer) -> Measure:
    """Return the measure of one of evaluate's scorers.

    It is called for each answer with the row that it gets there.
    """

    def measure(question: Question, answers: Sequence[Answer]) -> list[float | None]:
        rows = (
            {**question, "answer": text, "stopped": stopped, "refused": is_refusal(text)}
            for text, stopped in answers
        )
        return [best_score(scorer.measure, row).points for row in rows]

    return measure


def by_program(program: ExternalScorer) -> Measure:
    """Return the measure of an `ExternalScorer`. It is called once for the group with each reference; the
    best points count.
    """

    def measure(question: Question, answers: Sequence[Answer]) -> list[float | None]:
        texts = [answer.text for answer in answers]
        points_by_reference = (
            program.rewards(question["id"], question["messages"], texts, reference)
            for reference in references(question)
        )
        return [max(points) for points in zip(*points_by_reference, strict=True)]

    return measure


def within(seconds: float, work: Callable[[], Any]) -> Any:
    """Return or raise what `work` does. Raises `TimeoutError` if that takes longer than `seconds`. Its
    thread then goes on until this process exits.
    """
    results: list[Any] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True, name="rewards")
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if not results:
        raise TimeoutError
    return results[0]


def advantages(rewards: Sequence[float], *, scaled: bool) -> list[float]:
    """Return the advantage of each completion of a group of G ≥ 2.

    It is GRPO's (arXiv:2402.03300, section 4.1.2): reward minus the group's mean, with `scaled` divided by
    the group's standard deviation (n − 1, as TRL does). Without that division it is Dr. GRPO's
    (arXiv:2503.20783), which doesn't favour questions that are nearly always, or never, answered right.
    """
    mean = statistics.fmean(rewards)
    divisor = deviation(rewards) + EPSILON if scaled else 1.0
    return [(reward - mean) / divisor for reward in rewards]


def deviation(rewards: Sequence[float]) -> float:
    """Return the standard deviation of a group's rewards, with n − 1."""
    mean = statistics.fmean(rewards)
    return math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1))


def teaches(rewards: Sequence[float]) -> bool:
    """Return True if a group's rewards differ.

    If not, each advantage is 0, and nothing is learned from it.
    """
    return deviation(rewards) > SAME


def seed_of(seed: int, step: int, row: int, member: int) -> int:
    """Return the sampler's 31-bit seed of completion `member` of `row`'s group in the round before `step`."""
    digest = hashlib.sha256(f"{seed} {step} {row} {member}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
