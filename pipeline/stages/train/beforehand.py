"""What is measured of a model before its first step."""

from pathlib import Path
from typing import Any

from pipeline.config.sections import Training
from pipeline.core.publish import read_json, write_json
from pipeline.models.finite import finite_record
from pipeline.models.qlora import float32_cast_bytes
from pipeline.models.tuners import causal_model, check_tuner
from pipeline.stages.train.dataset import sequences
from pipeline.stages.train.proofs import check_no_leaks

BEFORE = "before.json"  # beside the checkpoints: what distillation started from


def held_out_before(trainer: Any, file: Path, *, fresh: bool) -> float | None:
    """The loss over held-out rows before the first step, None without rows; on resume that in `file`."""
    if fresh and trainer.held_out:
        found = trainer.held_out_metrics()["eval_loss"]  # by all processes
        if not trainer.leads:
            return None
        write_json(file, {"eval_loss": found})
    return read_json(file, "start again with --no-resume")["eval_loss"] if file.is_file() else None


def prove_beforehand(trainer: Any, settings: Training) -> dict[str, Any]:
    """What is proven before the first step, in figures: targets, parameters, finite weights, packing."""
    # what is packed here has no teacher's answers
    plain = getattr(trainer.data_collator, "plain", trainer.data_collator)
    return {
        "trainable_parameters": check_tuner(trainer.model, settings),
        "packing_nmse": check_no_leaks(trainer.model, plain, sequences(trainer.train_dataset, 2)),
        "float32_cast_bytes_saved": float32_cast_bytes(causal_model(trainer.model)),
        **finite_record(trainer.model),
    }
