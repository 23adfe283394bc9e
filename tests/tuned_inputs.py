"""Editors over tests/recorded/tuned, the graph of trained scales: `adapter_inputs` with one tuned file in the
place of base and adapter.
"""

from pathlib import Path
from typing import Any

import adapter_inputs
import tiny
from recording import read, write_recorded
from report_inputs import CHATML_WITH_DEFAULT, answers, change, put, write_evaluation
from shipping import write_lineage

from pipeline.config.params import Params, load_params
from pipeline.config.tuners import SCALES_FILE
from pipeline.core.hashing import file_hash
from pipeline.gguf.provenance import BASE_FILE, adapter_fields, lineage_fields

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
    write_recorded("tuned", root)
    (root / "models/adapter/chat_template.jinja").write_text(CHATML_WITH_DEFAULT, encoding="utf-8")
    change(root / "models/base.json", license="Apache-2.0")
    put(root / "reports/parity.json", parity())
    for model, like in LIKE.items():
        write_evaluation(root, model, figures(model, distill=distill), answers(adapter_inputs.LIKE[like]))
    return root


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
    write_reports(root)
    (root / "models/base").mkdir()
    (root / "models/gguf").mkdir()
    write_lineage(root, SCALES_FILE)
    adapter = root / "models/adapter"
    base = tiny.tiny_gguf(root / "models/base/model.gguf", **of_the_base)
    change(root / "models/base.json", files={"model.gguf": file_hash(base)})
    fields = (
        lineage_fields(root / "models/base.json") | adapter_fields(adapter) | {BASE_FILE: file_hash(base)}
    )
    tuned = tiny.tiny_gguf(
        root / "models/gguf" / FILE,
        **of_the_base,
        **{key.replace(".", "__"): value for key, value in fields.items()},
    )
    adapter_inputs.name_files(root, {"base": [base], "tuned": [tuned]})
    return root
