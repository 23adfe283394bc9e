"""Editors over tests/recorded/tuned, the graph of trained scales: `adapter_inputs` with one tuned file in the
place of base and adapter.
"""

from pathlib import Path
from typing import Any

import adapter_inputs
import tiny
from recording import read

from pipeline.config.params import Params, load_params
from pipeline.config.tuners import SCALES_FILE

RECIPE = adapter_inputs.RECIPE.with_name("demo-scales.yaml")
FILE = "demo-tuned.gguf"
MODELS = ("source", "base", "tuned")
LIKE = {"source": "source", "base": "base", "tuned": "adapter"}  # whose figures of `adapter_inputs` each has


def params(models: tuple[str, ...] = MODELS, *, distill: bool = False) -> Params:
    """The recipe's."""
    values = load_params(RECIPE).model_dump(mode="json")
    if "source" in models:  # the original that a level was made from
        values["base"]["level"] = "Q4_0"
    values["evaluate"]["models"] = list(models)
    values["train"]["method"] = "distill" if distill else "sft"
    return Params.model_validate(values)


def write_reports(root: Path, *, distill: bool = False) -> Path:
    """Every input of the stage `report` below `root`."""
    found = {model: figures(model, distill=distill) for model in LIKE}
    return adapter_inputs.recorded_reports("tuned", root, found)


def figures(model: str = "tuned", *, distill: bool = False) -> dict[str, Any]:
    """One reports/eval/MODEL.json: the adapter's figures, but of one file."""
    found = read("tuned", f"reports/eval/{model}.json")
    like = adapter_inputs.figures(LIKE[model], distill=distill)
    own = {key: found[key] for key in adapter_inputs.OWN}
    like.pop("lora", None)
    return found | like | own | {"bytes": min(like["bytes"], adapter_inputs.BASE_BYTES)}


def parity() -> dict[str, Any]:
    """reports/parity.json, passed."""
    return adapter_inputs.parity("tuned")


def write_project(root: Path, **of_the_base: Any) -> Path:
    """Everything that `quench ship tuned` reads, below `root`; `of_the_base` are fields of the base's own
    file, which the tuned one has too.
    """
    base, fields = adapter_inputs.write_base(write_reports(root), SCALES_FILE, **of_the_base)
    tuned = tiny.tiny_gguf(root / "models/gguf" / FILE, **of_the_base, **fields)
    adapter_inputs.name_files(root, {"base": [base], "tuned": [tuned]})
    return root
