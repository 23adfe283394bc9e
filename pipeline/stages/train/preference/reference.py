"""What the reference answers: log-probabilities by the model as training starts with it, computed once.

An adapter's start changes nothing, so the model before its first step is the reference. The
log-probabilities are kept in `models/checkpoints/reference.json` by the hash of the packed row, for a run
that goes on.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from pipeline.core.errors import GateError
from pipeline.core.hashing import json_hash
from pipeline.core.jsonl import parse_object
from pipeline.core.progress import progress
from pipeline.core.publish import write_json
from pipeline.models.token_logps import sums_by_sequence, token_logps
from pipeline.models.tuners import causal_model
from pipeline.stages.train.dataset import NOT_FOR_THE_MODEL
from pipeline.stages.train.monitoring.samples import undisturbed
from pipeline.stages.train.preference.collator import OTHERS, PreferenceCollator
from pipeline.stages.train.proofs import check_not_repacked
from pipeline.stages.train.step_stats import Batch

EXTRAS = ("roles", "reference", OTHERS)
Known = dict[str, list[float]]


def likelihoods(model: Any, batch: Batch, count: int) -> tuple[Any, Any]:
    """(log-probabilities, trained tokens) of the answers in a packed batch, each (count,), float32; `model`
    is the causal model below PEFT.
    """
    inputs = {name: value for name, value in batch.items() if name not in (*NOT_FOR_THE_MODEL, *EXTRAS)}
    logps = token_logps(model, inputs)
    return sums_by_sequence(logps, inputs, count), sums_by_sequence(torch.ones_like(logps), inputs, count)


def ask_reference(
    trainer: Any, file: Path, record: dict[str, Any], collators: list[PreferenceCollator]
) -> None:
    """Give the `collators` the reference's log-probabilities: those in `file` where they are of this run,
    else by the trainer's model, which has not been trained yet. Raises `GateError` for those that are no
    numbers.
    """
    key = {name: record[name] for name in ("tokens_sha256", "base", "versions", "device")}
    key["compute_dtype"] = record["settings"]["bnb_4bit_compute_dtype"]
    known, digest = _read(file, json_hash(key)), json_hash(key)
    total = sum(len(collator.rows) for collator in collators)
    with progress("reference", total) as advance:
        for collator in collators:
            asked = [_ask(trainer, collator, number, known, advance) for number in range(len(collator.rows))]
            collator.reference = [one for one, _ in asked]
            if collator.others:
                collator.other_reference = [other for _, other in asked]
    check_not_repacked(trainer.model)
    write_json(file, {"key": digest, "logps": known})


def _ask(
    trainer: Any, collator: PreferenceCollator, number: int, known: Known, advance: Any
) -> tuple[list[float], list[float]]:
    """The log-probabilities of a packed row's answers and, under KTO, of the other answers to its prompts."""
    found = [_logps(trainer, batch, count, known) for batch, count in _batches(collator, number)]
    advance(1)
    return found[0], found[1] if len(found) > 1 else []


def _batches(collator: PreferenceCollator, number: int) -> Iterator[tuple[Batch, int]]:
    row = collator.rows[number]
    yield collator.plain([row]), len(row["roles"])
    if collator.others:
        yield collator.other_batch([number]), len(row["roles"])


def _logps(trainer: Any, batch: Batch, count: int, known: Known) -> list[float]:
    name = json_hash({part: batch[part].tolist() for part in ("input_ids", "labels", "position_ids")})
    if name not in known:
        with undisturbed(trainer.model), trainer.accelerator.autocast():
            model = causal_model(trainer.accelerator.unwrap_model(trainer.model))
            logps, _ = likelihoods(model, trainer._prepare_inputs(dict(batch)), count)
        if not bool(logps.isfinite().all()):
            raise GateError(
                "Q-TRAIN-020",
                "the reference's answers are no numbers: run stage base again, for its weights are damaged",
            )
        known[name] = logps.tolist()
    return known[name]


def _read(file: Path, key: str) -> Known:
    """The log-probabilities in `file`; none where it is not there, torn or another run's."""
    try:
        found = parse_object(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return dict(found["logps"]) if found.get("key") == key else {}
