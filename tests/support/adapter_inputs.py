"""Editors over tests/recorded/adapter, the graph without a merge: scores and figures of the demo's size; the
same to ship from, with true GGUFs of a few kilobytes.
"""

from pathlib import Path
from typing import Any

import tiny
from parity_inputs import end_answers
from recording import read, write_recorded
from report_inputs import CHATML_WITH_DEFAULT, answers, change, evaluation, put, write_evaluation
from shipping import write_lineage
from tiny_lora import tiny_lora

from pipeline.config.params import Params, load_params
from pipeline.core.hashing import file_hash
from pipeline.gguf.provenance import BASE_FILE, adapter_fields, lineage_fields

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "demo-gguf.yaml"
LIKE = {"source": "base-F16", "base": "base-Q4_K_M", "adapter": "Q4_K_M"}  # whose figures each model has
# of each report, as recorded
OWN = ("model", "file", "sha256", "answers_sha256", "rows_sha256", "tensor_types")
BASE_BYTES, LORA_BYTES = 105_454_432, 9_800_000
BYTES = {"source": 98_362_432, "base": BASE_BYTES, "adapter": BASE_BYTES + LORA_BYTES}
KLD = {"base": 0.351, "adapter": 0.0702}  # from the source, at the assistant's tokens
SPEED = {"source": (390.0, 88.0), "base": (410.0, 98.0), "adapter": (328.0, 88.2)}
SAME_TOP = {"source": 1.0, "base": 0.8113, "adapter": 0.9302}


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
    return recorded_reports("adapter", root, {model: figures(model, distill=distill) for model in LIKE})


def recorded_reports(name: str, root: Path, found: dict[str, dict[str, Any]]) -> Path:
    """The recorded project `name` below `root`, with these figures of its models: source, base, what is
    served.
    """
    write_recorded(name, root)
    (root / "models/adapter/chat_template.jinja").write_text(CHATML_WITH_DEFAULT, encoding="utf-8")
    change(root / "models/base.json", license="Apache-2.0")
    put(root / "reports/parity.json", parity(name))
    for (model, figures), like in zip(found.items(), ("source", "base", "adapter"), strict=True):
        write_evaluation(root, model, figures, answers(LIKE[like]))
    return root


def figures(model: str, *, distill: bool = False) -> dict[str, Any]:
    """One reports/eval/MODEL.json."""
    like = evaluation(LIKE[model])
    found = read("adapter", f"reports/eval/{model}.json")
    reference = {"source": "source", "base": "source", "adapter": "source" if distill else "base"}[model]
    kld = KLD.get(model, 0.0) if reference == "source" else 1.4142
    prompt, generation = SPEED[model]
    if model == "adapter":
        found["lora"]["bytes"] = LORA_BYTES
    swing = 0.5 if model == "adapter" else 0.1
    rows = {
        "tokens": [100 + row for row in range(8)],
        "kld": [kld * 100 * (1 + swing * (row % 3 - 1)) for row in range(8)],
        "same": [90] * 8,
    }
    own = {key: found[key] for key in OWN}
    return found | {
        **like,
        **own,
        "bytes": BYTES[model],
        "reference": reference,
        "kld_mean": kld,
        "same_top": SAME_TOP[model],
        "all_tokens": found["all_tokens"] | {"kld_mean": kld * 1.1, "same_top": 0.83},
        "bits_per_weight": 6.17,
        "by_row": {"assistant": rows, "all_tokens": rows},
        "prompt_tok_s": prompt,
        "generation_tok_s": generation,
    }


def parity(name: str = "adapter") -> dict[str, Any]:
    """reports/parity.json of the recorded project `name`, passed, with a demo-size model's adapter."""
    report: dict[str, Any] = read(name, "reports/parity.json")
    end_answers(report["checks"])
    served = report["checks"]["outputs_served"]
    served |= {"figure": 0.00234, "limit": 0.0025, "figures": served["figures"] | {"same_top": 0.9775}}
    return report


def write_project(root: Path) -> Path:
    """Everything that `quench ship adapter` reads, below `root`: a tiny base, a tiny adapter that names it,
    reports about these very files.
    """
    base, fields = write_base(write_reports(root))
    lora = tiny_lora(root / "models/gguf/demo-lora.gguf", **fields)
    name_files(root, {"base": [base], "adapter": [base, lora]})
    return root


def write_base(root: Path, *weights: str, **of_the_base: Any) -> tuple[Path, dict[str, Any]]:
    """A tiny base with these fields, and the provenance of what was trained on it, in the file `weights`."""
    (root / "models/base").mkdir()
    (root / "models/gguf").mkdir()
    write_lineage(root, *weights)
    base = tiny.tiny_gguf(root / "models/base/model.gguf", **of_the_base)
    change(root / "models/base.json", files={"model.gguf": file_hash(base)})
    own = lineage_fields(root / "models/base.json") | adapter_fields(root / "models/adapter")
    fields = own | {BASE_FILE: file_hash(base)}
    return base, {key.replace(".", "__"): value for key, value in fields.items()}


def name_files(root: Path, files: dict[str, list[Path]]) -> None:
    """The reports of parity and of each model speak of these very files, and of the answers beside them."""
    hashes = {file.name: file_hash(file) for served in files.values() for file in served}
    change(root / "reports/parity.json", files=hashes)
    for report in sorted((root / "reports/eval").glob("*.json")):
        known: dict[str, Any] = {"answers_sha256": file_hash(report.with_suffix(".answers.jsonl"))}
        if served := files.get(report.stem):
            sizes = [file.stat().st_size for file in served]
            known |= {"sha256": hashes[served[0].name], "bytes": sum(sizes)}
            for lora, size in zip(served[1:], sizes[1:], strict=True):
                known["lora"] = {"file": lora.name, "sha256": hashes[lora.name], "bytes": size}
        change(report, **known)
