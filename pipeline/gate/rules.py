"""Rules of the gate. Each returns a check for a model, or none if its limit is null. `pipeline.gate.verdict`
describes what applies to all of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from pipeline.config.methods import METHODS
from pipeline.config.sections import AUTO
from pipeline.core.checks import Check
from pipeline.gate.comparison import Comparison, Measured, share_text
from pipeline.gate.evaluations import Evaluations, SpeedAt
from pipeline.gate.records import Parity, Train
from pipeline.gate.scores import TOLERANCE, Evidence
from pipeline.metrics.answer_speed import measure_again
from pipeline.pages.formats import p_value

if TYPE_CHECKING:
    from pipeline.metrics.statistics import Difference

# Share of the reference's scored answers that a level may lack, because a judge or a time limit may miss one.
UNSCORED = 0.05
TITLES = {
    "parity": "Parity checks",
    "reference": "Reference",
    "kld": "Gate KLD",
    "same_top": "Same first choice",
    "trained": "From the trained model",
    "task_drop": "Task",
    "commonest": "Above the commonest answer",
    "stopped": "Ends its answers",
    "forgetting": "General ability",
    "preferences": "Preferences",
    "generation": "Speed",
    "first_token": "First token",
}

# Rules on speed, with the unit of their figure. More questions decide nothing about them.
SPEEDS = {"generation": "tokens/s", "first_token": "s"}


@dataclass(frozen=True)
class Rule:
    """Rule that is on, with its limit."""

    key: str
    limit: float | None = None

    def check(
        self,
        verdict: bool | Literal["pass", "fail", "not measured", "not decided"],
        sentence: str,
        figure: float | None = None,
    ) -> Check:
        """Return the rule's check; a `verdict` of True passes."""
        if isinstance(verdict, bool):
            verdict = "pass" if verdict else "fail"
        return Check(TITLES[self.key], verdict, sentence, figure=figure, limit=self.limit, key=self.key)

    def missing(self, what: str, stage: str) -> Check:
        """Return a check that refuses because of a missing measurement."""
        again = f"which refuses: run `python -m pipeline {stage}` again."
        return self.check("fail", f"{what[0].upper()}{what[1:]}, {again}")


def parity(parity: Parity, needed: Mapping[str, str]) -> Check:
    """Check that no parity check failed and each of `needed` (its key, and what it measures) passed."""
    rule = Rule("parity", 0.0)
    checks = parity.checks
    failed = [check.title for check in checks.values() if check.verdict == "fail"]
    lacking = [key for key in needed if key not in checks or checks[key].verdict != "pass"]
    if failed:
        sentence = (
            f"{len(failed)} of {len(checks)} parity checks failed, none may: {', '.join(failed)} (`quench "
            "model parity` names the cause)."
        )
    elif parity.verdict != "pass":
        sentence = f"Parity's verdict is {parity.verdict!r}, not pass: run `snakemake --force parity`."
    elif lacking:
        details = [checks[key].detail for key in lacking if key in checks and checks[key].detail]
        remedy = f"{'; '.join(details)}." if details else "run `snakemake parity`."
        sentence = f"Parity has not measured {' and '.join(needed[key] for key in lacking)}: {remedy}"
    else:
        measured = sum(check.verdict in ("pass", "warn") for check in checks.values())
        sentence = f"{measured} of {len(checks)} parity checks were measured, and none failed."
        return rule.check("pass", sentence, 0.0)
    return rule.check("fail", sentence, float(len(failed)) or None)


