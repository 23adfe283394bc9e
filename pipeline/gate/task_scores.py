"""The task scores of two models against each other, and whether the rows support a difference.

With answers, scores are means over the questions that both models have a score for: one that a judge could
not mark, or that took too long, counts for neither. A difference is only called one if the rows support it:
by the paired test, without answers if the 95 % intervals of both scores do not overlap.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from pipeline.config.sections import served_of
from pipeline.gate.comparison import Evaluation, Evaluations
from pipeline.gate.distillation import is_distillation
from pipeline.gate.drops import CHANCE, Answers, paired_scores
from pipeline.pages.formats import p_value


@dataclass(frozen=True)
class Standing:
    """One model's mean score and another's, in points of 100; whether they differ beyond noise, and the words
    for that."""

    mine: float
    theirs: float
    apart: bool
    words: str

    @property
    def points(self) -> float:
        """What the one scores above the other."""
        return self.mine - self.theirs

    def __str__(self) -> str:
        return f"{self.mine:.1f} against {self.theirs:.1f} points; {self.words}"


@dataclass(frozen=True)
class Evidence:
    """The evaluations, and the answers to compare scores on the same questions."""

    evaluations: Evaluations
    answers: Answers
    seed: int

    def compare(self, one: str, other: str) -> Standing | None:
        """`one` against `other`; None if one has no score or was not evaluated, or no question has a score of
        both."""
        found, base = self.evaluations[one], self.evaluations.get(other, {})
        mine, theirs = task_score(found), task_score(base)
        if mine is None or theirs is None:
            return None
        if one in self.answers and other in self.answers:
            scores = paired_scores(self.answers, one, other)
            if scores is None:
                return None
            from pipeline.metrics.paired import compare_scores

            mine, theirs, rows = fmean(scores[0]), fmean(scores[1]), len(scores[0])
            p = compare_scores(*scores, self.seed).p_value
            apart, proof = p < CHANCE, f"more than noise, {p_value(p)} on the same {rows} questions"
        else:
            one_task, other_task, rows = found["task"], base["task"], scored_rows(found["task"])
            apart = (
                one_task["score_low"] > other_task["score_high"]
                or other_task["score_low"] > one_task["score_high"]
            )
            proof = "the intervals lie apart, so it is more than noise"
        words = proof if apart else f"the difference is within the noise of {rows} rows"
        return Standing(mine * 100, theirs * 100, apart, words)


@dataclass(frozen=True)
class Gain:
    """A tuned model against the untuned base. `points` (of 100) is None without a task score, `beats` None if
    nothing tells."""

    model: str
    points: float | None
    beats: bool | None
    sentence: str


def gain_over(name: str, evidence: Evidence, untuned: str) -> Gain:
    """What the tuned model `name` scores above the model `untuned`, by perplexity if there are no scores.

    What was trained to recover must be no worse than the base; it need not beat it.
    """
    found, base = evidence.evaluations[name], evidence.evaluations.get(untuned)
    if base is None:
        return Gain(name, None, None, f"Not measured: evaluate.models does not name {untuned}.")
    compared = evidence.compare(name, untuned)
    if compared is None:
        before, after = base.get("perplexity"), found.get("perplexity")
        if before is None or after is None:
            return Gain(name, None, None, "Not measured: there is neither a task score nor a perplexity.")
        place = "below" if after < before else "not below"
        figures = f"{after:.2f} against {before:.2f}"
        return Gain(
            name,
            None,
            after < before,
            f"{name}'s held-out perplexity is {place} the untuned base's ({figures}).",
        )
    points, figures = round(compared.points, 1), str(compared).removesuffix(", so it is more than noise")
    if not compared.apart:
        recovers = name == served_of(evidence.evaluations) and is_distillation(evidence.evaluations)
        return Gain(
            name,
            points,
            None if recovers else False,
            f"{name} does not measurably beat the untuned base ({figures}).",
        )
    better = compared.points > 0
    verb = f"beats the untuned base by {points:.1f} points" if better else "is worse than the untuned base"
    return Gain(name, points, better, f"{name} {verb} ({figures}).")


def task_score(evaluation: Evaluation) -> float | None:
    """The task score from 0 to 1, None if none was measured."""
    score = (evaluation.get("task") or {}).get("score")
    return None if score is None else float(score)


def scored_rows(task: Mapping[str, Any]) -> int:
    """How many rows of a task have a score."""
    return int((task.get("scores") or {}).get(task.get("scorer"), {}).get("measured", task["rows"]))
