"""Compare the task scores of two models, decide whether the rows support a difference, and whether scores can
distinguish levels at all.

With answers, scores are means over the questions that both models have a score for. A question that a judge
could not mark, or that took too long, counts for neither. A difference is only reported if the rows support
it: by the paired test, without answers if the 95 % intervals of both scores do not overlap.
"""

from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from pipeline.config.products import product_of
from pipeline.gate.distillation import Recovery, distillation
from pipeline.gate.evaluations import Answers, Evaluation, Evaluations, Task
from pipeline.pages.formats import p_value

TOLERANCE = 1e-9  # points; 75.0 - 70.0 may give 5.000000000000004


@dataclass(frozen=True)
class Standing:
    """Mean scores of two models, in points of 100; if they differ beyond noise, and the words for that."""

    score: float
    other: float
    apart: bool
    words: str

    @property
    def points(self) -> float:
        """Difference of the scores in points."""
        return self.score - self.other

    def __str__(self) -> str:
        return f"{self.score:.1f} against {self.other:.1f} points; {self.words}"


@dataclass(frozen=True)
class Evidence:
    """Evaluations, and the answers to compare scores on the same questions."""

    evaluations: Evaluations
    answers: Answers

    @cached_property
    def recovered(self) -> list[Recovery] | None:
        """Recovered share of the damage by quantizing the base; None if nothing was trained for that."""
        return distillation(self.evaluations)

    def task(self, model: str) -> Task | None:
        """Return the task's figures of `model`; None if it was not evaluated, or its answers not scored."""
        return self.evaluations[model].task if model in self.evaluations else None

    def paired_scores(self, first: str, second: str) -> tuple[list[float], list[float]] | None:
        """Return both models' scores, from 0 to 1, on the questions that both have a score for, in order;
        None if they answered other questions.
        """
        rows, others = self.answers.get(first) or (), self.answers.get(second) or ()
        if [row.id for row in rows] != [row.id for row in others]:
            return None
        pairs = [
            (row.score, other.score)
            for row, other in zip(rows, others, strict=True)
            if row.score is not None and other.score is not None
        ]
        return [score for score, _ in pairs], [score for _, score in pairs]

    def compare(self, model: str, other: str) -> Standing | None:
        """Compare `model` with `other`; None if one has no score or was not evaluated, or no question has a
        score of both.
        """
        task, against = self.task(model), self.task(other)
        if task is None or against is None or task.score is None or against.score is None:
            return None
        scores = (task.score, against.score)
        rows = task.scored_rows
        if model in self.answers and other in self.answers:
            pairs = self.paired_scores(model, other)
            if not pairs or not pairs[0]:
                return None
            from pipeline.metrics.statistics import CHANCE, compare_scores

            scores = (fmean(pairs[0]), fmean(pairs[1]))
            rows = len(pairs[0])
            p = compare_scores(*pairs).p_value
            is_significant = p < CHANCE
            proof = f"more than noise, {p_value(p)} on the same {rows} questions"
        else:
            low, high = task.interval
            other_low, other_high = against.interval
            is_significant = low > other_high or other_low > high
            proof = "the intervals lie apart, so it is more than noise"
        words = proof if is_significant else f"the difference is within the noise of {rows} rows"
        return Standing(scores[0] * 100, scores[1] * 100, is_significant, words)


@dataclass(frozen=True)
class Gain:
    """Comparison of a tuned model with the untuned base. `points` (of 100) is None without a task score,
    `beats` None if the score is inconclusive.
    """

    model: str
    points: float | None
    beats: bool | None
    sentence: str


def gain_over(model: str, evidence: Evidence, untuned: str) -> Gain:
    """Return how much the tuned `model` scores above `untuned`, by perplexity if there are no scores.

    A model that was trained to recover must be no worse than the base; it need not beat it.
    """
    evaluations = evidence.evaluations
    if untuned not in evaluations:
        return Gain(model, None, None, f"Not measured: evaluate.models does not name {untuned}.")
    compared = evidence.compare(model, untuned)
    if compared is None:
        before, after = evaluations[untuned].perplexity, evaluations[model].perplexity
        if before is None or after is None:
            return Gain(model, None, None, "Not measured: there is neither a task score nor a perplexity.")
        place = "below" if after < before else "not below"
        figures = f"{after:.2f} against {before:.2f}"
        return Gain(
            model,
            None,
            after < before,
            f"{model}'s held-out perplexity is {place} the untuned base's ({figures}).",
        )
    points = round(compared.points, 1)
    figures = str(compared).removesuffix(", so it is more than noise")
    if not compared.apart:
        recovers = model == product_of(evaluations).served and evidence.recovered is not None
        return Gain(
            model,
            points,
            None if recovers else False,
            f"{model} does not measurably beat the untuned base ({figures}).",
        )
    better = compared.points > 0
    verb = f"beats the untuned base by {points:.1f} points" if better else "is worse than the untuned base"
    return Gain(model, points, better, f"{model} {verb} ({figures}).")


def could_fall(score: float | None, max_task_drop: float) -> bool:
    """Return True if a score (0 to 1) of the 16-bit model is so high that more than the drop (points) can be
    lost of it.
    """
    return score is not None and 100 * score > max_task_drop + TOLERANCE


def resolution(sixteen: str, reference: Evaluation, max_task_drop: float) -> list[str]:
    """Return a warning if scores can't distinguish levels: all of the 16-bit model's may be lost, or its
    interval is wider than the allowed drop.
    """
    task = reference.task
    if task is None or task.score is None:
        return []
    if not could_fall(task.score, max_task_drop):
        useless = (
            f"{sixteen} scores {100 * task.score:.1f} points, and {max_task_drop:g} may be lost: such scores "
            "can't tell levels apart, so their first choices of a token do. Train longer, or give "
            "evaluate.scorers one that fits the task."
        )
        return [useless]
    low, high = task.interval
    half = (high - low) / 2 * 100
    coarse = (
        f"{task.scored_rows} rows measure a score to ± {half:.0f} points, coarser than the "
        f"{max_task_drop:g} allowed: raise evaluate.task_rows for a firmer choice."
    )
    return [coarse] if half > max_task_drop else []
