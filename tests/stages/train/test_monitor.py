"""pipeline.stages.train.monitoring.monitor and rules: each fault trips its own rule and no other, and healthy
runs trip none.
"""

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_logs import Row, demo_run, eval_row, healthy_run, step_row

from pipeline.config.params import load_params
from pipeline.config.sections import Training
from pipeline.core.checks import Check
from pipeline.core.places import PROJECT
from pipeline.stages.train.learner import monitor_of
from pipeline.stages.train.monitoring.rules import EVERY_STEP
from pipeline.stages.train.monitoring.run_rules import AT_END, EVERY_EVAL

ROOT = PROJECT
SETTINGS = load_params(ROOT / "recipes" / "qwen2.5-7b-8gb.yaml").training
STEPS = 100
Change = Callable[[list[Row]], list[Row]]


def run_monitor(rows: list[Row], settings: Training = SETTINGS) -> tuple[list[Check], list[Check]]:
    """What is said while the run goes on, and the account at its end."""
    monitor = monitor_of(max(row["step"] for row in rows), settings)
    output = [finding for row in rows for finding in monitor.see(row)]
    return output, monitor.findings()


def at(step: int, *, kind: str = "step", until: int | None = None, **changed: Any) -> Change:
    """A change of the rows of `kind` from `step` to `until` (else that step alone)."""
    return lambda rows: [
        row | changed if row["kind"] == kind and step <= row["step"] <= (until or step) else row
        for row in rows
    ]


def risen(rows: list[Row]) -> list[Row]:
    """The eval loss turns at step 60 and goes up 5 % an evaluation."""
    return [
        row | {"eval_loss": 0.8 * 1.05 ** ((row["step"] - 60) / 10)}
        if row["kind"] == "eval" and row["step"] >= 60
        else row
        for row in rows
    ]


def flat(rows: list[Row]) -> list[Row]:
    return [row | {"loss": 1.4} if row["kind"] == "step" else row | {"eval_loss": 1.4} for row in rows]


NAN, FLAT_LOW = math.nan, {"grad_norm": 0.02}
FAULTS = {
    "NaN loss": (at(50, loss=NAN, grad_norm=NAN), "finite loss", "fail", 50, "forward fault"),
    "Inf loss": (
        at(50, loss=math.inf, grad_norm=NAN),
        "finite loss",
        "fail",
        50,
        "after a sane gradient norm",
    ),
    "NaN loss in the first step": (
        at(1, loss=NAN, grad_norm=NAN),
        "finite loss",
        "fail",
        1,
        "in the first step",
    ),
    "NaN gradient": (at(50, grad_norm=NAN), "finite gradient", "fail", 50, "Q-TRAIN-010"),
    "NaN eval loss": (
        at(50, kind="eval", eval_loss=NAN),
        "finite eval loss",
        "fail",
        50,
        "held-out rows is nan",
    ),
    "zero loss": (at(50, loss=0.0), "zero loss", "fail", 50, "Q-TRAIN-011"),
    "nothing trained": (
        at(50, trained_tokens=0),
        "trained tokens",
        "fail",
        50,
        "Q-TRAIN-012; no token is trained in packed rows 24",
    ),
    "frozen": (at(1, grad_norm=0.0), "zero gradient", "fail", 1, "Q-TRAIN-013"),
    "one step without gradient": (
        at(50, grad_norm=0.0),
        "zero gradient",
        "warn",
        50,
        "nothing was learned in this step",
    ),
    "alarm": (at(50, grad_norm=150.0), "gradient alarm", "warn", 50, "150, above 100"),
    "high gradients": (at(40, until=80, grad_norm=20.0), "gradient range", "warn", 44, "usual are 0.1 to 10"),
    "low gradients": (
        at(20, until=60, grad_norm=0.02),
        "gradient range",
        "warn",
        25,
        "hardly anything is learned",
    ),
    "spike": (at(50, loss=6.0), "loss spike", "warn", 50, "times the median"),
    "slow": (at(50, until=70, tokens_per_second=20.0), "speed", "warn", 52, "20 tokens per second"),
    "overfitting": (risen, "overfitting", "warn", 80, "early_stopping_patience"),
    "flat": (flat, "falling loss", "warn", None, "nothing is learned"),
}


@pytest.mark.parametrize("step", range(1, 6))
@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_one_loss_that_is_no_number_leaves_the_medians_alone(step: int, odd: float) -> None:
    """Sorting puts NaN anywhere, and elsewhere with each version of Python."""
    _, stats = run_monitor(at(step, loss=odd)(healthy_run(STEPS, 1.8, 0.7, noise=0.02)))
    assert [
        finding.verdict for finding in stats if finding.name in ("falling loss", "end loss", "loss spike")
    ] == ["pass"] * 3


@pytest.mark.parametrize(("change", "rule", "level", "step", "words"), FAULTS.values(), ids=FAULTS)
def test_each_fault_trips_its_own_rule_only(
    change: Change, rule: str, level: str, step: int | None, words: str
) -> None:
    output, stats = run_monitor(change(healthy_run(STEPS, 1.8, 0.7, noise=0.02)))
    assert [(finding.name, finding.verdict, finding.step) for finding in output] == [(rule, level, step)]
    assert words in f"{output[0].id}; {output[0].sentence}; {output[0].remedy}"
    assert output[0].remedy
    assert [finding.name for finding in stats if finding.verdict in ("warn", "fail")] == [rule]
    assert stats[0].name == rule  # the gravest first


