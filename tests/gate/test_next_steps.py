"""pipeline.gate.next_steps: each cause in a recorded project gives its step, with a command that the settings
take.
"""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import report_inputs
from parity_inputs import failed_report
from report_inputs import MODELS, change, demo_params, put

from pipeline.config.overrides import from_words
from pipeline.config.params import Params
from pipeline.config.sections import Gate
from pipeline.core.jsonl import read_rows, write_rows
from pipeline.gate.evaluations import Answer
from pipeline.gate.inputs import load_inputs
from pipeline.gate.next_steps import Case, NextStep, next_steps, unnamed_keys
from pipeline.gate.recommend import advise

Change = Callable[[Path], None]


def of(root: Path, params: Params) -> list[NextStep]:
    inputs = load_inputs(root, params)
    advice, verdicts = advise(inputs, params.report, params.serving)
    return next_steps(Case(inputs, advice, verdicts, params))


def epochs(passes: float) -> Change:
    """As if the run had seen that many passes over its rows."""

    def apply(root: Path) -> None:
        rows = list(read_rows(file := root / "reports/train.jsonl"))
        for row in rows:
            if row["kind"] == "step":
                row["epoch"] = passes * row["step"] / 50
        write_rows(file, rows)

    return apply


def slow(seconds: float) -> Change:
    """As if each step had taken so long."""

    def apply(root: Path) -> None:
        rows = list(read_rows(file := root / "reports/train.jsonl"))
        write_rows(file, [row | {"seconds": seconds} for row in rows])

    return apply


def endless(longer: int) -> Change:
    """No answer of a tuned model ends; each is that many times as long as the right one."""

    def apply(root: Path) -> None:
        for model in MODELS[3:]:
            file = root / f"reports/eval/{model}.json"
            task = json.loads(file.read_text(encoding="utf-8"))["task"]
            change(file, task=task | {"stopped": 0.2})
            rows = list(read_rows(answers := file.with_suffix(".answers.jsonl")))
            for row in rows:
                row |= {"stopped": False, "answer": row["reference"] * longer}
            write_rows(answers, rows)

    return apply


def losses(*held_out: float, trained: float = 0.1, rows_held_out: int = 100) -> Change:
    """As if evaluations had found these losses, and the last steps one of their own."""

    def apply(root: Path) -> None:
        file = root / "reports/train.jsonl"
        rows = [row | {"loss": trained} for row in read_rows(file) if row["kind"] == "step"]
        change(root / "reports/data.json", splits={"train": 28, "val": rows_held_out, "test": 8})
        evaluated = [
            {"kind": "eval", "step": 10 * number, "eval_loss": loss, "samples": []}
            for number, loss in enumerate(held_out, start=1)
        ]
        write_rows(file, [*rows, *evaluated])

    return apply


def evaluations(**changed: Any) -> Change:
    """The same changes in the report of each quantized level."""

    def apply(root: Path) -> None:
        for model in MODELS[4:]:
            change(root / f"reports/eval/{model}.json", **changed)

    return apply


def all_of(*changes: Change) -> Change:
    def apply(root: Path) -> None:
        for one in changes:
            one(root)

    return apply


