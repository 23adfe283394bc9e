"""Say what to do next, by cause: every step has its reason, its command, and the section of the report's page
that shows it. Pure arithmetic on what the report reads.

A cause is a function of a `Case`; it returns its step, or None if it does not apply. `CAUSES` has them in the
order in which they matter: what makes all figures worthless comes first, then training, then measuring.
"""

import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median

from pipeline.config.params import Params
from pipeline.config.products import Product, product_of
from pipeline.core.text import listed, plural
from pipeline.gate.deciding_scorer import passed_over_sentence
from pipeline.gate.evaluations import Answer, commonest_line, quoted
from pipeline.gate.inputs import Inputs
from pipeline.gate.recommend import Recommendation
from pipeline.gate.scores import resolution
from pipeline.gate.verdict import Judgment
from pipeline.metrics.answer_speed import measure_again

MOST = 4  # steps that are returned: more are not a plan
HOUR = 3600  # seconds
ONE_PASS = 1.0  # passes over the training rows; with fewer, most rows were never seen
FEW_ROWS = 200  # training rows below which more rows help more than more steps
RISEN = 1.05  # held-out loss at the end over its lowest: rows may be learned by heart
LAST_STEPS = 10  # training steps whose mean loss is compared with that of held-out rows
FEW_HELD_OUT = 30  # held-out rows below which a risen loss may be chance
FLOOR = 0.01  # score (0 to 1) of a base that does not answer in the wanted form
AS_LONG = 0.8  # length of the references over that of answers that did not end: these were cut off
KEYS_SHOWN = 3  # keys of a JSON answer that a sentence names
REFERENCES_READ = 50  # references that are searched for keys
FEW_OF_A_LABEL = 3  # test rows of a label below which none of them right may be chance
LABELS_SHOWN = 3  # labels that a sentence names
# What redaction puts in the place of a value, and the share of questions that have it, at least, of many.
PLACEHOLDER = re.compile(r"\[[A-Z_]+_\d+\]")
MANY_REDACTED = 0.02
WIDER = ("Q5_K_M", "Q6_K", "Q8_0")  # levels that lose less, the smallest first
SMALLER = ("Q4_K_M", "Q3_K_M", "Q2_K")  # levels that need less memory, the largest first
ROUNDING = ("kld", "same_top", "task_drop")  # rules that a wider level passes more easily


@dataclass(frozen=True)
class NextStep:
    """One thing to do: why, what, the command for it ("" if there is none), the page's section.

    `replaces` is the warning of the recommendation that says the same without a command.
    """

    reason: str
    advice: str
    command: str
    section: str
    replaces: str = ""

    def __str__(self) -> str:
        """Return the step on one line, as the terminal prints it."""
        command = f": `{self.command}`" if self.command else ""
        return f"{self.reason} {self.advice}{command}"


@dataclass(frozen=True)
class Case:
    """A finished run: what the report reads, its recommendation, the gate's verdicts, and the settings."""

    inputs: Inputs
    advice: Recommendation
    verdicts: Mapping[str, Judgment]
    params: Params

    @property
    def product(self) -> Product:
        """The artifact that was made."""
        return product_of(self.inputs.evaluations)

    @cached_property
    def refusing(self) -> dict[str, list[str]]:
        """The models that each rule of the gate refuses, by the rule's key."""
        refusing: dict[str, list[str]] = {}
        for model, verdict in self.verdicts.items():
            for key in verdict.refusing:
                refusing.setdefault(key, []).append(model)
        return refusing

    @cached_property
    def step_seconds(self) -> float:
        """The median time of an optimizer step; 0 if no step says it."""
        rows = (row for row in self.inputs.metrics_log if row["kind"] == "step")
        seconds = [row["seconds"] for row in rows if isinstance(row.get("seconds"), int | float)]
        return median(seconds) if seconds else 0.0

    @property
    def level(self) -> str:
        """The recommended model; the smallest tuned one if there is none."""
        sizes = self.inputs.evaluations
        return self.advice.model or min(self.verdicts, key=lambda model: (sizes[model].bytes, model))

    @property
    def falls_short(self) -> bool:
        """True if nothing is recommended, or what is recommended does not beat the base, or not always
        giving the commonest answer.
        """
        beats = (gain.beats for gain in self.advice.gains if gain.model == self.level)
        above = self.verdicts[self.level].is_above_commonest
        return self.advice.model is None or False in beats or not above

    @property
    def trained_rows(self) -> int:
        """Number of rows for training."""
        return self.inputs.data.splits.get("train", 0)