SETTING_FAULTS = [
    ("learning_rate", 1e-3, "learning rate"),
    ("warmup_ratio", 0.0, "warm-up"),
    ("weight_decay", 0.5, "weight decay"),
    ("r", 4, "rank"),
]


@pytest.mark.parametrize(("key", "value", "rule"), SETTING_FAULTS)
def test_settings_outside_the_usual_are_said_once(key: str, value: float, rule: str) -> None:
    output, stats = run_monitor(healthy_run(STEPS, 1.8, 0.7), SETTINGS.model_copy(update={key: value}))
    assert [(finding.name, finding.verdict, finding.step) for finding in output] == [(rule, "warn", 1)]
    assert f"train.{key} is {value:g}" in stats[0].sentence


@given(
    steps=st.integers(20, 300),
    start=st.floats(1.2, 3.0),
    share=st.floats(0.04, 0.5),
    seed=st.integers(0, 10_000),
    noise=st.floats(0.0, 0.15),
    learned_in=st.integers(4, 60),
)
def test_healthy_runs_raise_nothing(
    steps: int, start: float, share: float, seed: int, noise: float, learned_in: int
) -> None:
    output, stats = run_monitor(
        healthy_run(steps, start, start * share, seed, noise, min(0.25, learned_in / steps))
    )
    assert output == []
    assert {finding.verdict for finding in stats} <= {"pass", "not measured"}


def test_the_demo_is_healthy_but_for_its_learning_rate() -> None:
    settings = load_params(ROOT / "recipes" / "demo.yaml").training
    output, stats = run_monitor(demo_run(), settings)
    assert [finding.name for finding in output] == ["learning rate"]
    assert [finding.verdict for finding in stats].count("pass") == len(stats) - 1
    (end,) = [finding for finding in stats if finding.name == "end loss"]
    assert "below is normal for short or uniform answers" in end.remedy


def test_small_gradients_are_fine_where_the_task_is_learned() -> None:
    rows = [
        row | {"grad_norm": 0.02} if row["kind"] == "step" and row["step"] > 20 else row for row in demo_run()
    ]
    assert [finding.name for finding in run_monitor(rows)[0]] == []


def test_a_rule_speaks_up_again_only_when_it_gets_worse() -> None:
    rows = [
        row | {"grad_norm": 200.0} if row["kind"] == "step" else row for row in healthy_run(STEPS, 1.8, 0.7)
    ]
    output, _ = run_monitor(rows)
    assert [(finding.name, finding.step) for finding in output] == [
        ("gradient alarm", 1),
        ("gradient range", 10),
    ]
    monitor = monitor_of(STEPS, SETTINGS)
    levels = [
        [found.verdict for found in monitor.see(step_row(step, 1.0, norm))]
        for step, norm in enumerate((1.0, 0.0, 0.0, NAN, NAN), start=1)
    ]
    assert levels == [[], ["warn"], [], ["fail"], []]


def test_a_nan_after_a_nan_gradient_is_called_a_backward_fault() -> None:
    rows = at(50, grad_norm=NAN)(at(51, loss=NAN, grad_norm=NAN)(healthy_run(STEPS, 1.8, 0.7)))
    output, _ = run_monitor(rows[:60])
    assert [(finding.name, finding.step) for finding in output] == [
        ("finite gradient", 50),
        ("finite loss", 51),
    ]
    assert "a backward fault in the step before" in output[1].remedy


def test_float16_may_overflow_while_its_loss_scale_settles() -> None:
    settings = SETTINGS.model_copy(update={"bnb_4bit_compute_dtype": "float16"})
    assert run_monitor(at(1, until=3, grad_norm=math.inf)(healthy_run(STEPS, 1.8, 0.7)), settings)[0] == []
    output, _ = run_monitor(at(31, until=36, grad_norm=math.inf)(healthy_run(STEPS, 1.8, 0.7)), settings)
    assert [(finding.name, finding.step) for finding in output] == [("finite gradient", 35)]


def test_one_bad_evaluation_or_a_higher_training_loss_is_no_overfitting() -> None:
    rows = healthy_run(STEPS, 1.8, 0.7)
    assert run_monitor(at(90, kind="eval", eval_loss=3.0)(rows))[0] == []
    worse_throughout = [
        row | {"loss": 0.7 + row["step"] / 300} if row["kind"] == "step" and row["step"] > 60 else row
        for row in risen(rows)
    ]
    assert run_monitor(worse_throughout)[0] == []


def test_what_can_not_be_told_is_not_measured() -> None:
    untold = {finding.name: finding.verdict for finding in monitor_of(STEPS, SETTINGS).findings()}
    assert untold == dict.fromkeys([*EVERY_STEP, *EVERY_EVAL, *AT_END], "not measured")
    output, stats = run_monitor([step_row(1, 12.0, 2.0), step_row(2, 11.9, 2.0), eval_row(2, 11.9)])
    assert output == []
    short = {finding.name for finding in stats if finding.verdict == "not measured"}
    assert short == {"gradient range", "loss spike", "speed", "overfitting", "falling loss"}


@given(st.integers(0, 110))
def test_a_resumed_monitor_is_as_if_nothing_had_happened(cut: int) -> None:
    rows = at(30, grad_norm=150.0)(risen(healthy_run(STEPS, 1.8, 0.7)))
    whole, resumed = monitor_of(STEPS, SETTINGS), monitor_of(STEPS, SETTINGS)
    output = [whole.see(row) for row in rows]
    resumed.restore(rows[:cut])
    assert [resumed.see(row) for row in rows[cut:]] == output[cut:]
    assert resumed.findings() == whole.findings()
    assert json.loads(json.dumps(resumed.records(), allow_nan=False))
