"""The space of a sweep: read strictly, nothing accepted that trials could not differ in."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from make import quench

GOOD: dict[str, Any] = {
    "keys": {"train.learning_rate": {"low": 1e-5, "high": 1e-3, "log": True}, "train.r": [8, 16]}
}


@pytest.mark.parametrize(
    ("changed", "id", "named"),
    [
        ({"trails": 3}, "Q-SWEEP-001", "trials"),
        ({"keys": {}}, "Q-SWEEP-001", "keys"),
        ({"seeds": 1}, "Q-SWEEP-001", "seeds"),
        ({"keys": {"train.r": [8]}}, "Q-SWEEP-001", "keys.train.r"),
        ({"keys": {"train.r": {"low": 8, "hihg": 9}}}, "Q-SWEEP-001", "hihg"),
        ({"keys": {"train.r": {"low": 9, "high": 8}}}, "Q-SWEEP-001", "low"),
        ({"keys": {"train.r": {"low": 0, "high": 8, "log": True}}}, "Q-SWEEP-001", "log"),
        ({"keys": {"train.learning_rat": [1e-3, 1e-4]}}, "Q-CONFIG-005", "train.learning_rate"),
        ({"keys": {"train.r": [8, "many"]}}, "Q-SWEEP-003", "train.r"),
        ({"keys": {"train.learning_rate": {"low": 0.1, "high": 7.0}}}, "Q-SWEEP-003", "7.0"),
        ({"keys": {"preprocess.max_length": [512, 1024]}}, "Q-SWEEP-002", "section train"),
        ({"keys": {"train.method": ["sft", "dpo"]}}, "Q-SWEEP-002", "preprocess"),
        ({"keys": {"train.reward": ["none", "softmax"]}}, "Q-SWEEP-002", "preprocess"),
        ({"keys": {"train.seed": [1, 2]}}, "Q-SWEEP-002", "seeds"),
        ({"keys": {"train.eval_steps": [1, 2]}}, "Q-SWEEP-002", "watched"),
        ({"keys": {"train.sft_weight": [0.0, 0.5]}}, "Q-SWEEP-002", "eval_loss"),
        ({"metric": "accuracy"}, "Q-SWEEP-002", "eval_loss"),
    ],
)
def test_what_can_not_be_searched_is_refused(
    tmp_path: Path, changed: dict[str, Any], id: str, named: str
) -> None:
    (tmp_path / "params.yaml").write_text("train:\n  r: 16\n", encoding="utf-8")
    (tmp_path / "space.yaml").write_text(yaml.safe_dump(GOOD | changed), encoding="utf-8")
    shown = quench("run", "sweep", tmp_path / "space.yaml", "--root", tmp_path)
    assert (shown.exit_code, f"{id}: " in shown.stderr, named in shown.stderr) == (2, True, True)


def test_without_optuna_a_sweep_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.extras.sweep.command.find_spec", lambda name: None)
    shown = quench("run", "sweep", tmp_path / "space.yaml", "--root", tmp_path)
    assert shown.exit_code == 4 and "Q-SWEEP-004" in shown.stderr
