"""The rules that compare two models pairwise on the same questions: task score and general ability.

A drop refuses if its entire 95 % interval is above the limit and chance would hardly make it (p below 0.05).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.core.checks import Check
from pipeline.gate.comparison import Evaluation, Evaluations
from pipeline.gate.judgment import check, missing
from pipeline.pages.formats import p_value

CHANCE = 0.05  # a difference whose p is not below it may be chance
# share of the reference's scored answers that a level may lack, since a judge or a time limit may miss one
UNSCORED = 0.05
Answers = Mapping[str, Sequence[Mapping[str, Any]]]


def task_drop(
    model: str, against: str, evaluations: Evaluations, answers: Answers, limit: float, seed: int
) -> Check:
    """How far the task score of `model` is below that of `against`."""
    rule, again = "task_drop", f"evaluate@{model}"
    if model == against:
        return check(rule, "pass", f"{model} is the model that the levels are compared with.", 0.0, limit)
    mine, theirs = ((evaluations.get(name) or {}).get("task") for name in (model, against))
    if bool(mine) != bool(theirs):
        return missing(
            rule,
            limit,
            f"only one of {model} and {against} has a task score",
            f"evaluate@{against}" if mine else again,
        )
    if not mine or not theirs:
        return check(
            rule,
            "not measured",
            f"The task drop of {model} was not measured: evaluate.scorers is empty.",
            None,
            limit,
        )
    if (scorer := mine.get("scorer")) != (other := theirs.get("scorer")):
        return missing(rule, limit, f"{model} is scored by {scorer} and {against} by {other}", again)
    if not (answers.get(against) and _ids(answers, model) == _ids(answers, against)):
        return missing(
            rule, limit, f"{model} and {against} answered other questions, so they can't be compared", again
        )
    scores = paired_scores(answers, against, model) or ([], [])
    scored = sum(row["score"] is not None for row in answers[against])
    if not scored and mine.get("unscored"):
        sentence = f"The task drop of {model} was not measured: {scorer} can score none of the references."
        return check(rule, "not measured", sentence, None, limit)
    if not scores[0] or len(scores[0]) < (1 - UNSCORED) * scored:
        return missing(
            rule,
            limit,
            f"only {len(scores[0])} of {model}'s answers have a score where {scored} of {against}'s have one",
            again,
        )
    return _drop(rule, f"{model} scores", *scores, against, limit, seed)


def forgetting(
    model: str, found: Evaluation, base: str, evaluations: Evaluations, limit: float, seed: int
) -> Check:
    """How far the general ability of `model` is below that of the untuned `base`."""
    rule, unknown = "forgetting", f"What {model} forgot was not measured"
    if base not in evaluations:
        return check(rule, "not measured", f"{unknown}: evaluate.models does not name {base}.", None, limit)
    before, after = evaluations[base].get("general"), found.get("general")
    if not before and not after:
        return check(rule, "not measured", f"{unknown}: evaluate.general is none.", None, limit)
    if not before or not after:
        return missing(
            rule,
            limit,
            f"only one of {model} and {base} has a general ability",
            f"evaluate@{base if after else model}",
        )
    asked = [(one["file"], one.get("sha256"), len(one["right"])) for one in (before, after)]
    if asked[0] != asked[1]:
        what = f"{model} and {base} answered other general questions, so they can't be compared"
        return missing(rule, limit, what, f"evaluate@{model}")
    return _drop(
        rule, f"{model} answers general questions", before["right"], after["right"], base, limit, seed
    )


def paired_scores(answers: Answers, first: str, second: str) -> tuple[list[float], list[float]] | None:
    """Both models' scores, from 0 to 1, on the questions that both have a score for, in order; None if they
    answered other questions."""
    if _ids(answers, first) != _ids(answers, second):
        return None
    both = zip(answers.get(first) or (), answers.get(second) or (), strict=True)
    pairs = [
        (one["score"], two["score"])
        for one, two in both
        if one["score"] is not None and two["score"] is not None
    ]
    return ([one for one, _ in pairs], [two for _, two in pairs]) if pairs else None


def _ids(answers: Answers, model: str) -> list[str]:
    return [row["id"] for row in answers.get(model) or ()]


def _drop(
    rule: str,
    subject: str,
    before: Sequence[float],
    after: Sequence[float],
    against: str,
    limit: float,
    seed: int,
) -> Check:
    """A paired comparison in points of 100: refused if the entire 95 % interval of the drop is above `limit`,
    and p below `CHANCE`.

    A drop above the limit that differs from 0 is not enough: of ten random halves of a good level's 64
    answers, one would be refused. The interval alone is not enough: of five rows or fewer it is too narrow,
    and their p is never below.
    """
    from pipeline.metrics.paired import compare_scores

    difference = compare_scores(before, after, seed)
    drop, certain = -difference.points, -difference.high > limit and difference.p_value < CHANCE
    direction = "below" if drop > 0 else "above"
    interval = f"95 % interval {difference.low:+.1f} to {difference.high:+.1f}"
    noise = f"{interval}, {p_value(difference.p_value)}, {len(before)} questions"
    within = "" if certain or drop <= limit else "; it may be within the limit, more questions would tell"
    figures = f"{subject} {abs(drop):.1f} points {direction} {against} ({noise})"
    return check(rule, not certain, f"{figures}{within}; at most {limit:g} below are allowed.", drop, limit)
