"""Plans for tests to look into: training and models with changes, the parts of a plan in bytes, and the
command on a machine without a GPU.
"""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from make import quench

from pipeline.config.params import Params, load_params
from pipeline.config.sections import Training
from pipeline.core.hardware import Card
from pipeline.core.places import PROJECT
from pipeline.planning.machine_rate import Rate
from pipeline.planning.model.base import published_shape
from pipeline.planning.model.gguf_base import quantized_level
from pipeline.planning.model.shape import Shape
from pipeline.planning.plan import Plan, make_plan
from pipeline.planning.setup import Setup

GIB = 1 << 30
# what a machine without bfloat16 products measures, if its folder can't be written to
UNMEASURED = Rate(None, "", 1024, None, None, "a machine", None, "2026-11-30T20:00:00+00:00")
RECIPE = load_params(PROJECT / "recipes" / "qwen2.5-7b-8gb.yaml")


def published(name: str) -> Shape:
    """The shape of a model that the planner knows."""
    shape = published_shape(name)
    assert shape, name
    return shape


QWEN_7B = published("Qwen/Qwen2.5-7B-Instruct")
MIXTURE = published("qwen3-30b-a3b")
SMOLLM2 = published("smollm2-135m")


def training(**changed: Any) -> Training:
    """The training of the 8 GB recipe, on a GPU, with changes."""
    recipe = RECIPE.training_on("cuda").model_copy(update=changed)
    draws = recipe.method == "grpo" and recipe.quantization != "gguf" and recipe.grpo.rollouts != "in-process"
    return recipe.model_copy(update={"rollout_type": "F16"}) if draws else recipe


def demo_training(**changed: Any) -> Training:
    """The training of the small demo at rank 4, on a CPU that multiplies bfloat16, with changes."""
    demo = load_params(PROJECT / "recipes" / "demo-small.yaml").training_on("cpu")
    return demo.model_copy(update={"r": 4, "bnb_4bit_compute_dtype": "bfloat16", **changed})


def plan_of(
    train: Training | None = None, shape: Shape = QWEN_7B, *, length: int = 1024, **given: Any
) -> Plan:
    """The plan of training (the 8 GB recipe's) with rows of `length` tokens.

    Beside what `Setup` takes: `tflops`, the GGUF `level` that is trained on, `room` bytes of a GPU, or of a
    CPU with the `device` "cpu".
    """
    level, room, device = given.pop("level", None), given.pop("room", None), given.pop("device", "cuda")
    if level:
        given["quantized"] = quantized_level(shape, level)
    if room or device == "cpu":
        given["card"] = Card("a device", room or 8 * GIB, device)
    tflops = given.pop("tflops", None)
    return make_plan(Setup(shape, train or training(), length, **given), tflops=tflops)


def parts(plan: Plan) -> dict[str, int]:
    """Bytes of each part of a plan's memory."""
    return {part.name: part.bytes for part in plan.memory.parts}


def run_plan(
    *words: object, gpu: Card | None = None, free_disk: int = 10**13, rate: Rate = UNMEASURED
) -> Any:
    """`quench config plan` with these words, on a machine with this GPU, free bytes of disk and rate."""
    with pytest.MonkeyPatch.context() as machine:
        machine.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free_disk))
        machine.setattr("pipeline.commands.plan.first_gpu", lambda: gpu)
        machine.setattr("pipeline.commands.plan.measure_rate", lambda *_: rate)
        return quench("config", "plan", *words)


def plan_json(*words: object) -> dict[str, Any]:
    """The figures of `quench config plan --json`, which fits."""
    shown = run_plan(*words, "--json")
    assert shown.exit_code == 0, shown.stderr
    return dict(json.loads(shown.stdout))


def write_params(root: Path, recipe: str = "qwen2.5-7b-8gb", **sections: Any) -> Params:
    """A recipe with other values, {section: {key: value}}, as the project's params.yaml."""
    values = load_params(PROJECT / "recipes" / f"{recipe}.yaml").model_dump(mode="json")
    for section, changed in sections.items():
        values[section] |= changed
    file = root / "params.yaml"
    file.write_text(yaml.safe_dump(values, allow_unicode=True))
    return load_params(file)


def write_gguf_params(root: Path, *, base: dict[str, Any] | None = None, **train: Any) -> Params:
    """The 8 GB recipe on a GGUF, a published one unless `base` names another."""
    hub = {"model": "Qwen/Qwen2.5-7B-Instruct-GGUF", "file": "qwen2.5-7b-instruct-q4_k_m.gguf"}
    tuned = "tuned" if train.get("tuner") == "scales" else "adapter"
    return write_params(
        root,
        base={**(base or hub), "quantization": "gguf"},
        train=train,
        evaluate={"models": ["base", tuned]},
    )
