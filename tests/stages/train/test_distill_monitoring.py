"""The monitoring rules of a run that distills a level: its loss is small from the start, and that is no
fault; a run that recovers nothing is named.
"""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_monitor import ROOT, STEPS, at, flat, risen
from training_logs import Row, healthy_run

from pipeline.config.params import load_params
from pipeline.core.checks import Check
from pipeline.stages.train.learner import monitor_of

TUNING = load_params(ROOT / "recipes" / "qwen2.5-7b-8gb.yaml").training
DISTILLATION = TUNING.model_copy(update={"method": "distill"})


def run_monitor(rows: list[Row], settings: Any = DISTILLATION) -> tuple[list[Check], dict[str, Check]]:
    """What is said while the run goes on, and the account at its end by rule."""
    monitor = monitor_of(max(row["step"] for row in rows), settings)
    output = [finding for row in rows for finding in monitor.see(row)]
    return output, {finding.name: finding for finding in monitor.findings()}


def recovered(start: float = 0.3, end: float = 0.1, **more: Any) -> list[Row]:
    """A run from one divergence to another, whose gradients are as small as its loss."""
    return [
        row | {"grad_norm": row["loss"] / 20} if row["kind"] == "step" else row
        for row in healthy_run(STEPS, start, end, **more)
    ]


@given(
    start=st.floats(1e-4, 3.0),
    share=st.floats(0.1, 0.8),
    seed=st.integers(0, 10_000),
    noise=st.floats(0.0, 0.1),
)
def test_a_divergence_that_falls_is_healthy_however_small(
    start: float, share: float, seed: int, noise: float
) -> None:
    output, stats = run_monitor(recovered(start, start * share, seed=seed, noise=noise))
    assert output == []
    assert {finding.verdict for finding in stats.values()} <= {"pass", "not measured"}


def test_as_a_tuned_models_run_the_same_one_would_be_warned_of() -> None:
    output, _ = run_monitor(recovered(1.4, 0.7), TUNING)
    assert [finding.name for finding in output] == ["gradient range"]
    assert run_monitor(recovered(1.4, 0.7))[0] == []


def test_the_account_says_what_the_figures_are_of() -> None:
    _, stats = run_monitor(recovered(noise=0.01))
    assert (
        stats["end loss"].sentence
        == "0.101 in the last steps: nats between the level's answers and the original's"
    )
    assert stats["gradient range"].sentence.endswith(
        "usual are 0.1 to 10 for chats, other ones under distill"
    )
    _, stats = run_monitor(recovered(), DISTILLATION.model_copy(update={"distill_sft_weight": 0.25}))
    assert stats["end loss"].sentence.endswith(
        "the original's, with 25% of the usual loss on what the assistant says"
    )


@pytest.mark.parametrize(
    ("rows", "rule", "level", "words"),
    [
        (at(50, loss=0.0)(recovered()), "zero loss", "fail", "name a lower one as base.level"),
        (at(50, loss=math.nan, grad_norm=math.nan)(recovered()), "finite loss", "fail", "forward fault"),
        (flat(recovered()), "falling loss", "warn", "nothing is recovered: raise train.r"),
        (risen(recovered(1.8, 0.7, noise=0.02)), "overfitting", "warn", "early_stopping_patience"),
        (at(40, until=80, grad_norm=20.0)(recovered()), "gradient range", "warn", "unstable learning"),
    ],
)
def test_real_faults_are_named_as_ever(rows: list[Row], rule: str, level: str, words: str) -> None:
    output, stats = run_monitor(rows)
    assert (rule, level) in [(finding.name, finding.verdict) for finding in output]
    assert words in stats[rule].remedy
