"""The monitor of a training, of each method: a fault trips its own rule and no other, a healthy run trips
none, and at a limit nothing is said yet.
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
from pipeline.config.sections import Train, Training
from pipeline.core.checks import Check
from pipeline.core.places import PROJECT
from pipeline.stages.train.method import monitor_of

SETTINGS = load_params(PROJECT / "recipes/qwen2.5-7b-8gb.yaml").training_on("cpu")
STEPS = 100
NAN, INF = math.nan, math.inf
Change = Callable[[list[Row]], list[Row]]


def of(method: str = "sft", **changed: Any) -> Training:
    """The settings of a method, inside its usual ranges."""
    rate = {"dpo": 2e-5, "kto": 2e-5, "grpo": 2e-5}.get(method, SETTINGS.learning_rate)
    return SETTINGS.model_copy(update={"method": method, "learning_rate": rate} | changed)


def run_monitor(rows: list[Row], settings: Train = SETTINGS) -> tuple[list[Check], dict[str, Check]]:
    """Return the findings while the run goes on, and those at its end by rule, the gravest first."""
    monitor = monitor_of(max(row["step"] for row in rows), settings)
    output = [finding for row in rows for finding in monitor.see(row)]
    return output, {finding.name: finding for finding in monitor.findings()}


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


def chats() -> list[Row]:
    """A healthy run that learns chats."""
    return healthy_run(STEPS, 1.8, 0.7, noise=0.02)


def recovered(start: float = 0.3, end: float = 0.1, **more: Any) -> list[Row]:
    """A run from one divergence to another, whose gradients are as small as its loss."""
    return [
        row | {"grad_norm": row["loss"] / 20} if row["kind"] == "step" else row
        for row in healthy_run(STEPS, start, end, **more)
    ]


# --- what goes wrong with any method's losses and gradients -------------------------------------------------

FAULTS = {  # change, rule, verdict, step, id or a word of its sentence or remedy
    "NaN loss": (at(50, loss=NAN, grad_norm=NAN), "finite loss", "fail", 50, "forward fault"),
    "Inf loss": (at(50, loss=INF, grad_norm=NAN), "finite loss", "fail", 50, "after a sane"),
    "NaN loss at once": (at(1, loss=NAN, grad_norm=NAN), "finite loss", "fail", 1, "in the first"),
    "NaN gradient": (at(50, grad_norm=NAN), "finite gradient", "fail", 50, "Q-TRAIN-010;"),
    "NaN eval loss": (at(50, kind="eval", eval_loss=NAN), "finite eval loss", "fail", 50, "Q-TRAIN-009;"),
    "zero loss": (at(50, loss=0.0), "zero loss", "fail", 50, "Q-TRAIN-011;"),
    "nothing trained": (at(50, trained_tokens=0), "trained tokens", "fail", 50, "Q-TRAIN-012;"),
    "its rows": (at(50, trained_tokens=0), "trained tokens", "fail", 50, "packed rows 24,"),
    "frozen": (at(1, grad_norm=0.0), "zero gradient", "fail", 1, "Q-TRAIN-013;"),
    "one without gradient": (at(50, grad_norm=0.0), "zero gradient", "warn", 50, "in this step"),
    "many rows": (at(50, grad_norm=150.0, rows=[7] * 5), "gradient alarm", "warn", 50, "7, 7, 7, 7 …"),
    "alarm": (at(50, grad_norm=150.0), "gradient alarm", "warn", 50, "150, above 100"),
    "high gradients": (at(40, until=80, grad_norm=20.0), "gradient range", "warn", 44, "unstable learning"),
    "low gradients": (at(20, until=60, grad_norm=0.02), "gradient range", "warn", 25, "hardly anything"),
    "spike": (at(50, loss=6.0), "loss spike", "warn", 50, "times the median"),
    "slow": (at(50, until=70, tokens_per_second=20.0), "speed", "warn", 52, "20 tokens"),
    "overfitting": (risen, "overfitting", "warn", 80, "train.early_stopping_patience"),
    "flat": (flat, "falling loss", "warn", None, "nothing is learned"),
}


@pytest.mark.parametrize(("change", "rule", "verdict", "step", "words"), FAULTS.values(), ids=FAULTS)
def test_each_fault_trips_its_own_rule_only(
    change: Change, rule: str, verdict: str, step: int | None, words: str
) -> None:
    output, account = run_monitor(change(chats()))
    assert [(finding.name, finding.verdict, finding.step) for finding in output] == [(rule, verdict, step)]
    assert words in f"{output[0].id}; {output[0].sentence},; {output[0].remedy}"
    assert output[0].remedy
    assert [name for name, found in account.items() if found.verdict in ("warn", "fail")] == [rule]
    assert next(iter(account)) == rule


QUIET = {  # what is at a limit, or is no fault of its rule
    "a gradient of the alarm": at(50, grad_norm=100.0),
    "gradients at the top": at(20, until=80, grad_norm=10.0),
    "gradients at the bottom": at(20, until=80, grad_norm=0.1),
    "a loss below three times the usual": at(95, loss=2.0),
    "five steps at a third of the speed": at(90, until=95, tokens_per_second=55.0),
    "a step without weight": at(50, weightless=True, loss=0.0, grad_norm=0.0),
    "one bad evaluation": at(90, kind="eval", eval_loss=3.0),
    "a training loss that rises too": lambda rows: [
        row | {"loss": 0.7 + row["step"] / 300} if row["kind"] == "step" and row["step"] > 60 else row
        for row in risen(rows)
    ],
}


@pytest.mark.parametrize("change", QUIET.values(), ids=QUIET)
def test_at_a_limit_nothing_is_said(change: Change) -> None:
    assert run_monitor(change(chats()))[0] == []


def test_limits_are_where_they_are_said_to_be() -> None:
    """Steps of equal loss, gradient and speed, then another figure: the last to pass, the first to fail."""

    def said(count: int, **last: float) -> list[str]:
        rows = [step_row(step, 1.0, 1.0) for step in range(1, count + 1)]
        return [found.name for found in run_monitor([*rows, rows[-1] | {"step": count + 1} | last])[0]]

    assert said(20, loss=3.0) == [] and said(20, loss=3.01) == ["loss spike"]
    assert said(10, loss=3.01) == ["loss spike"] and said(9, loss=3.01) == []
    rows = [step_row(step, 0.1, 1.0) for step in range(1, 21)]  # near 0, half a nat is what counts
    assert run_monitor([*rows, rows[-1] | {"loss": 0.6}])[0] == []
    assert run_monitor([*rows, rows[-1] | {"loss": 0.61}])[0][0].name == "loss spike"
    slow = [step_row(step, 1.0, 1.0, speed=150.0 if step <= 5 else 50.0) for step in range(1, 11)]
    assert run_monitor(slow)[0] == []
    slower = [row | {"tokens_per_second": min(row["tokens_per_second"], 149.0) / 3} for row in slow[5:]]
    assert [found.name for found in run_monitor([*slow[:5], *slower])[0]] == ["speed"]


def evaluations(*losses: float, trained: float = -0.1) -> list[Row]:
    """Evaluations with these losses after two steps each, whose own losses change by `trained` each time."""
    rows: list[Row] = []
    for number, loss in enumerate(losses):
        steps = [step_row(2 * number + one, 2.0 + trained * number, 1.0) for one in (1, 2)]
        rows += [*steps, eval_row(2 * number + 2, loss)]
    return rows


@pytest.mark.parametrize(
    ("losses", "trained", "verdict"),
    [
        ((1.0, 1.03, 1.03), -0.1, "warn"),
        ((1.0, 1.03), -0.1, "pass"),
        ((1.0, 1.02, 1.03), -0.1, "pass"),
        ((1.0, 1.03, 1.02), -0.1, "pass"),
        ((1.03, 1.0, 1.03), -0.1, "pass"),
        ((1.0, 1.03, 1.03), 0.1, "pass"),
        ((1.0,), -0.1, "not measured"),
    ],
)
def test_overfitting_is_two_evaluations_above_the_lowest(
    losses: tuple[float, ...], trained: float, verdict: str
) -> None:
    assert run_monitor(evaluations(*losses, trained=trained))[1]["overfitting"].verdict == verdict


@pytest.mark.parametrize(
    ("count", "last", "verdict"),
    [(20, 0.97, "pass"), (20, 0.99, "warn"), (20, 0.98, "warn"), (19, 0.5, "not measured")],
)
def test_a_loss_has_fallen_by_two_in_a_hundred(count: int, last: float, verdict: str) -> None:
    rows = [step_row(step, 1.0 if step <= count - 4 else last, 1.0) for step in range(1, count + 1)]
    assert run_monitor(rows)[1]["falling loss"].verdict == verdict


@pytest.mark.parametrize(
    ("loss", "words"), [(0.4, "below is"), (0.5, ""), (2.0, ""), (2.1, "above is"), (1.0, "")]
)
def test_the_end_says_where_the_loss_stands(loss: float, words: str) -> None:
    found = run_monitor([step_row(step, loss, 1.0) for step in range(1, 12)])[1]["end loss"]
    assert found.verdict == "pass" and f"{loss:g} in the" in found.sentence
    assert words in found.remedy and bool(words) == bool(found.remedy)


@pytest.mark.parametrize("step", range(1, 6))
@pytest.mark.parametrize("odd", [NAN, INF])
def test_one_loss_that_is_no_number_leaves_the_medians_alone(step: int, odd: float) -> None:
    """Sorting puts NaN anywhere, and elsewhere with each version of Python."""
    _, account = run_monitor(at(step, loss=odd)(chats()))
    assert {account[name].verdict for name in ("falling loss", "end loss", "loss spike")} == {"pass"}


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
    output, account = run_monitor(
        healthy_run(steps, start, start * share, seed, noise, min(0.25, learned_in / steps))
    )
    assert output == []
    assert {finding.verdict for finding in account.values()} <= {"pass", "not measured"}


def test_the_demo_is_healthy() -> None:
    settings = load_params(PROJECT / "recipes/demo.yaml").training_on("cpu")
    output, account = run_monitor(demo_run(), settings)
    assert output == []
    assert [finding.verdict for finding in account.values()] == ["pass"] * len(account)
    # small gradients are fine where the task is learned
    small = [row | {"grad_norm": 0.02} if row["step"] > 20 else row for row in demo_run()]
    assert run_monitor(small)[0] == []


def test_a_rule_speaks_up_again_only_when_it_gets_worse() -> None:
    output, _ = run_monitor(at(1, until=STEPS, grad_norm=200.0)(healthy_run(STEPS, 1.8, 0.7)))
    said = [(finding.name, finding.step) for finding in output]
    assert said == [("gradient alarm", 1), ("gradient range", 10)]
    monitor = monitor_of(STEPS, SETTINGS)
    levels = [
        [found.verdict for found in monitor.see(step_row(step, 1.0, norm))]
        for step, norm in enumerate((1.0, 0.0, 0.0, NAN, NAN), start=1)
    ]
    assert levels == [[], ["warn"], [], ["fail"], []]
    first = [found.step for found in monitor.findings() if found.verdict in ("warn", "fail")]
    assert first == [4, 2]  # a failure before a warning, each with the step that it was first said at


def test_a_nan_after_a_nan_gradient_is_called_a_backward_fault() -> None:
    rows = at(50, grad_norm=NAN)(at(51, loss=NAN, grad_norm=NAN)(chats()))
    output, _ = run_monitor(rows[:60])
    said = [(finding.name, finding.step) for finding in output]
    assert said == [("finite gradient", 50), ("finite loss", 51)]
    assert "backward fault" in output[1].remedy


def test_float16_may_overflow_while_its_loss_scale_settles() -> None:
    half = of(bnb_4bit_compute_dtype="float16")
    assert run_monitor(at(1, until=4, grad_norm=INF)(chats()), half)[0] == []
    output, _ = run_monitor(at(31, until=36, grad_norm=INF)(chats()), half)
    assert [(finding.name, finding.step) for finding in output] == [("finite gradient", 35)]


def test_what_can_not_be_told_is_not_measured() -> None:
    assert {finding.verdict for finding in monitor_of(STEPS, SETTINGS).findings()} == {"not measured"}
    output, account = run_monitor([step_row(1, 12.0, 2.0), step_row(2, 11.9, 2.0), eval_row(2, 11.9)])
    assert output == []
    short = {finding.name for finding in account.values() if finding.verdict == "not measured"}
    assert short == {"gradient range", "loss spike", "speed", "overfitting", "falling loss"}


@given(st.integers(0, 110))
def test_a_resumed_monitor_is_as_if_nothing_had_happened(cut: int) -> None:
    rows = at(30, grad_norm=150.0)(risen(healthy_run(STEPS, 1.8, 0.7)))
    whole, resumed = monitor_of(STEPS, SETTINGS), monitor_of(STEPS, SETTINGS)
    output = [whole.see(row) for row in rows]
    resumed.restore(rows[:cut])
    assert [resumed.see(row) for row in rows[cut:]] == output[cut:]
    assert resumed.findings() == whole.findings()
    records = json.loads(json.dumps(resumed.records(), allow_nan=False))
    assert [record["rule"] for record in records] == [found.name for found in whole.findings()]
    assert {record["level"] for record in records} <= {"ok", "warn", "not measured"}


# --- settings -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "rule", "low", "high"),
    [
        (of(), "learning_rate", 1e-4, 1e-3),
        (of(tuner="scales"), "learning_rate", 1e-3, 1e-2),
        (of("dpo"), "learning_rate", 5e-7, 1e-4),
        (of("dpo", tuner="scales"), "learning_rate", 1e-3, 1e-2),
        (of("grpo"), "learning_rate", 5e-6, 2e-4),
        (of("grpo", tuner="scales"), "learning_rate", 1e-4, 1e-2),
        (of(), "warmup_ratio", 0.05, 0.1),
        (of(), "weight_decay", 0.0, 0.1),
        (of(), "r", 8, 64),
    ],
)
def test_settings_outside_the_usual_are_said_once(
    settings: Training, rule: str, low: float, high: float
) -> None:
    for value, usual in ((low, True), (high, True), (low * 0.99 - 1e-9, False), (high * 1.01, False)):
        changed = settings.model_copy(update={rule: value})
        rows = [step_row(step, 1.0, 1.0) for step in (1, 2)]
        output, _ = run_monitor(rows, changed)
        found = [(one.verdict, one.step) for one in output if f"train.{rule} is" in one.sentence]
        assert found == ([] if usual else [("warn", 1)]), (value, output)


@pytest.mark.parametrize(("steps", "high"), [(100, 1e-3), (101, 3e-4)])
def test_a_long_run_has_a_lower_learning_rate(steps: int, high: float) -> None:
    for value, usual in ((1e-4, True), (high, True), (0.99e-4, False), (1.01 * high, False)):
        output = monitor_of(steps, of(learning_rate=value)).see(step_row(1, 1.0, 1.0))
        assert [finding.name for finding in output] == ([] if usual else ["learning rate"])


def test_scales_have_no_rank() -> None:
    rows = [step_row(1, 1.0, 1.0)]
    found = run_monitor(rows, of(tuner="scales", r=1, learning_rate=5e-3))[1]["rank"]
    assert found.verdict == "pass"


# --- distillation -------------------------------------------------------------------------------------------


@given(
    start=st.floats(1e-4, 3.0),
    share=st.floats(0.1, 0.8),
    seed=st.integers(0, 10_000),
    noise=st.floats(0.0, 0.1),
)
def test_a_divergence_that_falls_is_healthy_however_small(
    start: float, share: float, seed: int, noise: float
) -> None:
    output, account = run_monitor(recovered(start, start * share, seed=seed, noise=noise), of("distill"))
    assert output == []
    assert {finding.verdict for finding in account.values()} <= {"pass", "not measured"}


def test_the_account_says_what_a_distillations_figures_are_of() -> None:
    _, account = run_monitor(recovered(noise=0.01), of("distill"))
    assert "0.101 in the" in account["end loss"].sentence
    assert "answers and the" in account["end loss"].sentence
    assert "under distill" in account["gradient range"].sentence
    _, account = run_monitor(recovered(), of("distill", sft_weight=0.25))
    assert "with 25% of" in account["end loss"].sentence


@pytest.mark.parametrize(
    ("rows", "rule", "verdict", "words"),
    [
        (at(50, loss=0.0)(recovered()), "zero loss", "fail", "as base.level"),
        (at(50, loss=NAN, grad_norm=NAN)(recovered()), "finite loss", "fail", "forward fault"),
        (flat(recovered()), "falling loss", "warn", "nothing is recovered"),
        (risen(recovered(1.8, 0.7, noise=0.02)), "overfitting", "warn", "early_stopping_patience"),
        (at(40, until=80, grad_norm=20.0)(recovered()), "gradient range", "warn", "unstable learning"),
    ],
)
def test_real_faults_of_a_distillation_are_named_as_ever(
    rows: list[Row], rule: str, verdict: str, words: str
) -> None:
    output, account = run_monitor(rows, of("distill"))
    assert (rule, verdict) in [(finding.name, finding.verdict) for finding in output]
    assert words in account[rule].remedy


# --- preferences --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gains", "method", "verdict", "words"),
    [
        ([-1.0] * 10, "dpo", "pass", ""),
        ([-1.1] * 10, "dpo", "warn", "sft_weight"),
        ([-1.1] * 10, "kto", "warn", "less likely"),
        ([-1.1] * 9, "dpo", "not measured", ""),
        ([-9.0] * 3 + [0.0] * 10, "dpo", "pass", ""),
    ],
)
def test_chosen_answers_that_become_less_likely_are_warned_of(
    gains: list[float], method: str, verdict: str, words: str
) -> None:
    rows = [
        step_row(step, 0.01, 0.01) | {"measures": {"chosen_gain": gain}}
        for step, gain in enumerate(gains, start=1)
    ]
    _, account = run_monitor(rows, of(method))
    assert account["chosen answers"].verdict == verdict and words in account["chosen answers"].remedy
    assert ("sft_weight" in account["chosen answers"].remedy) == (words == "sft_weight")
    assert f"train.method {method}" in account["end loss"].sentence
    assert account["gradient range"].verdict in ("pass", "not measured")


def test_pairs_that_are_told_apart_entirely_are_warned_of() -> None:
    output, _ = run_monitor([step_row(1, 0.7, 1.0), step_row(2, 0.0, 1.0)], of("dpo"))
    assert [(found.name, found.verdict) for found in output] == [("zero loss", "warn")]


# --- rewards ------------------------------------------------------------------------------------------------

SOUND = {
    "reward": 0.5,
    "zero_variance": 0.2,
    "truncated": 0.0,
    "completion_tokens": 40.0,
    "entropy": 0.8,
    "kl": 0.05,
    "clipped": 0.02,
    "gap": 0.03,
}


def drawn(*steps: dict[str, float]) -> dict[str, Check]:
    """The account of steps with these measures."""
    rows = [
        step_row(number, 0.0, 0.3) | {"measures": SOUND | measures}
        for number, measures in enumerate(steps, start=1)
    ]
    monitor = monitor_of(100, of("grpo"))
    for row in rows:
        monitor.see(row)
    return {finding.name: finding for finding in monitor.findings()}


def test_a_sound_run_is_quiet_although_its_loss_is_0() -> None:
    found = drawn(*({"reward": 0.2 + number / 60} for number in range(40)))
    assert {one.verdict for one in found.values()} <= {"pass", "not measured"}


SAME: dict[str, float] = {"zero_variance": 1.0}
UNEVEN = [{"reward": 0.5 + n % 2 / 50} for n in range(20)]


@pytest.mark.parametrize(
    ("steps", "rule", "verdict", "id"),
    [
        ([SAME] * 5, "constant reward", "fail", "Q-GRPO-009"),
        ([SAME] * 4, "constant reward", "not measured", ""),
        ([*[SAME] * 4, {"zero_variance": 0.99}], "constant reward", "pass", ""),
        ([{}] + [{"zero_variance": 0.9}] * 12, "zero variance", "warn", ""),
        ([{"zero_variance": 0.8}] * 10, "zero variance", "warn", ""),
        ([{"zero_variance": 0.79}] * 10, "zero variance", "pass", ""),
        ([{"zero_variance": 0.9}] * 9, "zero variance", "not measured", ""),
        ([*UNEVEN, *[{"reward": 0.1}] * 12], "reward collapse", "fail", "Q-GRPO-011"),
        ([*UNEVEN[:19]], "reward collapse", "not measured", ""),
        ([*UNEVEN, *[{"reward": 0.45 + n % 2 / 50} for n in range(12)]], "reward collapse", "warn", ""),
        ([{"reward": 0.1}] * 12 + UNEVEN + [{"reward": 0.3}] * 12, "reward collapse", "warn", ""),
        (UNEVEN, "reward collapse", "pass", ""),
        ([{}] * 4 + [{"entropy": 0.01}] * 12, "entropy collapse", "warn", ""),
        ([{"entropy": 0.05}] * 10, "entropy collapse", "pass", ""),
        ([{"entropy": 0.01}] * 9, "entropy collapse", "not measured", ""),
        ([{}] * 12 + [{"completion_tokens": 200.0}] * 12, "length explosion", "warn", ""),
        ([{}] * 10 + [{"completion_tokens": 120.0}] * 10, "length explosion", "pass", ""),
        ([{}] * 10 + [{"completion_tokens": 121.0}] * 10, "length explosion", "warn", ""),
        ([{}] * 10 + [{"truncated": 0.31}] * 10, "length explosion", "warn", ""),
        ([{}] * 10 + [{"truncated": 0.25}] * 10, "length explosion", "pass", ""),
        ([{}] * 12 + [{"truncated": 1.0}] * 12, "length explosion", "warn", ""),
        ([{}] * 19, "length explosion", "not measured", ""),
        ([{"kl": 0.9}], "divergence", "warn", ""),
        ([{"kl": 0.5}], "divergence", "pass", ""),
        ([{"kl": 2.0}] * 10, "divergence", "warn", ""),
        ([{"kl": 3.0}] * 9, "divergence", "warn", ""),
        ([{"kl": 3.0}] * 10, "divergence", "fail", "Q-GRPO-013"),
        ([{"gap": 0.1}], "rollout gap", "pass", ""),
        ([{"gap": 0.4}], "rollout gap", "warn", ""),
    ],
)
def test_what_goes_wrong_with_rewards_is_heard(
    steps: list[dict[str, float]], rule: str, verdict: str, id: str
) -> None:
    found = drawn(*steps)[rule]
    assert (found.verdict, found.id) == (verdict, id)


def test_what_a_run_of_grpo_does_not_measure_is_not_measured() -> None:
    rows = [step_row(number, 0.0, 0.3) for number in range(1, 21)]
    _, account = run_monitor(rows, of("grpo"))
    assert {account[name].verdict for name in ("divergence", "rollout gap")} == {"not measured"}
