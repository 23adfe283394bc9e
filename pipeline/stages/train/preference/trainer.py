"""Trainer of preferences: a loss that is a mean over the step's pairs (KTO: answers), and its measures."""

from pathlib import Path
from typing import Any

import torch

from pipeline.chat.sequences import CHOSEN, REJECTED
from pipeline.core.errors import DataError, GateError
from pipeline.core.hashing import json_hash
from pipeline.core.metrics_log import MetricsLog
from pipeline.core.publish import remove
from pipeline.models.chunked_loss import sums_by_sequence, token_logps
from pipeline.models.preference_losses import Likelihoods, kto_losses, pair_losses
from pipeline.models.tuners import as_at_start
from pipeline.stages.train.dataset import OTHERS, PARTS, for_the_model
from pipeline.stages.train.loop import Trainer
from pipeline.stages.train.monitoring.samples import undisturbed
from pipeline.stages.train.step_stats import Batch, Sums


def likelihoods(model: Any, batch: Batch, count: int) -> tuple[Any, Any]:
    """Return (log-probabilities, trained tokens) of the answers in a packed batch, each (count,), float32.
    `model` is the causal model below PEFT.
    """
    inputs = for_the_model(batch)
    logps = token_logps(model, inputs)
    return sums_by_sequence(logps, inputs, count), sums_by_sequence(torch.ones_like(logps), inputs, count)


class Reference:
    """Reference answers: log-probabilities by the model as it was before its first step (without its trained
    part, or with what is in `previous`, from which training goes on), of rows that are trained or watched.
    Each row is computed once, for later passes over the data and for a run that resumes.

    `file` has a line for each packed row, by its hash, of the run with this `record`
    (`pipeline.stages.train.run.describe`). It is written only with `keep`. With `again` the model is
    queried each time.
    """

    def __init__(
        self,
        file: Path,
        record: dict[str, Any],
        *,
        previous: Path | None = None,
        keep: bool = True,
        again: bool = False,
    ) -> None:
        names = ("base", "previous_sha256", "versions", "device")
        key = {name: record[name] for name in names if name in record}
        self.key = json_hash(key | {"compute_dtype": record["settings"]["bnb_4bit_compute_dtype"]})
        rows = _read(file)
        if rows and rows[0].get("key") != self.key:
            if keep:
                remove(file)
            rows = []
        self.known: dict[str, list[float]] = {row["row"]: row["logps"] for row in rows}
        self.file = MetricsLog(file) if keep and not again else None
        self.previous = previous
        self.again = again

    def logps(self, tuned: Any, model: Any, batch: Batch) -> Any:
        """Return log-probabilities (n,), float32, of the n answers in a packed batch. `tuned` is the model
        with its trained part, `model` the causal model below. Raises `GateError` for those that are not
        numbers.

        Each packed row is computed by itself, so that its numbers don't depend on what else is in the batch.
        """
        logps = []
        start = 0
        for answers, tokens in zip(batch["row_answers"], batch["row_tokens"], strict=True):
            row = {part: batch[part][:, start : start + tokens] for part in PARTS}
            logps += self._of_row(tuned, model, row, answers)
            start += tokens
        return torch.tensor(logps, device=batch["input_ids"].device)

    def _of_row(self, tuned: Any, model: Any, row: Batch, answers: int) -> list[float]:
        name = json_hash({part: row[part].tolist() for part in PARTS})
        if self.again or name not in self.known:
            with undisturbed(tuned), as_at_start(tuned, self.previous):
                logps, _ = likelihoods(model, row, answers)
            if not bool(logps.isfinite().all()):
                raise GateError(
                    "Q-TRAIN-020",
                    "the reference's answers are not numbers: run stage base again, its weights are damaged",
                )
            self.known[name] = logps.tolist()
            if self.file is not None:
                self.file.append({"key": self.key, "row": name, "logps": self.known[name]})
        return self.known[name]


def _read(file: Path) -> list[dict[str, Any]]:
    """Return the lines of `file`, or [] if it is missing or damaged.

    A damaged file is removed and made again.
    """
    try:
        return MetricsLog(file).rows()
    except DataError:
        remove(file)
        return []


class PreferenceTrainer(Trainer):
    """Trainer with the loss of `settings.method`. `reference` is None if the method has none. `weights` are
    KTO's, for answers with a thumb up and down.
    """

    def __init__(
        self, *, reference: Reference | None, weights: tuple[float, float] = (1.0, 1.0), **rest: Any
    ) -> None:
        super().__init__(**rest)
        self.reference = reference
        self.weights = weights

    def losses(self, model: Any, inputs: Batch, items: Any) -> tuple[torch.Tensor, Sums]:
        """Return the summed losses of a batch's pairs or answers ÷ `items`, and its measures' sums."""
        roles = inputs["roles"]
        settings = self.settings
        # The reference runs before the forward that keeps activations. KTO's other answers run after it,
        # because autocast would keep copies of the adapter's weights that were made without a gradient.
        reference = self.reference_logps(model, inputs)
        logps, tokens = likelihoods(model, inputs, len(roles))
        answers = Likelihoods(logps, torch.zeros_like(logps) if reference is None else reference, tokens)
        chosen = answers.of(roles == CHOSEN)
        rejected = answers.of(roles == REJECTED)
        if settings.method == "kto":
            divergence = self.divergence(model, inputs)
            losses, margins = kto_losses(answers, roles == CHOSEN, divergence, settings.beta, self.weights)
            extra: Sums = {"kl": (divergence, 1)}
        else:
            losses, margins = pair_losses(
                settings.method,
                chosen,
                rejected,
                beta=settings.beta,
                gamma=settings.gamma,
                sft_weight=settings.sft_weight,
            )
            extra = {}
        return losses.sum() / items, extra | measured(chosen, rejected, margins, self.reference is not None)

    def reference_logps(self, model: Any, batch: Batch) -> Any:
        """Return the reference's log-probabilities (n,) of a batch's answers; None without a reference."""
        return self.reference and self.reference.logps(self.model, model, batch)

    def divergence(self, model: Any, inputs: Batch) -> Any:
        """Return KTO's z, at least 0: mean of log π ÷ reference over other answers to the batch's prompts."""
        others = inputs[OTHERS]
        with torch.no_grad():
            logps, _ = likelihoods(model, others, len(inputs["roles"]))
            return (logps - self.reference_logps(model, others)).mean().clamp(min=0)


def measured(chosen: Likelihoods, rejected: Likelihoods, margins: Any, has_reference: bool) -> Sums:
    """Return the sums of the measures of pairs or answers: correct rankings, and log-probabilities."""
    sums: Sums = {
        "accuracy": ((margins > 0).float().sum(), len(margins)),
        "margin": (margins.sum(), len(margins)),
        "chosen_logp": (chosen.logps.sum(), len(chosen.logps)),
        "rejected_logp": (rejected.logps.sum(), len(rejected.logps)),
    }
    if has_reference:  # By how much each has become likelier than it was.
        sums["chosen_gain"] = chosen.ratio.sum(), len(chosen.logps)
        sums["rejected_gain"] = rejected.ratio.sum(), len(rejected.logps)
    return sums
