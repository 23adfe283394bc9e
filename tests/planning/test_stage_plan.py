"""What stages are planned to take, beside what they took on three models."""

import json
from pathlib import Path
from typing import Any

import pytest
from plans import plan_json

from pipeline.config.params import load_params
from pipeline.core.hardware import main_memory
from pipeline.core.places import PROJECT
from pipeline.metrics import divergence
from pipeline.planning import stages
from pipeline.planning.base import plan_run
from pipeline.planning.shape import read_shape
from pipeline.planning.stages import planned_stages

SEEN = PROJECT / "benchmarks/results/2026-11-25-stages.json"
MODELS = json.loads(SEEN.read_text(encoding="utf-8"))["models"]


@pytest.mark.parametrize("model", MODELS)
def test_the_plan_is_near_what_was_seen(model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("pipeline.config.params.fast_dtype", lambda device: "bfloat16")  # as it was there
    params = load_params(PROJECT / "recipes/demo.yaml")
    if "random" in model:  # a folder of safetensors, and no GGUF
        folder = params.base.model_copy(update={"file": None, "model": "random"})
        params = params.model_copy(update={"base": folder})
    plan = plan_run(params, read_shape(MODELS[model]["config"]), tmp_path, main_memory())
    planned = dict(planned_stages(params, plan))
    for stage, seen in MODELS[model]["stages"].items():
        off = (planned[stage].peak or 0) / seen["peak"] - 1
        assert abs(off) < 0.1, f"{stage}: {off:+.0%}"


def test_so_many_positions_are_planned_as_are_compared() -> None:
    assert stages.POSITIONS == divergence.POSITIONS


def test_times_are_planned_where_they_were_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def shown() -> dict[str, Any]:
        return dict(plan_json("--recipe", "demo", "--root", tmp_path)["stages"])

    monkeypatch.setattr(stages, "usable_cores", lambda: 4)
    monkeypatch.setattr(stages, "multiplies_bfloat16", lambda: True)
    four = shown()
    monkeypatch.setattr(stages, "usable_cores", lambda: 2)
    two = shown()
    assert four["merge"]["seconds"] < two["merge"]["seconds"]
    assert two["train"]["seconds"] is None  # nothing is tokenized, so nobody knows how many steps
    monkeypatch.setattr(stages, "multiplies_bfloat16", lambda: False)
    assert all(planned["seconds"] is None for planned in shown().values())
