"""The task scores of two models against each other, and whether the rows support a difference.

With answers, scores are means over the questions that both models have a score for: one that a judge could
not mark, or that took too long, counts for neither. A difference is only called one if the rows support it:
by the paired test, without answers if the 95 % intervals of both scores do not overlap.
"""

from dataclasses import dataclass
from statistics import fmean

from pipeline.config.products import product_of
from pipeline.config.strategies import CHANCE
from pipeline.gate.distillation import is_distillation
from pipeline.gate.records import Answers, Evaluations, Task
from pipeline.pages.formats import p_value


@dataclass(frozen=True)
class Standing:
    """One model's mean score and another's, in points of 100; whether they differ beyond noise, and the words
    for that."""

    score: float
    other: float
    apart: bool
    words: str

    @property
    def points(self) -> float:
        """What the one scores above the other."""
        return self.score - self.other

    def __str__(self) -> str:
        return f"{self.score:.1f} against {self.other:.1f} points; {self.words}"


@dataclass(frozen=True)
class Evidence:
    """The evaluations, and the answers to compare scores on the same questions."""

    evaluations: Evaluations
    answers: Answers
    seed: int  # draws the bootstrap's samples

    def task(self, model: str) -> Task | None:
        """The task's figures of `model`; None if it was not evaluated, or its answers not scored."""
        return self.evaluations[model].task if model in self.evaluations else None

    def paired_scores(self, first: str, second: str) -> tuple[list[float], list[float]] | None:
        """Both models' scores, from 0 to 1, on the questions that both have a score for, in order; None if
        they answered other questions."""
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
        """`model` against `other`; None if one has no score or was not evaluated, or no question has a score
        of both."""
        task, against = self.task(model), self.task(other)
        if task is None or against is None or task.score is None or against.score is None:
            return None
        scores, rows = (task.score, against.score), task.scored_rows
        if model in self.answers and other in self.answers:
            pairs = self.paired_scores(model, other)
            if not pairs or not pairs[0]:
                return None
            from pipeline.metrics.paired import compare_scores

            scores, rows = (fmean(pairs[0]), fmean(pairs[1])), len(pairs[0])
            p = compare_scores(*pairs, self.seed).p_value
            apart, proof = p < CHANCE, f"more than noise, {p_value(p)} on the same {rows} questions"
        else:
            (low, high), (other_low, other_high) = task.interval, against.interval
            apart, proof = (
                low > other_high or other_low > high,
                "the intervals lie apart, so it is more than noise",
            )
        words = proof if apart else f"the difference is within the noise of {rows} rows"
        return Standing(scores[0] * 100, scores[1] * 100, apart, words)


@dataclass(frozen=True)
class Gain:
    """A tuned model against the untuned base. `points` (of 100) is None without a task score, `beats` None if
    nothing tells."""

    model: str
    points: float | None
    beats: bool | None
    sentence: str


def gain_over(model: str, evidence: Evidence, untuned: str) -> Gain:
    """What the tuned `model` scores above the model `untuned`, by perplexity if there are no scores.

    What was trained to recover must be no worse than the base; it need not beat it.
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
    points, figures = round(compared.points, 1), str(compared).removesuffix(", so it is more than noise")
    if not compared.apart:
        recovers = model == product_of(evaluations).served and is_distillation(evaluations)
        return Gain(
            model,
            points,
            None if recovers else False,
            f"{model} does not measurably beat the untuned base ({figures}).",
        )
    better = compared.points > 0
    verb = f"beats the untuned base by {points:.1f} points" if better else "is worse than the untuned base"
    return Gain(model, points, better, f"{model} {verb} ({figures}).")