def divergence(
    key: Literal["kld", "same_top", "trained"],
    measured: Measured | None,
    setting: float | Literal["auto"] | None,
) -> Check | None:
    """Check the model's distance from its reference, by one of two figures; or that of the merged model from
    the trained one, which does not include the rounding of its level.
    """
    if measured is None or setting is None:
        return None
    figure = measured.figure
    allowed = measured.allowed
    share = key == "same_top"
    by_default = allowed.same_top if share else allowed.kld
    if setting == AUTO:
        limit = by_default
        why = f" (auto: {allowed.source})"
    else:
        limit = setting
        why = ""
    rule = Rule(key, limit)
    if figure is None and measured.stage:
        return rule.missing(measured.words, measured.stage)
    if figure is None:
        return rule.check("not measured", f"{measured.words}.")
    if share:
        passes = figure >= limit
        bound = f"at least {share_text(limit)} are wanted"
    else:
        passes = figure <= limit
        bound = f"at most {limit:g} are allowed"
    return rule.check(passes, f"{measured.words}; {bound}{why}.", figure)


def task_drop(model: str, against: str, evidence: Evidence, limit: float | None) -> Check | None:
    """Check how far the task score of `model` is below that of `against`."""
    if limit is None:
        return None
    rule = Rule("task_drop", limit)
    again = f"evaluate@{model}"
    answers = evidence.answers
    if model == against:
        return rule.check("pass", f"{model} is the model that the levels are compared with.", 0.0)
    unknown = f"The task drop of {model} was not measured"
    task = evidence.task(model)
    reference = evidence.task(against)
    if task is None and reference is None:
        return rule.check("not measured", f"{unknown}: {_unasked(model, evidence.evaluations)}.")
    if task is None or reference is None:
        again = again if task is None else f"evaluate@{against}"
        return rule.missing(f"only one of {model} and {against} has a task score", again)
    if task.scorer != reference.scorer:
        scorers = f"{model} is scored by {task.scorer} and {against} by {reference.scorer}"
        return rule.missing(scorers, again)
    pairs = evidence.paired_scores(against, model)
    if pairs is None or not answers.get(against):
        return rule.missing(
            f"{model} and {against} answered other questions, so they can't be compared", again
        )
    scored = sum(row.score is not None for row in answers[against])
    if not scored and task.unscored:
        return rule.check("not measured", f"{unknown}: {task.scorer} can score none of the references.")
    before, after = pairs
    if not before or len(before) < (1 - UNSCORED) * scored:
        have = f"only {len(before)} of {model}'s answers have a score where {scored} of {against}'s have one"
        return rule.missing(have, again)
    return _drop(rule, f"{model} scores", before, after, against)


def above_commonest(model: str, evidence: Evidence) -> Check | None:
    """Check that the model scores above always giving the commonest expected answer, by more than noise; None
    where no answer is common.

    It has no setting: a model that is not above that line is worth nothing, whatever else it passes. One that
    is below it by no more than noise may be above it on other rows, so that is not decided.
    """
    from pipeline.metrics.statistics import CHANCE, compare_scores

    task = evidence.task(model)
    scores = evidence.scores_and_line(model)
    if task is None or task.commonest is None or scores is None:
        return None
    rule = Rule("commonest", 0.0)
    always = task.commonest.words
    own, line = scores
    difference = compare_scores(line, own)
    places = f"{100 * fmean(own):.1f} points, {always} {100 * fmean(line):.1f}"
    noise = _noise(difference, len(own))
    not_better = f"{model} is not better than {always}: it scores {places} ({noise})."
    if difference.high < 0 and difference.p_value < CHANCE:
        return rule.check("fail", not_better, difference.points)
    if min(line) == 1.0:
        sentence = (
            f"All {len(line)} rows that have a score expect {task.commonest.quoted}, so they can't tell what "
            "is learned."
        )
        return rule.check("not decided", sentence, difference.points)
    # It scores as that answer does on every row, or its entire interval is not above the line. A score that
    # is as low by other rows may be noise.
    if own == line or difference.high <= 0:
        return rule.check("fail", not_better, difference.points)
    if difference.p_value >= CHANCE or difference.low <= 0:
        sentence = (
            f"Whether {model} is better than {always} is not decided: it scores {places} ({noise}); more "
            "questions would tell."
        )
        return rule.check("not decided", sentence, difference.points)
    return rule.check("pass", f"{model} scores {places} ({noise}).", difference.points)


