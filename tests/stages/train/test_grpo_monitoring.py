"""The guards of GRPO: each is quiet in a sound run, and heard in the run that it is there for."""

from typing import Any

import pytest

from pipeline.config.sections import Train
from pipeline.stages.train.learner import monitor_of

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


def heard(steps: list[dict[str, float]]) -> dict[str, tuple[str, str]]:
    """(verdict, id) by rule of what a monitor says of steps with these measures."""
    monitor = monitor_of(100, Train(method="grpo", lora_dropout=0.0, learning_rate=5e-5, r=16))
    found: dict[str, tuple[str, str]] = {}
    for number, measures in enumerate(steps, start=1):
        row: dict[str, Any] = {"kind": "step", "step": number, "loss": 0.0, "grad_norm": 0.3, "rows": [1]}
        row |= {"trained_tokens": 9, "tokens_per_second": 100.0, "measures": SOUND | measures}
        found |= {check.name: (check.verdict, check.id) for check in monitor.see(row)}
    return found


def test_a_sound_run_is_quiet_although_its_loss_is_0() -> None:
    assert heard([{"reward": 0.2 + number / 60} for number in range(40)]) == {}


@pytest.mark.parametrize(
    ("steps", "rule", "verdict", "id"),
    [
        ([{"zero_variance": 1.0}] * 5, "constant reward", "fail", "Q-GRPO-009"),
        ([{}] + [{"zero_variance": 0.9}] * 12, "zero variance", "warn", ""),
        (
            [{"reward": 0.5 + n % 2 / 50} for n in range(20)] + [{"reward": 0.1}] * 12,
            "reward collapse",
            "fail",
            "Q-GRPO-011",
        ),
        ([{}] * 4 + [{"entropy": 0.01}] * 12, "entropy collapse", "warn", ""),
        ([{}] * 12 + [{"completion_tokens": 200.0}] * 12, "length explosion", "warn", ""),
        ([{}] * 12 + [{"truncated": 1.0}] * 12, "length explosion", "fail", "Q-GRPO-012"),
        ([{"kl": 0.9}], "divergence", "warn", ""),
        ([{"kl": 3.0}] * 10, "divergence", "fail", "Q-GRPO-013"),
        ([{"gap": 0.4}], "rollout gap", "warn", ""),
    ],
)
def test_what_goes_wrong_is_heard(steps: list[dict[str, float]], rule: str, verdict: str, id: str) -> None:
    assert heard(steps)[rule] == (verdict, id)
