"""Compare the task scores of two models, decide whether the rows support a difference, and whether scores can
distinguish levels at all.

With answers, scores are means over the questions that both models have a score for. A question that a judge
could not mark, or that took too long, counts for neither. A difference is only reported if the rows support
it: by the paired test, without answers if the 95 % intervals of both scores do not overlap.
"""

from collections.abc import Sequence
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
    """Mean scores of two models, in points of 100; whether they differ beyond noise, and the reason.

    `finding` is the reason in a sentence that already says whether they differ.
    """

    score: float
    other: float
    significant: bool
    reason: str
    finding: str

    @property
    def points(self) -> float:
        """Difference of the scores in points."""
        return self.score - self.other

    @property
    def figures(self) -> str:
        """Both scores and the finding, for a sentence that already says whether they differ."""
        return f"{self.score:.1f} against {self.other:.1f} points; {self.finding}"

    def __str__(self) -> str:
        return f"{self.score:.1f} against {self.other:.1f} points; {self.reason}"


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
        rows = self.answers.get(first) or ()
        others = self.answers.get(second) or ()
        if [row.id for row in rows] != [row.id for row in others]:
            return None
        pairs = [
            (row.score, other.score)
            for row, other in zip(rows, others, strict=True)
            if row.score is not None and other.score is not None
        ]
        return [score for score, _ in pairs], [score for _, score in pairs]

    def scores_and_line(self, model: str) -> tuple[list[float], list[float]] | None:
        """Return the scores of `model` and those of always giving the commonest expected answer, from 0 to 1,
        on the questions that both have a score for; None if no answer is common, or by another scorer.
        """
        task = self.task(model)
        rows = self.answers.get(model) or ()
        if task is None or task.commonest is None:
            return None
        line = task.commonest.points.get(task.scorer, [])
        if len(line) != len(rows):
            return None
        pairs = [
            (row.score, points)
            for row, points in zip(rows, line, strict=True)
            if row.score is not None and points is not None
        ]
        return ([score for score, _ in pairs], [points for _, points in pairs]) if pairs else None

    def compare(self, model: str, other: str) -> Standing | None:
        """Compare `model` with `other`; None if one has no score or was not evaluated, or no question has a
        score of both.
        """
        task = self.task(model)
        other_task = self.task(other)
        if task is None or other_task is None or task.score is None or other_task.score is None:
            return None
        if model in self.answers and other in self.answers:
            pairs = self.paired_scores(model, other)
            if not pairs or not pairs[0]:
                return None
            return _compare_paired(*pairs)
        return _compare_intervals(task, task.score, other_task, other_task.score)


def _compare_paired(scores: Sequence[float], others: Sequence[float]) -> Standing:
    """Compare two models' scores (0 to 1) on the same questions, by the paired test."""
    # This avoids NumPy, unless there are answers to compare.
    from pipeline.metrics.statistics import CHANCE, compare_scores

    p = compare_scores(scores, others).p_value
    significant = p < CHANCE
    reason = _within_noise(len(scores))
    if significant:
        reason = f"more than noise, {p_value(p)} on the same {len(scores)} questions"
    return Standing(fmean(scores) * 100, fmean(others) * 100, significant, reason, finding=reason)


def _compare_intervals(task: Task, score: float, other: Task, other_score: float) -> Standing:
    """Compare the `score` of `task` with the `other_score` of `other` (0 to 1) by their 95 % intervals."""
    low, high = task.interval
    other_low, other_high = other.interval
    significant = low > other_high or other_low > high
    finding = _within_noise(task.scored_rows)
    reason = finding
    if significant:
        finding = "the intervals lie apart"
        reason = f"{finding}, so it is more than noise"
    return Standing(score * 100, other_score * 100, significant, reason, finding)


def _within_noise(rows: int) -> str:
    return f"the difference is within the noise of {rows} rows"


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
        before = evaluations[untuned].perplexity
        after = evaluations[model].perplexity
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
    figures = compared.figures
    if not compared.significant:
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


def resolution(reference_name: str, reference: Evaluation, max_task_drop: float) -> str | None:
    """Return a warning if scores can't distinguish levels: all of the 16-bit model's may be lost, or its
    interval is wider than the allowed drop.
    """
    task = reference.task
    if task is None or task.score is None:
        return None
    if not could_fall(task.score, max_task_drop):
        return (
            f"{reference_name} scores {100 * task.score:.1f} points, and {max_task_drop:g} may be lost: such "
            "scores can't tell levels apart, so their first choices of a token do. Train longer, or give "
            "evaluate.scorers one that fits the task."
        )
    low, high = task.interval
    half_width = (high - low) / 2 * 100
    if half_width <= max_task_drop:
        return None
    return (
        f"{task.scored_rows} rows measure a score to ± {half_width:.0f} points, coarser than the "
        f"{max_task_drop:g} allowed: raise evaluate.task_rows for a firmer choice."
    )
