"""Editors over the recorded reports/parity.json and merge.json of tests/recorded/merged: a deeper or a
shallower parity, one that failed, the merge of a model of 30 layers.
"""

import random
from typing import Any

from recording import read

LAYERS = 30
KEYS = ("title", "what", "figure", "limit", "unit", "verdict", "detail")


def check(*values: Any, cause: str = "", **figures: float) -> dict[str, Any]:
    """One parity check as reports/parity.json has it."""
    return dict(zip(KEYS, values, strict=True)) | {"cause": cause, "figures": figures}


def outputs(title: str, kld: float, limit: float) -> dict[str, Any]:
    """A check of outputs with this figure."""
    found = read("merged", "reports/parity.json")["checks"]["outputs_gguf"]
    figures = found["figures"] | {"kld_max": kld * 31, "nmse": kld / 9}
    return found | {"title": title, "figure": kld, "limit": limit, "figures": figures}


def end_answers(checks: dict[str, Any]) -> None:
    """The answers of a model that was trained long enough end."""
    checks["behavior_answers_end"] |= {
        "figure": 0.0,
        "limit": 0.0,
        "unit": "models",
        "verdict": "pass",
        "detail": checks["behavior_answers_end"]["detail"].partition("; ")[0].replace("0 of", "2 of"),
    }


def parity_report(depth: str = "standard") -> dict[str, Any]:
    """Everything measured that `depth` measures, and passed."""
    report = read("merged", "reports/parity.json") | {"depth": depth}
    checks: dict[str, Any] = report["checks"]
    end_answers(checks)
    if depth == "full":
        checks["outputs_lora"] |= outputs(checks["outputs_lora"]["title"], 5.1e-06, 1e-3) | {
            "place": checks["outputs_lora"]["place"]
        }
        for level in ("Q4_K_M", "Q5_K_M"):
            title = f"Base GGUF with LoRA GGUF → the same at {level}"
            place = {"place": f"{level}+lora"}
            checks[f"outputs_lora_{level.lower()}"] = outputs(title, 0.0871, 0.7) | place
    if depth == "quick":
        for key in checks:
            if key.startswith(("outputs", "behavior")):
                open_ = {"verdict": "not measured", "detail": "parity.depth is quick"}
                checks[key] |= open_ | {"figure": None, "figures": {}}
    return report


def failed_report() -> dict[str, Any]:
    """The F16 GGUF lost something, and what follows from it."""
    report = parity_report()
    report["verdict"] = "fail"
    report["checks"]["weights_gguf"] |= {
        "figure": 1.0,
        "verdict": "fail",
        "detail": "blk.3.attn_q.weight differs from row 17 on",
        "cause": "Its rows are the merged model's in another order: run `snakemake --force convert`.",
    }
    worse = {"figure": 2.31, "verdict": "fail", "detail": "position 4 of row <b>1</b>"}
    report["checks"]["outputs_gguf"] |= worse
    return report


def merge_report(asked: str = "auto") -> dict[str, Any]:
    """A merge into the NF4 base, as chosen by measurement where `asked` is auto; the recorded tensors again
    for each of 30 layers, moved the more the later they are.
    """
    dice = random.Random(1)  # noqa: S311
    found = read("merged", "reports/merge.json")
    first = [one for one in found["adapters"] if one["layer"] == 0]
    adapters = []
    for layer in range(LAYERS):
        for one in first:
            ratio = 0.004 * (1 + 3 * dice.random()) * (1 + layer / LAYERS)
            weight = one["norm_weight"]
            moved = {"norm_update": weight * ratio, "spectral_update": weight * ratio * 0.6}
            change = {"relative_change": ratio, "nf4_error_to_update": 0.09 / ratio}
            name = one["tensor"].replace(".0.", f".{layer}.")
            adapters.append(one | {"tensor": name, "layer": layer} | moved | change)
    found |= {"merge_base": "nf4", "asked": asked, "adapters": adapters}
    found |= {"tensors": 272, "adapted": len(adapters)}
    if asked == "auto":
        found["reason"] = "At Q4_K_M the merge into the NF4 base is closer to the trained model by 0.2911 to "
        found["reason"] += "0.3480 nats, 32 rows"
        found["deciding_level"] = "Q4_K_M"
        found["candidates"] = {
            "16-bit": {"F16": measured(0.3151, 0.795), "Q4_K_M": measured(0.3313, 0.781, 0.676)},
            "nf4": {"F16": measured(0.0017, 0.980), "Q4_K_M": measured(0.0119, 0.961, 0.741)},
        }
    return found


def measured(kld: float, same_top: float, score: float | None = None) -> dict[str, Any]:
    """One candidate at one level."""
    task = None
    if score is not None:
        interval = {"low": score - 0.06, "high": score + 0.06}
        task = {"scorer": "json_fields", "score": score, "rows": 24} | interval
    found = {"kld_mean": kld, "kld_low": kld * 0.9, "kld_high": kld * 1.1}
    return found | {"same_top": same_top, "rows": 32, "task": task}