CAUSES: dict[str, tuple[Change, str, str]] = {  # cause: (change, command of a step, its section)
    "barely trained": (all_of(epochs(0.3), endless(3)), "quench run train.max_steps=-1", "training"),
    "barely trained on a slow machine": (
        all_of(epochs(0.3), slow(36.0), endless(3)),
        "quench run train.max_steps=100",
        "training",
    ),
    "end of turn not learned": (
        all_of(epochs(2), endless(3)),
        "quench run train.max_steps=-1 train.num_train_epochs=4",
        "training",
    ),
    "answers cut off": (all_of(epochs(2), endless(1)), "quench run evaluate.max_new_tokens=192", "answers"),
    "parity failed": (
        lambda root: put(root / "reports/parity.json", failed_report()),
        "quench model parity",
        "checks",
    ),
    "learned by heart": (losses(0.5, 0.2, 0.3), "quench run train.max_steps=20", "training"),
    "trained too fast": (
        losses(0.5, 0.2, 0.3, trained=0.8),
        "quench run train.learning_rate=5.0e-04",
        "training",
    ),
    "too few questions": (lambda root: None, "quench run curate.test_fraction=0.24", "task"),
    "passes": (lambda root: None, "quench ship Q4_K_M", "gate"),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_each_cause_has_its_step(cause: str, tmp_path: Path) -> None:
    change_it, command, section = CAUSES[cause]
    change_it(report_inputs.write_inputs(tmp_path))
    steps = {step.command: step for step in of(tmp_path, demo_params())}
    assert command in steps, list(steps)
    assert steps[command].section == section
    assert steps[command].reason.endswith(".")
    words = shlex.split(command)
    if words[:2] == ["quench", "run"]:
        from_words(words[2:])


def test_questions_with_placeholders_are_told(tmp_path: Path) -> None:
    all_of(epochs(2), losses(0.5, 0.2, 0.19))(report_inputs.write_inputs(tmp_path))
    assert not any("placeholders" in step.reason for step in of(tmp_path, demo_params()))
    for model in MODELS:
        answers = tmp_path / f"reports/eval/{model}.answers.jsonl"
        rows = list(read_rows(answers))
        for row in rows[:4]:
            row["prompt"] = "Please change my address to [EMAIL_1]."
        write_rows(answers, rows)
    steps = [step for step in of(tmp_path, demo_params()) if "[EMAIL_1]" in step.reason]
    assert [step.section for step in steps] == ["answers"]


def test_without_its_cause_no_step_is_there(tmp_path: Path) -> None:
    all_of(epochs(2), losses(0.5, 0.2, 0.19))(report_inputs.write_inputs(tmp_path))
    sections = [step.section for step in of(tmp_path, demo_params())]
    assert "training" not in sections
    assert "checks" not in sections


@pytest.mark.parametrize(
    ("trained", "rows_held_out", "reason"),
    [
        (0.1, 100, "has risen to 0.300 since: rows are learned by heart."),
        (
            0.1,
            29,
            "has risen to 0.300 since (on 29 rows, so it may be chance): rows may be learned by heart.",
        ),
        (0.8, 100, "has risen to 0.300 since, but training's own is no lower (0.800): rows are not learned"),
        (
            0.8,
            29,
            "since (on 29 rows, so it may be chance), but training's own is no lower (0.800): rows are not",
        ),
    ],
)
def test_a_held_out_loss_that_rises_is_read_beside_that_of_training(
    trained: float, rows_held_out: int, reason: str, tmp_path: Path
) -> None:
    root = report_inputs.write_inputs(tmp_path)
    losses(0.5, 0.2, 0.3, trained=trained, rows_held_out=rows_held_out)(root)
    (step,) = [step for step in of(root, demo_params()) if step.section == "training"]
    assert reason in step.reason


def test_a_level_that_rounding_spoils_is_followed_by_a_wider_one(tmp_path: Path) -> None:
    report_inputs.write_inputs(tmp_path)
    evaluations(kld_mean=3.0)(tmp_path)
    params = demo_params()
    params.report.__dict__["memory_gb"] = 0.8  # the 16-bit model, which passes, does not fit
    (step,) = [step for step in of(tmp_path, params) if "wider" in step.advice]
    levels, models = shlex.split(step.command)[2:]
    made = from_words([levels, models])
    assert made[("quantize", "levels")] == [*params.quantize.levels, "Q6_K"]
    assert made[("evaluate", "models")] == [*MODELS, "Q6_K"]


def with_level(root: Path, level: str, *, passes: bool) -> Params:
    """Let the project have made no other level than this, which does not fit into the memory."""
    report_inputs.write_inputs(root)
    folder = root / "reports/eval"
    for suffix in (".json", ".answers.jsonl"):
        (folder / f"Q4_K_M{suffix}").rename(folder / f"{level}{suffix}")
    change(folder / f"{level}.json", model=level, kld_mean=3.0)
    parity = root / "reports/parity.json"
    checks = parity.read_text(encoding="utf-8").replace("Q4_K_M", level)
    parity.write_text(checks.replace("q4_k_m", level.lower()), encoding="utf-8")
    params = demo_params()
    gate = Gate(**dict.fromkeys(Gate.model_fields)) if passes else params.report.gate
    models = ["base-F16", "F16", level]
    return params.model_copy(
        update={
            "quantize": params.quantize.model_copy(update={"levels": [level]}),
            "evaluate": params.evaluate.model_copy(update={"models": models}),
            "report": params.report.model_copy(update={"memory_gb": 0.05, "gate": gate}),
        }
    )


@pytest.mark.parametrize(
    ("level", "passes", "added"),
    [
        ("Q8_0", True, "Q4_K_M"),
        ("Q3_K_M", True, "Q2_K"),
        ("Q2_K", True, None),
        ("Q4_K_M", False, "Q5_K_M"),
        ("Q6_K", False, "Q8_0"),
        ("Q8_0", False, None),
    ],
)
def test_a_level_that_passes_is_followed_by_a_smaller_and_a_refused_one_by_a_wider(
    level: str, passes: bool, added: str | None, tmp_path: Path
) -> None:
    params = with_level(tmp_path, level, passes=passes)
    step = next(step for step in of(tmp_path, params) if step.section == "levels")
    assert ("Rounding" in step.reason) != passes
    if added is None:
        assert not step.command
    else:
        levels = shlex.split(step.command)[2]
        assert from_words([levels])[("quantize", "levels")] == [level, added]


def test_what_decides_is_named_by_its_scorer(tmp_path: Path) -> None:
    root = report_inputs.write_inputs(tmp_path)
    for model in MODELS:
        rows = list(read_rows(file := root / f"reports/eval/{model}.answers.jsonl"))
        for row in rows:
            row["scores"] = {"exact_match": 0.0, "json_fields": row["score"]}
            row["score"] = 0.0
        write_rows(file, rows)
        report = file.with_name(f"{model}.json")
        task = json.loads(report.read_text(encoding="utf-8"))["task"]
        scores = {"exact_match": task["scores"]["exact_match"], "json_fields": task["scores"]["json_fields"]}
        change(report, task=task | {"scorer": "exact_match", "scores": scores})
    params = demo_params()
    scorers = ["exact_match", "json_fields"]
    evaluate = params.evaluate.model_copy(update={"scorers": scorers})
    steps = of(root, params.model_copy(update={"evaluate": evaluate}))
    (step,) = [step for step in steps if "scorers" in step.command]
    assert shlex.split(step.command)[2] == "evaluate.scorers=[json_fields, exact_match]"
    assert "put it first" in step.replaces


def test_a_base_that_is_not_told_the_keys_is_not_a_fair_one(tmp_path: Path) -> None:
    steps = of(report_inputs.write_inputs(tmp_path), demo_params())
    (step,) = [step for step in steps if "doesn't know the keys" in step.reason]
    assert "module, name, required and 2 more" in step.reason


def test_a_base_that_answers_with_examples_is_named_with_both_scores(tmp_path: Path) -> None:
    root = report_inputs.write_inputs(tmp_path)
    report = root / "reports/eval/base-F16.json"
    task = json.loads(report.read_text(encoding="utf-8"))["task"]
    shown = task | {"examples": 3, "score": 0.792, "score_low": 0.7, "score_high": 0.9}
    change(report, task_with_examples=shown)
    steps = of(root, demo_params())
    (step,) = [step for step in steps if "79.2 with 3 training chats" in step.reason]
    assert step.section == "overview"


def answer(prompt: str, reference: str) -> Answer:
    return Answer.model_validate({"id": "a", "score": 0.0, "prompt": prompt, "reference": reference})


def test_keys_that_a_prompt_names_are_known() -> None:
    asked = [answer("give name and age", '{"name": "a", "age": 1, "town": "x"}')]
    assert unnamed_keys(asked) == ["town"]
    assert unnamed_keys([*asked, answer("the town?", '{"town": "y"}')]) == []
    assert unnamed_keys([answer("x", "no JSON")]) == []
    assert unnamed_keys([answer("x", "[1]")]) == []