def stopped(model: str, compared: Comparison, evaluations: Evaluations, limit: float | None) -> Check | None:
    """Check that the model ends its answers by itself."""
    if limit is None:
        return None
    rule = Rule("stopped", limit)
    task = evaluations[model].task
    figure = task.stopped if task else None
    unknown = f"Whether {model} ends its answers was not measured: {_unasked(model, evaluations)}."
    if task is None and "task" in evaluations[model].not_measured:
        return rule.check("not measured", unknown)
    if task is None and compared.served:
        # Parity asks few questions, but an adapter that never ends a turn must not pass.
        ends = compared.ends
        detail = (ends.detail if ends else "") or "parity has not measured it"
        passes = ends is not None and ends.verdict == "pass"
        sentence = (
            f"Nothing says that {model} ends its answers ({detail}): set evaluate.scorers, or train longer."
        )
        return Rule("stopped").check(passes, f"Parity's questions: {detail}." if passes else sentence)
    reference = evaluations.get(compared.against)
    if task is not None and figure is not None:
        sentence = (
            f"{model} ends {share_text(figure)} of its {task.rows} answers by itself; "
            f"at least {share_text(limit)} are wanted."
        )
        if figure < limit:
            sentence += (
                " Where right answers are longer than evaluate.max_new_tokens, raise that; else the end of "
                "turn was not learned."
            )
        return rule.check(figure >= limit, sentence, figure)
    if task is not None or (reference and reference.task):
        return rule.missing(
            f"how many answers {model} ends by itself is not in its report", f"evaluate@{model}"
        )
    return rule.check("not measured", unknown)


def _unasked(model: str, evaluations: Evaluations) -> str:
    """Return why no answer of `model` was scored."""
    return evaluations[model].not_measured.get("task", "evaluate.scorers is empty")


def forgetting(model: str, base: str, evidence: Evidence, limit: float | None) -> Check | None:
    """Check how far the general ability of `model` is below that of the untuned `base`."""
    if limit is None:
        return None
    rule = Rule("forgetting", limit)
    unknown = f"What {model} forgot was not measured"
    evaluations = evidence.evaluations
    if base not in evaluations:
        return rule.check("not measured", f"{unknown}: evaluate.models does not name {base}.")
    before, after = evaluations[base].general, evaluations[model].general
    if before is None and after is None:
        why = evaluations[model].not_measured.get("general", "evaluate.general is none")
        return rule.check("not measured", f"{unknown}: {why}.")
    if before is None or after is None:
        again = f"evaluate@{base if after else model}"
        return rule.missing(f"only one of {model} and {base} has a general ability", again)
    if (before.file, before.sha256, len(before.right)) != (after.file, after.sha256, len(after.right)):
        what = f"{model} and {base} answered other general questions, so they can't be compared"
        return rule.missing(what, f"evaluate@{model}")
    return _drop(rule, f"{model} answers general questions", before.right, after.right, base)


def _drop(rule: Rule, subject: str, before: Sequence[float], after: Sequence[float], against: str) -> Check:
    """Return a paired comparison in points of 100. It refuses if the entire 95 % interval of the drop is
    above the rule's limit, and p below `CHANCE`. A drop above the limit that may be noise is not decided.

    A drop above the limit that differs from 0 is not enough: of ten random halves of a good level's 64
    answers, one would be refused. The interval is not enough by itself: of five rows or fewer it is too
    narrow, and their p is never below.
    """
    from pipeline.metrics.statistics import CHANCE, compare_scores

    difference = compare_scores(before, after)
    limit = rule.limit or 0.0
    drop = -difference.points
    certain = -difference.high > limit and difference.p_value < CHANCE
    direction = "below" if drop > 0 else "above"
    figures = f"{subject} {abs(drop):.1f} points {direction} {against} ({_noise(difference, len(before))})"
    bound = f"at most {limit:g} below are allowed"
    if drop > limit + TOLERANCE and not certain:
        return rule.check(
            "not decided", f"{figures}; it may be within the limit, more questions would tell; {bound}.", drop
        )
    return rule.check(not certain, f"{figures}; {bound}.", drop)


