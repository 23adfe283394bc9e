"""Mixtures: what the planner counts is what trains, and settings that can't be served are refused by both."""

from pathlib import Path
from typing import Any

import pytest
import torch
from merging import write_base

from pipeline.config.sections import Training
from pipeline.core.errors import ConfigError
from pipeline.models.loading import load_model
from pipeline.models.tuners import TUNERS, put_tuner
from pipeline.planning.memory.weights import trained_tensors
from pipeline.planning.model.config_file import load_shape
from pipeline.planning.setup import Setup

EVERY = r".*\.experts\.\d+\."  # the start of a pattern for all experts


def settings(**changed: Any) -> Training:
    given = {"quantization": "none", "bnb_4bit_compute_dtype": "float32", "r": 4, "lora_alpha": 8}
    return Training(**(given | changed))


@pytest.fixture(scope="module", params=["Qwen2Moe", "Qwen3Moe", "Mixtral"])
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random mixture of two layers of four experts; its shared expert has another width."""
    return write_base(tmp_path_factory.mktemp(request.param), request.param, head_dim=16)


def counted(base: Path, train: Training) -> int:
    return sum(trained_tensors(Setup(load_shape(base / "config.json"), train, 64)))


def tuned(base: Path, train: Training) -> Any:
    return put_tuner(load_model(base, dtype=torch.float32).requires_grad_(False), train)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"layers": "1-"},
        {"layers": [0]},
        {"rank_pattern": {"up_proj": 2, "q_proj": 8}},
        {"rank_pattern": {r"experts\.\d+\.up_proj": 2}, "lora_variants": ["rslora"]},
        {"rank_pattern": {r"layers\.1\.mlp\.experts\.\d+\.up_proj": 2}},  # layers may differ
        {"target_modules": rf".*self_attn\.q_proj|{EVERY}down_proj"},
        {"target_modules": ["q_proj", "up_proj"], "experts": []},
        {"experts": ["down_proj", "router"], "rank_pattern": {"gate": 2}, "layers": "1-"},
        {"experts": ["router"], "target_modules": rf"{EVERY}down_proj"},
        {"target_modules": ["q_proj", "up_proj"], "experts": ["down_proj"], "layers": "1-"},
    ],
    ids=str,
)
def test_the_planner_counts_what_trains(base: Path, changed: dict[str, Any]) -> None:
    train = settings(**changed)
    assert counted(base, train) == TUNERS["lora"].check(tuned(base, train), train)


@pytest.mark.parametrize(
    "changed",
    [
        {"target_modules": r".*\.shared_expert\.(up|down)_proj"},
        {"target_modules": ["up_proj"], "rank_pattern": {r"shared_expert\.up_proj": 2}},
    ],
    ids=str,
)
def test_a_shared_expert_is_called_as_in_the_model(tmp_path: Path, changed: dict[str, Any]) -> None:
    base, train = write_base(tmp_path, "Qwen2Moe"), settings(**changed)
    assert counted(base, train) == TUNERS["lora"].check(tuned(base, train), train)


@pytest.mark.parametrize(
    ("changed", "planned", "put"),
    [
        ({"lora_variants": ["dora"]}, "Q-MODELS-034", "Q-MODELS-034"),
        ({"modules_to_save": ["norm"]}, "Q-MODELS-034", "Q-MODELS-034"),
        ({"target_modules": f"{EVERY}up_proj", "experts": []}, "Q-MODELS-034", "Q-MODELS-034"),
        ({"target_modules": r".*\.experts\.[01]\.up_proj"}, "Q-PLANNING-007", "Q-MODELS-026"),
        ({"target_modules": ["q_proj", "gate"]}, "Q-PLANNING-007", "Q-MODELS-026"),  # train.experts'
        ({"rank_pattern": {r"experts\.0\.up_proj": 2}}, "Q-PLANNING-007", "Q-MODELS-026"),
    ],
    ids=str,
)
def test_what_a_mixture_cannot_have_is_refused(
    base: Path, changed: dict[str, Any], planned: str, put: str
) -> None:
    with pytest.raises(ConfigError, match=planned):
        counted(base, settings(**changed))
    with pytest.raises(ConfigError, match=put):
        tuned(base, settings(**changed))


def test_where_no_expert_is_left_the_setting_is_named(tmp_path: Path) -> None:
    base = write_base(tmp_path, "Qwen3Moe")
    train = settings(target_modules=["up_proj"], experts=[])
    with pytest.raises(ConfigError, match=r"experts \[\]"):
        counted(base, train)
