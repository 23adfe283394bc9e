"""What the reference answers: log-probabilities by the model without what trains on it, computed once for
each row that is trained or watched.

They are kept in `models/checkpoints/reference.jsonl` by the hash of the packed row, a line each, for later
passes over the data and for a run that goes on.
"""

from pathlib import Path
from typing import Any

import torch

from pipeline.core.errors import DataError, GateError
from pipeline.core.hashing import json_hash
from pipeline.core.metrics_log import MetricsLog
from pipeline.core.publish import remove
from pipeline.models.chunked_loss import sums_by_sequence, token_logps
from pipeline.models.tuners import without_tuner
from pipeline.stages.train.dataset import NOT_FOR_THE_MODEL, PARTS
from pipeline.stages.train.monitoring.samples import undisturbed
from pipeline.stages.train.preference.collator import OTHERS
from pipeline.stages.train.step_stats import Batch

EXTRAS = ("roles", OTHERS)


def likelihoods(model: Any, batch: Batch, count: int) -> tuple[Any, Any]:
    """(log-probabilities, trained tokens) of the answers in a packed batch, each (count,), float32; `model`
    is the causal model below PEFT.
    """
    inputs = {name: value for name, value in batch.items() if name not in (*NOT_FOR_THE_MODEL, *EXTRAS)}
    logps = token_logps(model, inputs)
    return sums_by_sequence(logps, inputs, count), sums_by_sequence(torch.ones_like(logps), inputs, count)


class Reference:
    """The log-probabilities in `file` where they are of the run with this `record`
    (`pipeline.stages.train.record.describe`), and those asked since; only with `keep` are these written. With
    `again` the model is asked each time.
    """

    def __init__(self, file: Path, record: dict[str, Any], *, keep: bool = True, again: bool = False) -> None:
        key = {name: record[name] for name in ("base", "versions", "device")}
        self.key = json_hash(key | {"compute_dtype": record["settings"]["bnb_4bit_compute_dtype"]})
        rows = _read(file)
        if rows and rows[0].get("key") != self.key:
            if keep:
                remove(file)
            rows = []
        self.known: dict[str, list[float]] = {row["row"]: row["logps"] for row in rows}
        self.file = MetricsLog(file) if keep and not again else None
        self.again = again

    def logps(self, tuned: Any, model: Any, batch: Batch) -> Any:
        """Log-probabilities (n,), float32, of the n answers in a packed batch. `tuned` is the model with what
        trains on it, `model` the causal model below. Raises `GateError` for those that are no numbers.

        Each packed row is asked by itself, so that its numbers don't depend on what else is in the batch.
        """
        found, start = [], 0
        for answers, tokens in zip(batch["row_answers"], batch["row_tokens"], strict=True):
            row = {part: batch[part][:, start : start + tokens] for part in PARTS}
            found += self._of_row(tuned, model, row, answers)
            start += tokens
        return torch.tensor(found, device=batch["input_ids"].device)

    def _of_row(self, tuned: Any, model: Any, row: Batch, answers: int) -> list[float]:
        name = json_hash({part: row[part].tolist() for part in PARTS})
        if self.again or name not in self.known:
            with undisturbed(tuned), without_tuner(tuned):
                found, _ = likelihoods(model, row, answers)
            if not bool(found.isfinite().all()):
                raise GateError(
                    "Q-TRAIN-020",
                    "the reference's answers are no numbers: run stage base again, its weights are damaged",
                )
            self.known[name] = found.tolist()
            if self.file is not None:
                self.file.append({"key": self.key, "row": name, "logps": self.known[name]})
        return self.known[name]


def _read(file: Path) -> list[dict[str, Any]]:
    """The lines of `file`; none where it is missing, or damaged: it is made again then."""
    try:
        return MetricsLog(file).rows() if file.is_file() else []
    except DataError:
        remove(file)
        return []
