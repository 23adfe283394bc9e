"""What the stages leave behind if the scales of the base's GGUF were trained: `adapter_inputs` with one tuned
file in the place of base and adapter.
"""

from pathlib import Path
from typing import Any

import adapter_inputs
import tiny
from parity_inputs import placed, same
from report_inputs import put
from shipping import change, trained_again, write_lineage

from pipeline.config.params import Params, load_params
from pipeline.core.hashing import file_hash
from pipeline.gguf.base_files import ADAPTER_FILE, SCALES_FILE
from pipeline.gguf.provenance import BASE_FILE, adapter_fields, lineage_fields

RECIPE = adapter_inputs.RECIPE.with_name("demo-scales.yaml")
FILE, SHA = "demo-tuned.gguf", "8d" * 32
MODELS = ("source", "base", "tuned")


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
    adapter_inputs.write_reports(root, distill=distill)
    reports = root / "reports/eval"
    (reports / "adapter.json").unlink()
    (reports / "adapter.answers.jsonl").rename(reports / "tuned.answers.jsonl")
    put(reports / "tuned.json", figures(distill=distill))
    put(root / "reports/parity.json", parity())
    return root


def figures(*, distill: bool = False) -> dict[str, Any]:
    """reports/eval/tuned.json: the adapter's, but of one file."""
    found = adapter_inputs.figures("adapter", distill=distill)
    del found["lora"]
    return found | {"model": "tuned", "file": FILE, "sha256": SHA, "bytes": adapter_inputs.BASE_BYTES}


def parity() -> dict[str, Any]:
    """reports/parity.json, passed."""
    report = adapter_inputs.parity()
    del report["checks"]["weights_lora"]
    report["checks"]["weights_scales"] = same("Scales → the tuned GGUF", "bytes that are not theirs", 210)
    report["checks"]["outputs_served"]["title"] = "Trained model → tuned GGUF"
    places = dict.fromkeys(("weights_scales", "outputs_served"), "tuned GGUF")
    report["checks"] = placed(report["checks"], adapter_inputs.PLACES | places)
    return report | {"files": {"model.gguf": adapter_inputs.SHAS["model.gguf"], FILE: SHA}}


def write_project(root: Path, **of_the_base: Any) -> Path:
    """Everything that `quench ship tuned` reads, below `root`; `of_the_base` are fields of the base's own
    file, which the tuned one has too.
    """
    write_reports(root)
    (root / "models/base").mkdir()
    (root / "models/gguf").mkdir()
    write_lineage(root)
    adapter = root / "models/adapter"
    (adapter / ADAPTER_FILE).rename(adapter / SCALES_FILE)
    trained_again(root)
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
    change(root / "reports/parity.json", files={file.name: file_hash(file) for file in (base, tuned)})
    for model in MODELS:
        known: dict[str, Any] = {"answers_sha256": file_hash(root / f"reports/eval/{model}.answers.jsonl")}
        if file := {"base": base, "tuned": tuned}.get(model):
            known |= {"sha256": file_hash(file), "bytes": file.stat().st_size}
        change(root / f"reports/eval/{model}.json", **known)
    return root
