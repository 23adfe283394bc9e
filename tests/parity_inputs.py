"""reports/parity.json and reports/merge.json as the stages leave them, for tests of what shows them; figures
of the demo's size.
"""

import random
from typing import Any

MODULES = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
KEYS = ("title", "what", "figure", "limit", "unit", "verdict", "detail")


def check(*values: Any, cause: str = "", **figures: float) -> dict[str, Any]:
    """One parity check as reports/parity.json has it."""
    return dict(zip(KEYS, values, strict=True)) | {"cause": cause, "figures": figures}


def same(title: str, what: str, compared: int) -> dict[str, Any]:
    return check(title, what, 0.0, 0.0, "differences", "pass", f"{compared:,} compared")


def outputs(
    title: str, kld: float, limit: float, verdict: str = "pass", trained: float = 0.0
) -> dict[str, Any]:
    what = "mean KL divergence from the model before it"
    return check(
        title,
        what,
        kld,
        limit,
        "nats",
        verdict,
        "4 held-out rows, 128 positions",
        nmse=kld / 9,
        kld_max=kld * 31,
        same_top=1 - min(0.9, kld) / 4,
        positions=128.0,
        kld_trained=trained,
    )


def level(name: str, rmse: float, kld: float) -> dict[str, dict[str, Any]]:
    key = name.lower().replace("-", "_")
    what = "largest relative rounding error of a tensor, over its type's limit"
    weights = check(
        f"{name}, weights",
        what,
        0.71,
        1.0,
        "",
        "pass",
        "272 tensors; worst blk.3.ffn_down.weight",
        rmse_mean=rmse,
        rmse_worst=2 * rmse,
    )
    return {
        f"weights_{key}": weights,
        f"outputs_{key}": outputs(f"demo-F16 → {name}", kld, 0.7, trained=kld + 0.01),
    }


PLACES = {
    "weights_merged": "merged",
    "outputs_sixteen": "merged",
    "outputs_trained": "merged",
    "weights_gguf": "16-bit GGUF",
    "outputs_gguf": "16-bit GGUF",
    "weights_q4_k_m": "Q4_K_M",
    "outputs_q4_k_m": "Q4_K_M",
    "weights_q5_k_m": "Q5_K_M",
    "outputs_q5_k_m": "Q5_K_M",
    "outputs_lora": "16-bit GGUF+lora",
    "outputs_lora_q4_k_m": "Q4_K_M+lora",
}


def placed(checks: dict[str, Any], places: dict[str, str] = PLACES) -> dict[str, Any]:
    """The checks, each with what it judges."""
    return {key: check | {"place": places.get(key, "")} for key, check in checks.items()}


def parity_report(depth: str = "standard") -> dict[str, Any]:
    """Everything measured that `depth` measures, and passed."""
    checks = {
        "text_template": same(
            "Template text", "conversations whose text differs between training and llama-server", 812
        ),
        "tokens_ids": same(
            "Token ids", "conversations whose token ids differ between training and llama-server", 812
        ),
        "tokens_corpus": same(
            "Vocabulary", "strings whose ids differ between training's tokenizer and the GGUF's", 100_000
        ),
        "tokens_special": same("Special tokens", "places that disagree about beginning, end and padding", 14),
        "tokens_levels": same(
            "Vocabularies, settings and provenance records",
            "fields that differ between merged model, 16-bit GGUF and levels",
            44,
        ),
        "weights_merged": check(
            "Base + adapter → merged, weights",
            "largest error of a weight",
            0.5,
            0.5,
            "ulp",
            "pass",
            "272 tensors, 210 adapted",
        ),
        "outputs_sixteen": outputs("16-bit base with adapter → merged model", 0.3151, 0.7),
        "outputs_trained": outputs("Trained model (NF4 with adapter) → merged model", 2.2e-06, 1e-3),
        "weights_gguf": same("Merged → F16, weights", "tensors that are not the merged model's", 272),
        "outputs_gguf": outputs("Merged model → demo-F16", 7.1e-07, 1e-3, trained=0.0017),
        **level("Q4_K_M", 0.0412, 0.0104),
        **level("Q5_K_M", 0.0231, 0.0031),
        "outputs_lora": outputs("16-bit base with adapter → base GGUF with LoRA GGUF", 5.1e-06, 1e-3),
        "outputs_lora_q4_k_m": outputs("Base GGUF with LoRA GGUF → the same at Q4_K_M", 0.0871, 0.7),
        "behavior_stops": check(
            "Answers stop",
            "answers that ran into the limit",
            0.0,
            0.0,
            "answers",
            "pass",
            "3 models, 4 prompts each",
        ),
    }
    dear = {"quick": ("outputs", "behavior"), "standard": ("outputs_lora",), "full": ()}[depth]
    for key in checks:
        if key.startswith(dear):
            checks[key] |= {
                "figure": None,
                "verdict": "not measured",
                "detail": f"parity.depth is {depth}",
                "figures": {},
            }
    return {"verdict": "pass", "depth": depth, "files": {}, "checks": placed(checks)}