def _noise(difference: "Difference", questions: int) -> str:
    """Return the interval of a paired comparison, its p and the number of questions."""
    interval = f"95 % interval {difference.low:+.1f} to {difference.high:+.1f}"
    return f"{interval}, {p_value(difference.p_value)}, {questions} questions"


def preferences(train: Train | None, limit: float | None) -> Check | None:
    """Check that training ranks held-out pairs (KTO: answers) correctly; None if it compared none."""
    if limit is None or train is None or "accuracy" not in METHODS[train.method].measures:
        return None
    rule = Rule("preferences", limit)
    figures = train.preferences
    if figures is None:
        sentence = "No held-out pair says whether preferences were learned: raise curate.val_fraction."
        return rule.check("not measured", sentence)
    sentence = (
        f"Training gets {share_text(figures.accuracy)} of {figures.items} held-out pairs or answers right "
        f"({share_text(figures.low)} to {share_text(figures.high)}); at least {share_text(limit)} are wanted."
    )
    if figures.accuracy < limit <= figures.high:
        sentence += " More held-out pairs would tell."
        return rule.check("not decided", sentence, figures.accuracy)
    return rule.check(figures.high >= limit, sentence, figures.accuracy)


def generation(model: str, evaluations: Evaluations, limit: float | None) -> Check | None:
    """Check that the model writes its answers fast enough on the machine that evaluated it."""
    if limit is None:
        return None
    rule = Rule("generation", limit)
    speed = evaluations[model].speed
    measured = speed.generation[0] if speed and speed.generation else None
    if measured is None or evaluations[model].is_disturbed:
        return _no_speed(rule, model, evaluations)
    sentence = f"{model} writes {measured.median:.1f} tokens/s here; at least {limit:g} are wanted."
    return _timed(rule, sentence, measured.median, _runs(measured), most=False)


def first_token(model: str, evaluations: Evaluations, limit: float | None) -> Check | None:
    """Check that the first token of an answer comes soon enough on the machine that evaluated the model.

    Its time is that of reading the longest measured prompt.
    """
    if limit is None:
        return None
    rule = Rule("first_token", limit)
    speed = evaluations[model].speed
    prompts = [at for at in speed.prompt if at.tokens and at.median > 0] if speed else []
    if not prompts or evaluations[model].is_disturbed:
        return _no_speed(rule, model, evaluations)
    longest = max(prompts, key=lambda at: at.tokens or 0)
    tokens = longest.tokens or 0
    seconds = tokens / longest.median
    low, high = _runs(longest)
    sentence = (
        f"{model} reads a prompt of {tokens} tokens in {seconds:.2f} s here; its first token may take at "
        f"most {limit:g} s."
    )
    return _timed(rule, sentence, seconds, (tokens / high, tokens / low), most=True)


def _runs(speed: SpeedAt) -> tuple[float, float]:
    """Return the lowest and the highest run of a speed."""
    return speed.low or speed.median, speed.high or speed.median


def _no_speed(rule: Rule, model: str, evaluations: Evaluations) -> Check:
    """Return the check of a speed that was not measured, or that other load spoilt."""
    if evaluations[model].is_disturbed:
        return rule.check(
            "not decided",
            f"Something else kept the machine busy while the speed of {model} was measured: once it has "
            f"ended, run {measure_again([model])}.",
        )
    return rule.missing(f"the speed of {model} is not in its report", f"evaluate@{model}")


def _timed(rule: Rule, sentence: str, figure: float, runs: tuple[float, float], *, most: bool) -> Check:
    """Return the check of a time (`most`: the limit is the longest) or of a speed.

    It is not decided if the limit lies between the lowest and the highest of its few `runs`.
    """
    limit = rule.limit or 0.0
    low, high = runs
    if low < limit < high:
        return rule.check("not decided", f"{sentence} Its runs lie on both sides of the limit.", figure)
    passes = figure <= limit if most else figure >= limit
    return rule.check(passes, sentence, figure)
