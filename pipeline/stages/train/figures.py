"""Figures of a run for reports/train.json and reports/train.csv."""

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipeline.core.publish import publishing
from pipeline.models.runtime import peak_memory

CURVE = ("step", "epoch", "loss", "eval_loss", "learning_rate", "grad_norm", "tokens", "trained_tokens")


def summary(trainer: Any, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the run in figures, from the metrics log's `rows` of all parts of an interrupted run."""
    steps = [row for row in rows if row["kind"] == "step"]
    tokens = sum(row["tokens"] for row in steps)
    seconds = sum(row["seconds"] for row in steps)
    return {
        "device": str(trainer.model.device),
        "loss": trainer.loss,
        **({"loss_reason": trainer.loss_reason} if trainer.loss_reason else {}),
        "compiled": trainer.settings.compiled,
        "steps": len(steps),
        "planned_steps": trainer.max_steps,
        "adapter_step": trainer.progress.best_global_step or len(steps),
        "seconds": round(seconds, 1),
        "tokens": tokens,
        "tokens_per_second": round(tokens / seconds, 1),
        "trained_tokens": sum(row["trained_tokens"] for row in steps),
        "total_parameters": logical_parameters(trainer.model),
        "memory": resident_bytes(trainer.model, trainer.optimizer),
        "loss_first": steps[0]["loss"],
        "loss_last": steps[-1]["loss"],
        "peak_memory_bytes": peak_memory(),
    }


def last_evaluation(trainer: Any, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the metrics log's last evaluation of the adapter that is kept, or {} if there was none."""
    best = trainer.progress.best_global_step
    evaluations = [row for row in rows if row["kind"] == "eval"]
    if best:
        evaluations = [row for row in evaluations if row["step"] == best]
    return evaluations[-1] if evaluations else {}


def resident_bytes(model: Any, optimizer: Any) -> dict[str, int]:
    """Return the bytes that stay allocated during all of training, counted from the tensors themselves:
    frozen weights, adapter, its gradients, the optimizer's states.
    """
    import torch

    from pipeline.models.tensors import frozen_tensors, tensor_bytes

    adapter = tensor_bytes(weight for weight in model.parameters() if weight.requires_grad)
    values = [value for state in optimizer.state.values() for value in state.values()]
    states = filter(torch.is_tensor, values)
    return {
        "weights": tensor_bytes(frozen_tensors(model)),
        "adapter": adapter,
        "gradients": adapter,
        "optimizer": tensor_bytes(states),
    }


def logical_parameters(model: Any) -> int:
    """Count base and adapter parameters by formula, with those in packed bytes and main-memory tables."""
    from pipeline.models.tensors import nf4_state

    quantized = {}
    for module in model.modules():
        if hasattr(module, "logical"):
            quantized[id(module.weight)] = module.logical
        elif nf4_state(module) is not None:
            quantized[id(module.weight)] = 2 * module.weight.numel()
    parameters = {id(p): p for p in (*model.parameters(), model.get_input_embeddings().weight)}
    return sum(quantized.get(key, p.numel()) for key, p in parameters.items())


def curve(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row per step with the columns `CURVE`, for `dvc plots`. `eval_loss` may be empty."""
    rows = list(rows)
    evaluated = {row["step"]: row["eval_loss"] for row in rows if row["kind"] == "eval"}
    points = []
    for row in rows:
        if row["kind"] == "step":
            point = row | {"eval_loss": evaluated.get(row["step"], "")}
            points.append({key: point[key] for key in CURVE})
    return points


def write_curve(target: Path, rows: list[dict[str, Any]]) -> None:
    """Publish the curve as CSV."""
    with publishing(target) as aside, aside.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=CURVE)
        writer.writeheader()
        writer.writerows(rows)