def next_steps(case: Case) -> list[NextStep]:
    """Return what to do next, the most urgent first, one step a cause."""
    steps = (cause(case) for cause in CAUSES)
    return [step for step in steps if step][:MOST]


def _parity(case: Case) -> NextStep | None:
    if case.inputs.parity.verdict == "pass" and "parity" not in case.refusing:
        return None
    reason = "The parity checks don't hold, so these files may not be what was trained."
    return NextStep(reason, "Find the cause before anything else", "quench model parity", "checks")


def _memory(case: Case) -> NextStep | None:
    refused = all(verdict.verdict == "fail" for verdict in case.verdicts.values())
    if case.advice.model is not None or refused or case.product.served:
        return None
    passed = [model for model, verdict in case.verdicts.items() if verdict.verdict != "fail"]
    reason = f"No level that the gate does not refuse fits in {case.params.report.memory_gb:g} GB."
    return _with_level(case, SMALLER, passed, reason, "Make and measure a smaller one")


def _barely_trained(case: Case) -> NextStep | None:
    passes = case.inputs.passes
    if passes is None or passes >= ONE_PASS or not case.falls_short:
        return None
    steps = f"{case.inputs.train.steps:,} step{'s' if case.inputs.train.steps != 1 else ''}"
    seen = f"{passes:.1f}" if passes >= 0.05 else f"{passes:.2g}"
    reason = f"Trained {seen} epochs: in {steps} most of the {case.trained_rows:,} rows were never seen."
    if case.params.train.max_steps > 0:
        return _without_max_steps(case, reason)
    return NextStep(reason, "Train several epochs", _run("train.num_train_epochs", 3), "training")


def _without_max_steps(case: Case, reason: str) -> NextStep:
    """Return the step to all epochs, or to as many steps as an hour has if they take longer here."""
    epochs = f"{case.params.train.num_train_epochs:g}"
    steps_per_epoch = case.inputs.train.steps / (case.inputs.passes or 1)
    steps = math.ceil(steps_per_epoch * case.params.train.num_train_epochs)
    hours = steps * case.step_seconds / HOUR
    if hours <= 1:
        time = f", {max(60 * hours, 1):.0f} min here" if hours else ""
        advice = f"Train {epochs} epochs, which max_steps cut short ({steps:,} steps{time})"
        return NextStep(reason, advice, _run("train.max_steps", -1), "training")
    more = max(2 * case.inputs.train.steps, round(steps / hours, -1))
    advice = (
        f"Train longer: {more:,.0f} steps take {more * case.step_seconds / HOUR:.1f} h here, all "
        f"{epochs} epochs ({steps:,} steps, max_steps -1) {hours:.0f} h"
    )
    return NextStep(reason, advice, _run("train.max_steps", int(more)), "training")


def _cut_answers(case: Case) -> NextStep | None:
    unended = _unended(case)
    if not unended:
        return None
    cut, answers = unended
    if not cut:
        return None
    tokens = case.params.evaluate.max_new_tokens
    model = case.refusing["stopped"][0]
    reason = (
        f"{len(answers):,} answers of {model} were cut off at {tokens:,} tokens, and the right ones are as "
        "long."
    )
    return NextStep(reason, "Allow longer answers", _run("evaluate.max_new_tokens", 2 * tokens), "answers")


def _endless_answers(case: Case) -> NextStep | None:
    unended = _unended(case)
    passes = case.inputs.passes
    if not unended or unended[0] or passes is None or passes < ONE_PASS:
        return None
    model = case.refusing["stopped"][0]
    reason = (
        f"{len(unended[1]):,} answers of {model} go on past the length of the right ones: after "
        f"{_epochs(passes)} the end of a turn is not learned."
    )
    return NextStep(reason, "Train longer", _more_passes(passes), "training")


