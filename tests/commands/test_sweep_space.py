"""The space of a sweep: read strictly, nothing accepted that trials could not differ in."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from make import quench

from pipeline.commands.sweep.job import claimed
from pipeline.commands.sweep.space import check_space, read_space, settings_of, with_settings
from pipeline.commands.sweep.study import Sweep
from pipeline.config.params import Params
from pipeline.core.errors import ConfigError
from pipeline.core.places import PROJECT

GOOD: dict[str, Any] = {
    "keys": {"train.learning_rate": {"low": 1e-5, "high": 1e-3, "log": True}, "train.r": [8, 16]}
}


def written(tmp_path: Path, **changed: Any) -> Path:
    file = tmp_path / "space.yaml"
    file.write_text(yaml.safe_dump(GOOD | changed), encoding="utf-8")
    return file


def refused(tmp_path: Path, params: Params, **changed: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        check_space(read_space(written(tmp_path, **changed)), params)
    return caught.value


def test_numbers_and_choices_are_what_optuna_gets(tmp_path: Path) -> None:
    choices = [["q_proj"], ["q_proj", "v_proj"]]
    keys = GOOD["keys"] | {
        "train.target_modules": choices,
        "train.lora_alpha": {"low": 8, "high": 64, "step": 8},
    }
    space = read_space(written(tmp_path, keys=keys))
    check_space(space, Params())
    found = {name: type(one).__name__ for name, one in space.distributions().items()}
    assert found == {
        "train.learning_rate": "FloatDistribution",
        "train.r": "CategoricalDistribution",
        "train.target_modules": "CategoricalDistribution",
        "train.lora_alpha": "IntDistribution",
    }
    drawn = {
        "train.r": "16",
        "train.target_modules": '["q_proj"]',
        "train.learning_rate": 1e-4,
        "train.lora_alpha": 8,
    }
    assert space.decoded(drawn) == drawn | {"train.r": 16, "train.target_modules": ["q_proj"]}


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
    error = refused(tmp_path, Params(), **changed)
    assert error.id == id and named in error.sentence


def test_a_metric_is_one_that_the_method_measures(tmp_path: Path) -> None:
    params = Params.model_validate({"train": {"method": "dpo"}})
    space = read_space(written(tmp_path, metric="accuracy", keys={"train.preference.beta": [0.1, 0.5]}))
    check_space(space, params)
    assert space.maximize
    assert with_settings(params, {"train.preference.beta": 0.5})["train"]["preference"]["beta"] == 0.5
    assert refused(tmp_path, params, metric="reward").id == "Q-SWEEP-002"


def test_the_settings_of_now_are_in_the_space_or_not(tmp_path: Path) -> None:
    space = read_space(written(tmp_path))
    assert space.encoded({"train.learning_rate": 2e-4, "train.r": 16}) == {
        "train.learning_rate": 2e-4,
        "train.r": "16",
    }
    assert space.encoded({"train.learning_rate": 2e-3, "train.r": 16}) is None
    assert space.encoded({"train.learning_rate": 2e-4, "train.r": 4}) is None


def test_a_value_on_the_grid_is_what_optuna_would_draw(tmp_path: Path) -> None:
    grid = {"train.lora_dropout": {"low": 0.0, "high": 0.15, "step": 0.05}}
    whole = {"train.r": {"low": 8, "high": 64, "step": 8}, "train.lora_alpha": {"low": 1, "high": 64}}
    space = read_space(written(tmp_path, keys=grid | whole))
    settings = {"train.lora_dropout": 0.1, "train.r": 16, "train.lora_alpha": 3}
    assert space.encoded(settings) == settings
    assert space.encoded(settings | {"train.lora_dropout": 0.1 + 1e-12}) == settings
    highest = space.encoded(settings | {"train.lora_dropout": 0.15})
    assert highest and highest["train.lora_dropout"] == 0.15
    assert all(one._contains(highest[name]) for name, one in space.distributions().items())
    for name, value in (("train.lora_dropout", 0.12), ("train.r", 12), ("train.lora_alpha", 3.5)):
        assert space.encoded(settings | {name: value}) is None
    text = (PROJECT / "docs/sweeps.md").read_text(encoding="utf-8")
    (tmp_path / "page.yaml").write_text(text.split("```yaml\n")[1].partition("```")[0], encoding="utf-8")
    page = read_space(tmp_path / "page.yaml")
    assert page.encoded(settings_of(page, Params()))  # what a winner has to beat


def test_without_optuna_a_sweep_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.commands.sweep.command.find_spec", lambda name: None)
    shown = quench("run", "sweep", tmp_path / "space.yaml", "--root", tmp_path)
    assert shown.exit_code == 4 and "Q-SWEEP-004" in shown.stderr


def test_a_job_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Q-SWEEP-007"):
        claimed(Sweep.named(tmp_path, "one"), read_space(written(tmp_path)), "trial-x")
