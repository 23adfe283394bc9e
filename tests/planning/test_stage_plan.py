"""The figures that stages are planned to take, beside those measured on three models."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from golden import Golden
from plans import GIB, plan_json

from pipeline.config.params import load_params
from pipeline.core import cpu
from pipeline.core.hardware import Card, main_memory
from pipeline.core.places import PROJECT
from pipeline.core.usage import Figures
from pipeline.metrics import divergence
from pipeline.planning import duration, stage_times, stages
from pipeline.planning.model.base import find_shape
from pipeline.planning.model.config_file import read_shape
from pipeline.planning.plan import plan_run
from pipeline.planning.stages import plan_stage, planned_stages

SEEN = Path(__file__).with_name("seen.json")  # what benchmarks/stages.py saw of three models
MODELS = json.loads(SEEN.read_text(encoding="utf-8"))["models"]


@pytest.mark.parametrize("model", MODELS)
def test_the_plan_is_near_what_was_seen(model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cpu, "instructions", lambda *_: cpu.INSTRUCTIONS)  # as it was there
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


def use_cores(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    """Plan for this many cores."""
    for module in (duration, stage_times):
        monkeypatch.setattr(module, "usable_cores", lambda: cores)


def test_more_cores_take_less_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def shown() -> dict[str, Any]:
        return dict(plan_json("--recipe", "demo", "--root", tmp_path)["stages"])

    use_cores(monkeypatch, 4)
    four = shown()
    use_cores(monkeypatch, 2)
    two = shown()
    assert four["merge"]["seconds"] < two["merge"]["seconds"]
    assert two["train"]["seconds"] is None  # nothing is tokenized, so nobody knows how many steps


# a recipe, the device, and what its base has instead
KINDS: list[tuple[str, Literal["cpu", "cuda"], dict[str, Any]]] = [
    ("demo", "cpu", {}),
    ("demo", "cuda", {}),
    ("qwen2.5-0.5b", "cpu", {}),
    ("demo", "cpu", {"file": "smollm2-135m-instruct.gguf"}),  # the name says no level
    ("qwen3-0.6b-gguf", "cpu", {}),
]


def test_what_every_stage_takes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, snapshot: Any) -> None:
    """With a training of 100 s."""
    monkeypatch.setattr(cpu, "instructions", lambda *_: cpu.INSTRUCTIONS)
    use_cores(monkeypatch, 4)
    lines = []
    for recipe, device, base in KINDS:
        params = load_params(PROJECT / f"recipes/{recipe}.yaml")
        params = params.model_copy(update={"base": params.base.model_copy(update=base)})
        card = Card("a device", 16 * GIB, device)
        plan = replace(plan_run(params, find_shape(params, tmp_path), tmp_path, card), seconds=100.0)
        lines += [f"{recipe} {base} on {device}"]
        for stage, took in planned_stages(params, plan):
            seconds = took.seconds and f"{took.seconds:.3f}"
            lines += [f"  {stage}: peak {took.peak}, {seconds} s, disk {took.disk}"]
    assert "\n".join([*lines, ""]) == snapshot(extension_class=Golden)


def test_what_is_not_known_is_not_planned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    params = load_params(PROJECT / "recipes/demo.yaml")
    unknown = params.model_copy(update={"base": params.base.model_copy(update={"file": None, "model": "x"})})
    for stage, asked in (("report", params), ("merge", unknown)):
        assert plan_stage(stage, asked, tmp_path) == Figures(None, None, None)
    planned = plan_stage("quantize@Q4_K_M", params, tmp_path)
    assert planned.peak and planned.disk
