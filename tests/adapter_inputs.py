"""What the stages of the graph without a merge leave behind, as a small project folder; the same to ship
from, with true GGUFs of a few kilobytes.
"""

import json
from pathlib import Path
from typing import Any

import tiny
from parity_inputs import check, placed, same
from report_inputs import answers, evaluation, put, write_inputs
from shipping import change, write_lineage
from tiny_lora import tiny_lora

from pipeline.config.params import Params, load_params
from pipeline.core.hashing import file_hash
from pipeline.gguf.provenance import BASE_FILE, adapter_fields, lineage_fields

RECIPE = Path(__file__).resolve().parents[1] / "recipes" / "demo-gguf.yaml"
LIKE = {
    "source": "base-F16",
    "base": "base-Q4_K_M",
    "adapter": "Q4_K_M",
}  # whose figures of report_inputs each model has
FILES = {"source": "source.gguf", "base": "model.gguf", "adapter": "model.gguf"}
BASE_BYTES, LORA_BYTES = 105_454_432, 9_800_000
SHAS = {"source.gguf": "5a" * 32, "model.gguf": "6b" * 32, "demo-lora.gguf": "7c" * 32}
KLD = {"base": 0.351, "adapter": 0.0702}  # from the source, at the assistant's tokens
SPEED = {"source": (390.0, 88.0), "base": (410.0, 98.0), "adapter": (328.0, 88.2)}


def params(
    models: tuple[str, ...] = ("source", "base", "adapter"), *, distill: bool = False, **gate: Any
) -> Params:
    """The recipe's; `gate` changes report.gate."""
    found = load_params(RECIPE)
    return found.model_copy(
        update={
            "evaluate": found.evaluate.model_copy(update={"models": list(models)}),
            "train": found.train.model_copy(update={"method": "distill" if distill else "sft"}),
            "report": found.report.model_copy(update={"gate": found.report.gate.model_copy(update=gate)}),
        }
    )


def write_reports(root: Path, *, distill: bool = False) -> Path:
    """Every input of the stage `report` below `root`."""
    write_inputs(root)
    for name in ("merge", "strategies"):
        (root / "reports" / f"{name}.json").unlink()
    for file in (root / "reports" / "eval").iterdir():
        file.unlink()
    base = json.loads((root / "models/base.json").read_text())
    files = {"config.json": "1f" * 32, **{name: SHAS[name] for name in FILES.values()}}
    put(root / "models/base.json", base | {"dtype": "Q4_K_M", "files": files})
    put(root / "reports" / "parity.json", parity())
    for model, like in LIKE.items():
        put(root / "reports" / "eval" / f"{model}.json", figures(model, distill=distill))
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in answers(like)]
        (root / "reports" / "eval" / f"{model}.answers.jsonl").write_text("".join(lines), encoding="utf-8")
    return root


def figures(model: str, *, distill: bool = False) -> dict[str, Any]:
    """One reports/eval/MODEL.json."""
    found = evaluation(LIKE[model])
    size = {"source": 98_362_432, "base": BASE_BYTES, "adapter": BASE_BYTES + LORA_BYTES}[model]
    reference = {"source": "source", "base": "source", "adapter": "source" if distill else "base"}[model]
    kld = KLD.get(model, 0.0) if reference == "source" else 1.4142
    prompt, generation = SPEED[model]
    more: dict[str, Any] = (
        {"lora": {"file": "demo-lora.gguf", "sha256": SHAS["demo-lora.gguf"], "bytes": LORA_BYTES}}
        if model == "adapter"
        else {}
    )
    everywhere = found["all_tokens"] | {"kld_mean": kld * 1.1, "same_top": 0.83}
    swing = 0.5 if model == "adapter" else 0.1
    rows = {
        "tokens": [100 + row for row in range(8)],
        "kld": [kld * 100 * (1 + swing * (row % 3 - 1)) for row in range(8)],
        "same": [90] * 8,
    }
    return found | {
        "model": model,
        "file": FILES[model],
        "sha256": SHAS[FILES[model]],
        "bytes": size,
        "reference": reference,
        "kld_mean": kld,
        "same_top": {"source": 1.0, "base": 0.8113, "adapter": 0.9302}[model],
        "all_tokens": everywhere,
        "bits_per_weight": 6.17,
        "by_row": {"assistant": rows, "all_tokens": rows},
        "prompt_tok_s": prompt,
        "generation_tok_s": generation,
        **more,
    }


SERVED = "base GGUF + LoRA"
PLACES = {
    "weights_file": "base GGUF",
    "outputs_bare": "base GGUF",
    "weights_lora": SERVED,
    "outputs_served": SERVED,
}


def parity() -> dict[str, Any]:
    """reports/parity.json of the graph without a merge, at full depth, passed."""
    kld = "mean KL divergence of the next token"
    checks = {
        "weights_file": same(
            "The base's file, and what was trained on it", "records that name another file or run", 6
        ),
        "weights_lora": same("Adapter → its GGUF, weights", "tensors that are not the adapter's", 420),
        "tokens_special": same("Special tokens", "places that disagree", 14),
        "text_template": same("Template text", "conversations whose text differs", 200),
        "tokens_ids": same("Token ids", "conversations whose ids differ", 200),
        "outputs_bare": check(
            "Base in training's arithmetic → its GGUF in llama.cpp",
            kld,
            0.0021,
            None,
            "nats",
            "pass",
            "50 rows",
            nmse=0.001,
            kld_max=0.2,
            same_top=0.981,
            positions=4100.0,
        ),
        "outputs_served": check(
            "Trained model → base GGUF with LoRA GGUF",
            kld,
            0.00234,
            0.0025,
            "nats",
            "pass",
            "50 rows",
            nmse=0.001,
            kld_max=0.3,
            same_top=0.9775,
            positions=4100.0,
        ),
        "behavior_stops": check(
            "Answers stop",
            "answers that ran into the limit",
            0.0,
            0.0,
            "answers",
            "pass",
            "1 model, 4 prompts",
        ),
    }
    return {
        "verdict": "pass",
        "depth": "full",
        "checks": placed(checks, PLACES),
        "files": {name: SHAS[name] for name in ("model.gguf", "demo-lora.gguf")},
    }


def write_project(root: Path) -> Path:
    """Everything that `quench ship adapter` reads, below `root`: a tiny base, a tiny adapter that names it,
    reports about these very files.
    """
    write_reports(root)
    (root / "models/base").mkdir()
    (root / "models/gguf").mkdir()
    write_lineage(root)
    base = tiny.tiny_gguf(root / "models/base/model.gguf")
    change(root / "models/base.json", files={"model.gguf": file_hash(base)})
    fields = (
        lineage_fields(root / "models/base.json")
        | adapter_fields(root / "models/adapter")
        | {BASE_FILE: file_hash(base)}
    )
    lora = tiny_lora(
        root / "models/gguf/demo-lora.gguf",
        **{key.replace(".", "__"): value for key, value in fields.items()},
    )
    hashes = {file.name: file_hash(file) for file in (base, lora)}
    change(root / "reports/parity.json", files=hashes)
    for model in LIKE:
        known: dict[str, Any] = {"answers_sha256": file_hash(root / f"reports/eval/{model}.answers.jsonl")}
        if model != "source":
            known |= {"sha256": hashes["model.gguf"], "bytes": base.stat().st_size}
        if model == "adapter":
            known["bytes"] += lora.stat().st_size
            known["lora"] = {"file": lora.name, "sha256": hashes[lora.name], "bytes": lora.stat().st_size}
        change(root / f"reports/eval/{model}.json", **known)
    return root
