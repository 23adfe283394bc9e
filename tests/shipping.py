"""A small finished project to ship from: reports of the demo's size, GGUFs of a few kilobytes with true passports."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import tiny
from parity_inputs import parity_report
from report_inputs import put, write_inputs

from pipeline.conversion.passport import adapter_fields, folder_fields
from pipeline.hashing import file_hash
from pipeline.params import Params, load_params

RECIPE = Path(__file__).resolve().parents[1] / "recipes" / "demo.yaml"
LEVELS = ["Q4_K_M", "Q5_K_M"]
MODELS = ["base-F16", "F16", *LEVELS]
FILE_TYPES = {"base-F16": 1, "F16": 1, "Q4_K_M": 15, "Q5_K_M": 17}
PADDING = {"base-F16": 65, "F16": 64, "Q4_K_M": 1, "Q5_K_M": 32}  # rows of a tensor that makes the files as different in size as levels are


def params(**gate: Any) -> Params:
    """The demo's with two tuned levels; `gate` changes report.gate."""
    found = load_params(RECIPE)
    return found.model_copy(
        update={
            "quantize": found.quantize.model_copy(update={"levels": LEVELS}),
            "evaluate": found.evaluate.model_copy(update={"models": MODELS}),
            "report": found.report.model_copy(update={"gate": found.report.gate.model_copy(update=gate)}),
        }
    )


def write_project(root: Path) -> Path:
    """Everything that `quench ship` reads, below `root`."""
    write_inputs(root)
    adapter, merged, ggufs = root / "models/adapter", root / "models/merged", root / "models/gguf"
    merged.mkdir()
    ggufs.mkdir()
    (adapter / "adapter_model.safetensors").write_bytes(b"adapter")
    (merged / "chat_template.jinja").write_text("template", encoding="utf-8")
    put(merged / "merge.json", {"onto": "nf4", "method": "stream", "dtype": "float16", "adapters": []})
    (root / "data/final").mkdir(parents=True)
    (root / "data/final/train.jsonl").write_text("{}\n", encoding="utf-8")
    fields = {key.replace(".", "__"): value for key, value in (adapter_fields(adapter) | folder_fields(merged)).items()}
    for model, kind in FILE_TYPES.items():
        padding = {"padding.weight": np.zeros((PADDING[model], 32), np.float32)}
        tiny.tiny_gguf(ggufs / f"demo-{model}.gguf", tensors=padding, general__file_type=kind, **fields)
    parity = parity_report()
    parity["files"] = {file.name: file_hash(file) for file in ggufs.iterdir()}
    put(root / "reports/parity.json", parity)
    for model in FILE_TYPES:
        file = ggufs / f"demo-{model}.gguf"
        known = {"sha256": file_hash(file), "bytes": file.stat().st_size, "kld_mean": 0.0 if "F16" in model else 0.0184, "same_top": 0.98}
        known |= {"answers_sha256": file_hash(root / f"reports/eval/{model}.answers.jsonl"), "all_tokens": {"kld_mean": 0.0184, "same_top": 0.98}}
        change(root / f"reports/eval/{model}.json", **known)
    task = json.loads((root / "reports/eval/F16.json").read_text(encoding="utf-8"))["task"]
    for model in MODELS:
        change(root / f"reports/eval/{model}.json", general=None, serving=None, **({} if model == "base-F16" else {"task": task}))
    return root


def change(path: Path, **values: Any) -> None:
    """Other values at the top of a JSON file."""
    put(path, json.loads(path.read_text(encoding="utf-8")) | values)