def failed_report() -> dict[str, Any]:
    """The F16 GGUF lost something, and what follows from it."""
    report = parity_report()
    cause = "The tensor's rows are the merged model's in another order: run `snakemake --force convert`."
    report["verdict"] = "fail"
    report["checks"]["weights_gguf"] |= {
        "figure": 1.0,
        "verdict": "fail",
        "detail": "blk.3.attn_q.weight differs from row 17 on",
        "cause": cause,
    }
    report["checks"]["outputs_gguf"] |= {
        "figure": 2.31,
        "verdict": "fail",
        "detail": "position 4 of row <b>1</b>",
    }
    return report


def merge_report(asked: str = "auto", layers: int = 30) -> dict[str, Any]:
    """A merge into the NF4 base, as chosen by measurement where `asked` is auto."""
    dice = random.Random(1)  # noqa: S311
    adapters = []
    for layer in range(layers):
        for module in MODULES:
            ratio = 0.004 * (1 + 3 * dice.random()) * (1 + layer / layers)
            adapters.append(
                {
                    "tensor": f"model.layers.{layer}.{module}.weight",
                    "layer": layer,
                    "module": module,
                    "rank": 16,
                    "scale": 2.0,
                    "norm_a": 2.31,
                    "norm_b": 0.42,
                    "norm_update": 57.6 * ratio,
                    "norm_weight": 57.6,
                    "spectral_update": 57.6 * ratio * 0.6,
                    "rms_weight": 0.1,
                    "rows": 576,
                    "columns": 576,
                    "relative_change": ratio,
                    "nf4_error_to_update": 0.09 / ratio,
                }
            )
    found = {
        "16-bit": {"F16": measured(0.3151, 0.795), "Q4_K_M": measured(0.3313, 0.781, 0.676)},
        "nf4": {"F16": measured(0.0017, 0.980), "Q4_K_M": measured(0.0119, 0.961, 0.741)},
    }
    return {
        "merge_base": "nf4",
        "asked": asked,
        "method": "stream",
        "dtype": "float16",
        "tensors": 272,
        "adapted": 210,
        "bytes": 269_030_016,
        "reason": "At Q4_K_M the merge into the NF4 base is closer to the trained model by 0.2911 to 0.3480 "
        "nats, 32 rows",
        "candidates": found if asked == "auto" else {},
        "deciding_level": "Q4_K_M" if asked == "auto" else None,
        "adapters": adapters,
        "warnings": [],
    }


def measured(kld: float, same_top: float, score: float | None = None) -> dict[str, Any]:
    """One candidate at one level."""
    task = (
        {"scorer": "json_fields", "score": score, "low": score - 0.06, "high": score + 0.06, "rows": 24}
        if score is not None
        else None
    )
    return {
        "kld_mean": kld,
        "kld_low": kld * 0.9,
        "kld_high": kld * 1.1,
        "same_top": same_top,
        "rows": 32,
        "task": task,
    }