def _unended(case: Case) -> tuple[bool, list[Answer]] | None:
    """Return whether the answers that did not end were cut off too early, and these answers.

    Return None if the gate refuses no model for them. They were cut off if the references are about as long.
    """
    models = case.refusing.get("stopped", [])
    rows = [row for model in models[:1] for row in case.inputs.answers.get(model, ())]
    answers = [row for row in rows if row.stopped is False]
    if not answers:
        return None
    wanted = median(len(_as_text(row.reference)) for row in answers)
    written = median(len(_as_text(row.answer)) for row in answers)
    return wanted >= AS_LONG * written, answers


def _risen_loss(case: Case) -> NextStep | None:
    held_out = _losses(case, "eval", "eval_loss")
    trained = [loss for _, loss in _losses(case, "step", "loss")][-LAST_STEPS:]
    if len(held_out) < 2 or not trained:
        return None
    step, lowest = min(held_out, key=lambda pair: pair[1])
    last_step, last = held_out[-1]
    kept = (case.inputs.train.model_extra or {}).get("adapter_step")
    if last <= RISEN * lowest or kept == step or step == last_step:
        return None
    rows = case.inputs.data.splits.get("val", 0)
    may_be_chance = 0 < rows < FEW_HELD_OUT
    lowest_at = f"The loss on held-out rows was lowest at step {step:,} ({lowest:.3f})"
    risen = f"{lowest_at} and has risen to {last:.3f} since"
    if may_be_chance:
        risen += f" (on {plural(rows, 'row')}, so it may be chance)"
    # What is learned by heart has a lower loss in training than held out.
    if fmean(trained) < last:
        reason = f"{risen}: rows {'may be' if may_be_chance else 'are'} learned by heart."
        return NextStep(reason, "Stop there", _run("train.max_steps", step), "training")
    reason = f"{risen}, but training's own is no lower ({fmean(trained):.3f}): rows are not learned by heart."
    return NextStep(reason, "Try a lower learning rate, or more steps", _half_the_rate(case), "training")


def _losses(case: Case, kind: str, key: str) -> list[tuple[int, float]]:
    """Return the steps and finite losses of one kind of rows in the metrics log."""
    rows = [row for row in case.inputs.metrics_log if row["kind"] == kind]
    return [
        (int(row["step"]), float(row[key]))
        for row in rows
        if isinstance(row.get(key), int | float) and math.isfinite(row[key])
    ]


def _scorer(case: Case) -> NextStep | None:
    task = next((one.task for one in case.inputs.evaluations.values() if one.task), None)
    if task is None or not task.passed_over:
        return None
    silent = " and ".join(task.passed_over)
    others = [name for name in case.params.evaluate.scorers if name != task.scorer]
    reason = f"{silent} can't tell these models apart; {task.scorer} does."
    return NextStep(
        reason,
        "Put it first, so that it decides by your settings",
        _run("evaluate.scorers", [task.scorer, *others]),
        "task",
        passed_over_sentence(case.inputs.evaluations) or "",
    )


def _forgetting(case: Case) -> NextStep | None:
    models = case.refusing.get("forgetting")
    if not models:
        return None
    reason = f"{models[0]} forgot more of what the base knew than the gate allows."
    command = _half_the_rate(case)
    advice = (
        "Train more gently, or mix general chats into data/raw (if nothing but this task matters, set "
        "report.gate.max_forgetting to null instead)"
    )
    return NextStep(reason, advice, command, "general")


def _rounding(case: Case) -> NextStep | None:
    if case.product.served or case.advice.model is not None:
        return None
    reference = case.product.reference(case.inputs.evaluations)
    models = [model for rule in ROUNDING for model in case.refusing.get(rule, ()) if model != reference]
    sixteen = case.verdicts.get(reference)
    if not models or sixteen is None or sixteen.verdict == "fail":
        return None
    reason = f"Rounding costs {listed(list(dict.fromkeys(models)))} more than the gate allows."
    return _with_level(case, WIDER, models, reason, "Make and measure a wider level")


def _no_gain(case: Case) -> NextStep | None:
    gain = next((one for one in case.advice.gains if one.model == case.level and one.beats is False), None)
    passes = case.inputs.passes
    if gain is None or gain.points is None or passes is None or passes < ONE_PASS:
        return None
    if case.trained_rows < FEW_ROWS:
        reason = (
            f"{case.level} gains nothing over the base, and only {case.trained_rows:,} rows were trained."
        )
        return NextStep(
            reason, "Put more rows into data/raw, then see what is used", "quench data check data/raw", "data"
        )
    reason = f"{case.level} gains nothing over the base after {_epochs(passes)}."
    return NextStep(reason, "Train longer, and read what it answers", _more_passes(passes), "answers")


