"""The report's figures as data: all of them in `quants.csv` and `quants.json`, those for `dvc metrics` in a
file of their own.
"""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.core.publish import publishing, write_json
from pipeline.gate.evaluations import Evaluation, Evaluations
from pipeline.gate.verdict import Judgment

DIVERGENCE = (
    "perplexity",
    "perplexity_error",
    "kld_mean",
    "kld_median",
    "kld_p999",
    "kld_max",
    "same_top",
    "rms_dp",
)
FIGURES = (
    "bytes",
    "bits_per_weight",
    "tensors",
    "fallback_tensors",
    *DIVERGENCE,
    "prompt_tok_s",
    "prompt_tok_s_spread",
    "generation_tok_s",
    "generation_tok_s_spread",
    "kv_cache_bytes",
)
TASK_FIGURES = ("score", "score_low", "score_high", "perfect", "valid", "stopped", "refused", "rows")
GENERAL_FIGURES = ("score", "score_low", "score_high", "rows")
SERVING_FIGURES = (
    "ctx_size",
    "parallel",
    "n_gpu_layers",
    "load_seconds",
    "peak_memory_bytes",
    "gpu_memory_bytes",
)
# columns of metrics.json: name, figure, factor and decimals
HEADLINE = (
    ("score", "task_score", 100, 1),
    ("general", "general_score", 100, 1),
    ("kld", "kld_mean", 1, 4),
    ("mb", "bytes", 1e-6, 1),
)


def flat_figures(evaluation: Evaluation, verdict: Judgment | None = None) -> dict[str, Any]:
    """Return a model's figures in one flat dict, None if not measured.

    The keys are `task_score`, `all_tokens_kld_mean`, …
    """
    figures = evaluation.written()
    task = evaluation.task
    speed = evaluation.speed
    if evaluation.is_disturbed:  # disturbed speeds mean nothing; the share of other load tells why
        figures = {key: value for key, value in figures.items() if "tok_s" not in key}
    speeds = speed if speed and not evaluation.is_disturbed else None
    parts = {
        "task": TASK_FIGURES,
        "general": GENERAL_FIGURES,
        "serving": SERVING_FIGURES,
        "all_tokens": ("tokens", *DIVERGENCE),
    }
    return {
        "gate": verdict.verdict if verdict else None,
        **{key: figures.get(key) for key in FIGURES},
        **{
            f"{name}_{key}": (figures.get(name) or {}).get(key)
            for name, keys in parts.items()
            for key in keys
        },
        **{f"prompt_{at.tokens}_tok_s": at.median for at in (speeds.prompt if speeds else ())},
        **{f"generation_at_{at.depth}_tok_s": at.median for at in (speeds.generation if speeds else ())},
        "speed_other_load": speed.other_load if speed else None,
        **({"lora_bytes": evaluation.lora.bytes} if evaluation.lora else {}),  # contained in `bytes`
        # fewer than task_rows if a judge's mark can't be read
        "task_measured": task.measured if task else None,
        **({"task_commonest": task.line} if task and task.line is not None else {}),
        **{
            f"task_{key}_{scorer}": getattr(score, key)
            for scorer, score in ((task.scores if task else None) or {}).items()
            for key in ("score", "measured")
        },
        **{
            f"harness_{name}_{metric}": value
            for name, metrics in (evaluation.harness or {}).items()
            for metric, value in metrics.items()
        },
    }


def write_data_files(
    folder: Path,
    evaluations: Evaluations,
    verdicts: Mapping[str, Judgment],
    recommended: str | None,
    loss: float | None,
) -> None:
    """Publish quants.csv, quants.json and metrics.json into `folder`; `loss` is training's last."""
    table = {
        model: flat_figures(evaluation, verdicts.get(model)) for model, evaluation in evaluations.items()
    }
    write_csv(folder / "quants.csv", table)
    measured = {
        model: {key: value for key, value in row.items() if value is not None} for model, row in table.items()
    }
    write_json(folder / "quants.json", measured | {"recommended": recommended})
    write_json(folder / "metrics.json", headline_figures(measured, loss))


def headline_figures(measured: Mapping[str, Mapping[str, Any]], loss: float | None) -> dict[str, Any]:
    """Return the few figures that `dvc metrics show` compares; quants.json contains all of them."""
    figures: dict[str, Any] = {} if loss is None else {"loss": round(loss, 4)}
    for name, key, factor, digits in HEADLINE:
        column = {model: round(row[key] * factor, digits) for model, row in measured.items() if key in row}
        if column:
            figures[name] = column
    return figures


def write_csv(target: Path, table: Mapping[str, Mapping[str, Any]]) -> None:
    """Publish a line per model with every figure that some model has; empty if not measured."""
    with publishing(target) as aside, aside.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(
            file,
            ["model", *list(dict.fromkeys(key for row in table.values() for key in row))],
            lineterminator="\n",
        )
        writer.writeheader()
        writer.writerows({"model": model, **row} for model, row in table.items())
