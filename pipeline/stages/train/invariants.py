"""Invariants of a run. Before its first step: weights are finite and packed rows are apart. At its end:
every row was trained once per epoch and something was learned.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from pipeline.chat.manifest import NAME as MANIFEST
from pipeline.config.methods import METHODS
from pipeline.config.targets import together
from pipeline.core.errors import ConfigError, GateError
from pipeline.core.publish import read_json
from pipeline.core.text import shortened
from pipeline.models.experts.targets import idle_experts
from pipeline.models.finite import finite_record
from pipeline.models.qlora import float32_cast_bytes
from pipeline.models.tensors import nf4_state
from pipeline.models.tuners import TUNERS, causal_model, numbers_since
from pipeline.models.tuners.scales import unchanged_in_file
from pipeline.stages.train.dataset import Labelled, for_the_model, packed, sequences
from pipeline.stages.train.monitoring.samples import undisturbed
from pipeline.stages.train.run import RESTART, Run

PROBE_TOKENS = 48  # tokens of each of the two rows
# normalized squared error of logits, packed against alone: bfloat16 gives about 1e-5, a leak above 0.1
SAME_ROW = 1e-2

BEFORE = "before.json"  # file next to the checkpoints with the loss that distillation started from
UNPACKED = "set preprocess.packing to false and train.per_device_train_batch_size to 1"
NAMED = 5  # numbers named in one sentence
# An epoch's last step has the epoch's number up to a float's rounding.
ROUNDING = 1e-6


def check_no_leaks(
    model: Any, collate: Callable[[list[dict[str, Any]]], dict[str, Any]], rows: list[Labelled]
) -> float | None:
    """Return the error that packing makes in a row's logits: mean squared difference ÷ mean square, packed
    behind another row against alone.

    Both take the path of training's batches: through `collate`, into `model`. None (not measured) if there
    are not two rows. Raises `ConfigError` if the row in front shows through or if the architecture can't
    compute packed rows, `GateError` if the model's numbers are not finite.
    """
    if len(rows) < 2:
        return None
    first, second = [(ids[:PROBE_TOKENS], labels[:PROBE_TOKENS]) for ids, labels in rows[:2]]
    with undisturbed(model):
        try:
            behind = _logits(model, collate, [first, second])[len(first[0]) :]
        # transformers refuses packed rows with this error, in recurrent layers and convolutions.
        except ValueError as refusal:
            why = shortened(refusal)
            raise ConfigError(
                "Q-TRAIN-021", f"rows of {model.config.model_type} can't be packed ({why}): {UNPACKED}"
            ) from refusal
        alone = _logits(model, collate, [second])
    error = float((behind - alone).pow(2).mean() / alone.pow(2).mean())
    if not math.isfinite(error):
        raise GateError(
            "Q-TRAIN-020",
            "a packed row's answers are not numbers: run stage base again, for its weights are damaged",
        )
    if error > SAME_ROW:
        raise ConfigError(
            "Q-TRAIN-021",
            f"packed rows see each other: a row's logits differ by {error:.2g} (normalized squared error, "
            f"at most {SAME_ROW:g}) behind another row: {UNPACKED}",
        )
    return error


def _logits(
    model: Any, collate: Callable[[list[dict[str, Any]]], dict[str, Any]], rows: list[Labelled]
) -> Any:
    """Return float32 logits (T, V) of rows packed into one."""
    inputs = {
        name: value.to(model.device) if hasattr(value, "to") else value
        for name, value in for_the_model(collate([packed(rows)])).items()
        if name != "labels"
    }
    return model(**inputs).logits[0].float()


def check_not_repacked(model: Any) -> None:
    """Raise `GateError` if bitsandbytes repacked weights for inference: most gradients would be missing."""
    for name, module in model.named_modules():
        if getattr(nf4_state(module), "packing_format_for_cpu", False):
            raise GateError(
                "Q-TRAIN-026",
                f"{name} was repacked for inference, and its gradient is lost from here on: run `make "
                "setup` for the pinned bitsandbytes",
            )


def check_rows(steps: list[dict[str, Any]], packed_rows: int) -> None:
    """Raise `GateError` unless every finished epoch had every row exactly once, resumed or not."""
    wrong = epochs_complete(steps, packed_rows)
    if wrong:
        raise GateError("Q-TRAIN-022", f"{'; '.join(wrong)}: {RESTART}")


def check_learned(model: Any, steps: list[dict[str, Any]], previous: Path | None = None) -> dict[str, int]:
    """Raise `GateError` if the run can't have learned: no step, a tensor that is not finite, a lora_B or
    scales' change that is still 0. If training went on from what is in the folder `previous`, a tensor that
    is still the same; routed experts count together.

    Return for a mixture's adapter the number of its experts, and how many of these got no token, otherwise
    {}.
    """
    if not steps:
        raise GateError("Q-TRAIN-023", "training ended without one step: give it more rows or steps")
    trained = list(numbers_since(model, previous))
    norms = {name: float(weight.detach().norm()) for name, weight, _ in trained}
    broken = [name for name, norm in norms.items() if not math.isfinite(norm)]
    if broken:
        raise GateError(
            "Q-TRAIN-024",
            f"{len(broken)} of {len(norms)} trained tensors are not finite ({broken[0]}): lower "
            "train.learning_rate",
        )
    # An expert that got no token learns nothing. It would be a fault if all of a layer's learned nothing.
    moved = {together(name) for name, _, from_zero in trained if from_zero and norms[name] > 0.0}
    dead = [name for name, _, from_zero in trained if from_zero and together(name) not in moved]
    if dead:
        raise GateError(
            "Q-TRAIN-025",
            f"{len(dead)} of {len(norms)} trained tensors learned nothing ({dead[0]}): raise "
            "train.learning_rate or train longer",
        )
    if unchanged_in_file(model):
        raise GateError(
            "Q-TRAIN-025",
            "every change of a scale is too small for float16, so the tuned file would be the base's: raise "
            "train.learning_rate or train longer",
        )
    return idle_experts((name, norms[name] > 0.0) for name, _, from_zero in trained if from_zero)


def held_out_before(trainer: Any, file: Path) -> float | None:
    """Return the loss over held-out rows before the first step, or None without rows.

    On resume it is read from `file`.
    """
    if trainer.run.start is None and trainer.held_out:
        loss: float = trainer.held_out_metrics()["eval_loss"]
        trainer.run.note(file, {"eval_loss": loss})
        return loss
    return read_json(file, RESTART)["eval_loss"] if file.is_file() else None


def packs_rows(run: Run) -> bool:
    """Return True if a forward of this run may compute several sequences as one.

    This is the case for packed rows, a batch of several rows, and methods that learn from entire answers.
    """
    settings = run.settings
    if settings.per_device_train_batch_size > 1 or METHODS[settings.method].answers:
        return True
    return bool(read_json(run.tokens / MANIFEST, RESTART)["packing"])


def prove_beforehand(trainer: Any) -> dict[str, Any]:
    """Return the figures of the checks before the first step: targets, parameters, finite weights, and the
    error of packing, if anything is packed.
    """
    # The two rows packed here have no teacher's answers.
    plain = getattr(trainer.collate, "plain", trainer.collate)
    two_rows = sequences(trainer.rows, 2) if packs_rows(trainer.run) else []
    return {
        "trainable_parameters": TUNERS[trainer.settings.tuner].check(trainer.model, trainer.settings),
        "packing_nmse": check_no_leaks(trainer.model, plain, two_rows),
        "float32_cast_bytes_saved": float32_cast_bytes(causal_model(trainer.model)),
        **finite_record(trainer.model),
    }


def epochs_complete(rows: Sequence[dict[str, Any]], packed_rows: int) -> list[str]:
    """Return the faults in the order of training, as sentences, or [] if all is right.

    `rows` is the metrics log, `packed_rows` the number n of rows in data/tokens/train.parquet. Every finished
    epoch must contain each of 0 … n - 1 exactly once, an unfinished one none of them twice, and the steps
    must be 1, 2, 3 ….
    """
    steps = [row for row in rows if row["kind"] == "step"]
    numbers = [row["step"] for row in steps]
    faults = _uneven("the metrics log, step", numbers, range(1, max(numbers, default=0) + 1))
    if not faults and numbers != sorted(numbers):
        faults.append("the metrics log: its steps are out of order")
    trained: dict[int, list[int]] = {}
    for row in steps:
        trained.setdefault(_epoch(row["epoch"]), []).extend(row["rows"])
    done = max((row["epoch"] for row in steps), default=0.0)
    for epoch in range(1, max(trained, default=0) + 1):
        finished = epoch <= done + ROUNDING
        faults += _uneven(
            f"epoch {epoch}, packed row", trained.get(epoch, []), range(packed_rows), skips=finished
        )
    return faults


def _epoch(passes: float) -> int:
    """Return the number of the epoch, from 1. A step's `epoch` counts the passes done after it, so the first
    ends at 1.0.
    """
    return max(1, math.ceil(passes - ROUNDING))


def _uneven(what: str, values: Iterable[int], wanted: range, *, skips: bool = True) -> list[str]:
    """Return sentences on numbers that occur twice, that don't exist, and (with `skips`) that are missing."""
    counted = Counter(values)
    kinds = {
        "repeated": [number for number, times in counted.items() if times > 1],
        "unknown": [number for number in counted if number not in wanted],
        "skipped": [number for number in wanted if number not in counted] if skips else [],
    }
    return [f"{what} {_listed(sorted(numbers))}: {kind}" for kind, numbers in kinds.items() if numbers]


def _listed(numbers: list[int]) -> str:
    more = len(numbers) - NAMED
    listed = ", ".join(map(str, numbers[:NAMED]))
    return f"{listed} and {more} more" if more > 0 else listed