def _never_right(case: Case) -> NextStep | None:
    if commonest_line(case.inputs.evaluations) is None:  # Only where answers are repeated are they labels.
        return None
    # Beside a call the reference's words are not what is expected.
    answers = case.inputs.answers.get(case.level, ())
    rows = [row for row in answers if row.score is not None and not row.expected_calls]
    expected = Counter(_as_text(row.reference).strip() for row in rows)
    right = {_as_text(row.reference).strip() for row in rows if row.score == 1}
    never = [
        (label, of_label)
        for label, of_label in expected.most_common()
        if of_label >= FEW_OF_A_LABEL and label not in right
    ]
    # If no label at all is ever right, the labels are not the cause.
    if not never or not right:
        return None
    named = [f"none of {of_label:,} {quoted(label)}" for label, of_label in never[:LABELS_SHOWN]]
    others = len(never) - len(named)
    more = f", and so with {plural(others, 'more answer')}" if others else ""
    reason = f"{case.level} got {listed(named)} right{more}."
    advice = "See what it says in their place, and put more rows with these answers into data/raw"
    return NextStep(reason, advice, "", "task")


def _base_unmeasured(case: Case) -> NextStep | None:
    models = list(case.inputs.evaluations)
    base = case.product.untuned(models)
    if base in models:
        return None
    reason = "What training won over the base was not measured."
    return NextStep(reason, f"Measure {base} too", _run("evaluate.models", [base, *models]), "task")


def _base_at_the_floor(case: Case) -> NextStep | None:
    base = case.product.untuned(case.inputs.evaluations)
    evaluation = case.inputs.evaluations.get(base)
    if evaluation is None or evaluation.score is None or evaluation.score > FLOOR:
        return None
    points = f"{base} scores {100 * evaluation.score:.1f} points"
    shown = evaluation.task_with_examples
    if shown and shown.score is not None and shown.score > FLOOR:
        reason = (
            f"{points}, and {100 * shown.score:.1f} with {plural(shown.examples, 'training chat')} in its "
            "prompt: nobody else tells it the form that is wanted."
        )
        return NextStep(reason, "Compare with the second: a prompt alone gives that much", "", "overview")
    keys = unnamed_keys(case.inputs.answers.get(base, ()))
    if keys:
        more = f" and {len(keys) - KEYS_SHOWN} more" if len(keys) > KEYS_SHOWN else ""
        names = f"{', '.join(keys[:KEYS_SHOWN])}{more}"
        reason = f"{points}: the base doesn't know the keys it should write ({names})."
        advice = (
            "The gain includes learning them; name them in the rows' system turn to see what is left of it"
        )
        return NextStep(reason, advice, "", "answers")
    advice = "Read its answers: it may know the task, but not the form that the scorer wants"
    return NextStep(f"{points}.", advice, "", "answers")


def unnamed_keys(answers: Iterable[Answer]) -> list[str]:
    """Return the keys of references that are JSON objects which no prompt names; [] if references are not."""
    named: dict[str, bool] = {}
    for row in list(answers)[:REFERENCES_READ]:
        try:
            reference = json.loads(_as_text(row.reference))
        except ValueError:
            return []
        if not isinstance(reference, dict):
            return []
        prompt = _as_text(row.prompt)
        for key in reference:
            found = re.search(rf"\b{re.escape(key)}\b", prompt) is not None
            named[key] = named.get(key, False) or found
    return [key for key, is_named in named.items() if not is_named]


def _too_few_questions(case: Case) -> NextStep | None:
    reference = case.product.reference(case.inputs.evaluations)
    evaluation = case.inputs.evaluations.get(reference)
    allowed = case.params.report.max_task_drop
    if evaluation is None or evaluation.task is None or not allowed:
        return None
    low, high = evaluation.task.interval
    half_width = 50 * (high - low)
    warning = resolution(reference, evaluation, allowed)
    if half_width <= allowed or warning is None:
        return None
    rows = evaluation.task.scored_rows
    reason = f"{rows:,} questions tell scores apart by ± {half_width:.0f} points only."
    # An interval is as wide as one over the square root of the rows.
    wanted = math.ceil(rows * (half_width / allowed) ** 2)
    held_out = case.inputs.data.splits.get("test", 0)
    if held_out <= rows:
        share = min(0.5, 2 * case.params.curate.test_fraction)
        command = _run("curate.test_fraction", share)
        return NextStep(reason, "Hold out more rows", command, "task", warning)
    command = _run("evaluate.task_rows", min(wanted, held_out))
    return NextStep(reason, "Ask more of the held-out rows", command, "task", warning)


def _disturbed(case: Case) -> NextStep | None:
    models = [model for model, found in case.inputs.evaluations.items() if found.is_disturbed]
    if not models:
        return None
    reason = f"Something else kept the machine busy while the speed of {listed(models)} was measured."
    return NextStep(reason, "Measure again when it has ended", measure_again(models), "speed")


def _ship(case: Case) -> NextStep | None:
    model = case.advice.model
    if model is None or case.falls_short or case.inputs.parity.verdict != "pass":
        return None
    if case.verdicts[model].verdict != "pass":
        return None
    return NextStep(f"{model} passes.", "Pack it for others", f"quench ship {model}", "gate")


def _placeholders(case: Case) -> NextStep | None:
    rows = case.inputs.answers.get(case.level, ())
    first_of_each = [PLACEHOLDER.search(_as_text(row.prompt)) for row in rows]
    placeholders = [placeholder[0] for placeholder in first_of_each if placeholder]
    if len(placeholders) < MANY_REDACTED * len(rows) or not placeholders:
        return None
    reason = (
        f"{len(placeholders):,} of {len(rows):,} questions have placeholders such as {placeholders[0]} where "
        "people write the real thing, which the model was never shown."
    )
    advice = (
        "Put placeholders into what it is asked, too; or keep the kinds that answers depend on "
        "(curate.personal, curate.secrets)"
    )
    return NextStep(reason, advice, "", "answers")


def _imperfect(case: Case) -> NextStep | None:
    rows = case.inputs.answers.get(case.level, ())
    wrong = sum(row.score is not None and row.score < 1 for row in rows)
    if not wrong:
        return None
    reason = f"{wrong:,} of {len(rows):,} answers of {case.level} don't have full marks."
    return NextStep(
        reason, "Read them: rows like these, with right answers, belong into data/raw", "", "answers"
    )


CAUSES: tuple[Callable[[Case], NextStep | None], ...] = (
    _parity,
    _barely_trained,
    _cut_answers,
    _endless_answers,
    _forgetting,
    _rounding,
    _memory,
    _no_gain,
    _never_right,
    _ship,
    _risen_loss,
    _placeholders,
    _scorer,
    _base_unmeasured,
    _base_at_the_floor,
    _too_few_questions,
    _disturbed,
    _imperfect,
)


def _with_level(
    case: Case, levels: Sequence[str], known: Iterable[str], reason: str, advice: str
) -> NextStep:
    """Return the step to add the first of `levels` that comes after all `known` ones and was not made yet."""
    first = max((levels.index(model) + 1 for model in known if model in levels), default=0)
    made = case.params.quantize.levels
    level = next((level for level in levels[first:] if level not in made), None)
    if level is None:
        return NextStep(reason, "Take another base", "", "levels")
    command = _command(
        f"quantize.levels={_listing([*made, level])}",
        f"evaluate.models={_listing([*case.inputs.evaluations, level])}",
    )
    return NextStep(reason, advice, command, "levels")


def _more_passes(passes: float) -> str:
    return _command("train.max_steps=-1", f"train.num_train_epochs={2 * math.ceil(passes)}")


def _run(key: str, value: object) -> str:
    """Return the command that runs again with another value."""
    text = _listing(value) if isinstance(value, list) else f"{value:g}" if isinstance(value, float) else value
    return _command(f"{key}={text}")


def _half_the_rate(case: Case) -> str:
    """Return the command that trains at half of the learning rate."""
    return _command(f"train.learning_rate={case.params.train.learning_rate / 2:.1e}")


def _command(*settings: str) -> str:
    return shlex.join(["quench", "run", *settings])


def _listing(names: Iterable[str]) -> str:
    return f"[{', '.join(names)}]"


def _epochs(passes: float) -> str:
    return f"{passes:.1f} epochs"


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
