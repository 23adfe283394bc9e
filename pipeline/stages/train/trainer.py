"""Trainer: losses, evaluation, whole checkpoints, exact resume, a stop that saves, a record of every step.

- The loss is computed only at the trained positions and divided by the trained tokens (or pairs, or
  positions) of the entire optimizer step.
- A checkpoint is published completely (`checkpoints`). It is exact at any later moment too, even if a signal
  comes in the middle of the next step.
- Evaluation is a mean over tokens (a mean over rows would give more weight to packed rows with fewer tokens).
  It draws no random number. If a signal cut it short, the resumed run repeats it.
"""

import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from pipeline.core.errors import DataError, MachineError, Stopped
from pipeline.core.publish import remove
from pipeline.models.chunked_loss import chunked_loss, weighted_loss
from pipeline.models.liger_loss import fused_loss
from pipeline.models.runtime import give_back_holes
from pipeline.models.tuners import causal_model, tuner_in
from pipeline.stages.train.checkpoints import WRITING, defect, prune, publish_checkpoint, read_notes
from pipeline.stages.train.dataset import for_the_model
from pipeline.stages.train.distributed.group import Lost
from pipeline.stages.train.distributed.sharing import Sharing
from pipeline.stages.train.invariants import check_not_repacked
from pipeline.stages.train.journal import Journal
from pipeline.stages.train.monitoring.samples import undisturbed
from pipeline.stages.train.run import RESTART, run_id
from pipeline.stages.train.step_stats import Batch, Figures, Measures, Sums

# Free bytes below which a disk counts as full.
FULL = 1 << 20
# Forwards between two trims. After five forwards the holes had grown by 0.4 GB of 3.8, after 16 by 2.3 of
# 5.8.
TRIMMED_EVERY = 2


class QuenchTrainer(Sharing):
    """Trainer with `loss` (liger or chunked; `loss_reason` is why auto did not choose liger), evaluated on
    the batches `held_out`. `answer` returns sample answers of the current model. `journal` gets every
    step and evaluation; it is None if this process does not write.
    """

    def __init__(
        self,
        *,
        loss: str,
        loss_reason: str,
        held_out: list[Batch],
        answer: Callable[[Any], list[dict[str, Any]]],
        journal: Journal | None,
        **rest: Any,
    ) -> None:
        super().__init__(**rest)
        self.loss = loss
        self.loss_reason = loss_reason
        self.token_loss = fused_loss if loss == "liger" else chunked_loss
        self.held_out = held_out
        self.answer = answer
        self.journal = journal
        self.pending_evaluation = False
        self.evaluated_step = -1
        self.forwards = 0

    # --- the loss -------------------------------------------------------------------------------------------

    def compute_loss(self, batch: Batch, items: Any) -> torch.Tensor:
        """Return the cross entropy of the micro-batch's trained tokens ÷ the step's trained tokens, a
        scalar.
        """
        # With a GPU a step's tensors are there, and a search of main memory for holes would only cost time.
        if self.forwards % TRIMMED_EVERY == 0 and self.device.type == "cpu":
            give_back_holes()
        self.forwards += 1
        loss, measures = self.loss_over(batch, items)
        self.stats.add(batch, loss * items, measures)
        return loss

    def loss_over(self, batch: Batch, items: Any) -> tuple[torch.Tensor, Sums]:
        """Return the sum of a batch's losses ÷ `items`, a scalar, and the method's other measures of it."""
        with self.autocast():
            return self.losses(causal_model(self.model), self.on_device(batch), items)

    def losses(self, model: Any, inputs: Batch, items: Any) -> tuple[torch.Tensor, Sums]:
        """Return `loss_over` of the causal model itself: the cross entropies of the trained tokens."""
        tensors = for_the_model(inputs)
        if "weights" in inputs:
            return weighted_loss(model, tensors, inputs["weights"], items), {}
        return self.token_loss(model, tensors, items), {}

    # --- the run --------------------------------------------------------------------------------------------

    def train(self) -> None:
        """Train to the end, from the checkpoint that the run resumes from. Raises `Stopped` after a signal,
        `GateError` if a monitoring rule fails.
        """
        self.begin()
        with self.journal.begun(self.step) if self.journal else nullcontext():
            if self.pending_evaluation:  # A signal had cut it short.
                self.evaluate()
            with self.interruption.deferred():
                try:
                    with self.group.noticing() if self.group else nullcontext():
                        while not self.is_over():
                            self.epoch()
                except Lost:
                    self.save_newest()
                    raise
        self.check_equal()
        self.take_best()

    def begin(self) -> None:
        """Turn on activation checkpointing and embedding noise as the settings ask, and restore the
        checkpoint's state.
        """
        settings = self.settings
        start = self.run.start
        layers = int(settings.gradient_checkpointing)
        if layers:
            self.model.activation_checkpointing_enable({"use_reentrant": False}, every_n_layers=layers)
        if settings.neftune_noise_alpha is not None:
            from transformers.integrations.neftune import activate_neftune

            activate_neftune(self.model, settings.neftune_noise_alpha)
        if start is not None:
            self.read_state(start)
            self.pending_evaluation = bool(read_notes(start).get("pending_evaluation"))
            self.evaluated_step = -1 if self.pending_evaluation else self.step

    def stepped(self, row: dict[str, float]) -> None:
        """Record the step. Evaluate and save when that is due, and always at the last step."""
        last = self.step >= self.max_steps
        if self.journal:
            self.journal.step(self.step, row, self.stats)
        if self.held_out and (last or self.step % self.settings.eval_steps == 0):
            self.evaluate()
        if last or self.step % self.settings.save_steps == 0:
            self.save()

    def take_best(self) -> None:
        """Load the weights of the step with the lowest held-out loss, if training stops early."""
        best = self._best() if self.leads else None  # Only rank 0's weights are published.
        if best is None:
            return
        trouble = defect(best)
        if trouble:
            raise DataError("Q-TRAIN-035", f"{best}, the best adapter, is torn ({trouble}): {RESTART}")
        tuner_in(best).load(self.model, best)

    # --- evaluation -----------------------------------------------------------------------------------------

    def evaluate(self) -> None:
        """Compute the mean loss over the items of all held-out rows, and sample answers. The journal gets
        both.
        """
        started = time.monotonic()
        self.heed_signal()
        give_back_holes()  # The answers' caches would need memory in addition.
        # A process that left by itself would leave the others within a layer.
        with self.interruption.deferred(self.sharded):
            try:
                metrics = self.held_out_metrics()
                with self.autocast():
                    samples = self.answer(self.model) if self.leads or self.sharded else []
            except Stopped:
                self.save_and_stop()
        self.evaluated_step = self.step
        self.evaluated(metrics["eval_loss"])
        if self.journal:
            seconds = round(time.monotonic() - started, 3)
            self.journal.evaluation(self.step, metrics | {"samples": samples, "seconds": seconds})

    def held_out_metrics(self) -> dict[str, Any]:
        """Return `eval_loss`, the mean loss over the items of all held-out rows, and the method's
        `measures`.
        """
        total = 0.0
        items = sum(batch["items"] for batch in self.held_out)
        measures = Measures()

        def measure(batch: Batch) -> Figures:
            loss, sums = self.loss_over(batch, 1)
            return [float(loss)], sums

        with undisturbed(self.model):
            figures = self.figures_of(self.held_out, measure)
        for (loss_sum,), sums in figures:
            total += loss_sum
            measures.add(sums)
        self.heed_signal()
        check_not_repacked(self.model)
        return {"eval_loss": total / items, **measures.record(items)}

    # --- checkpoints ----------------------------------------------------------------------------------------

    def save(self) -> None:
        """Publish a checkpoint of the newest optimizer step, after a check that all processes have the
        same.
        """
        self.check_equal()
        if self.leads:
            self.save_checkpoint()

    def save_newest(self) -> None:
        """Publish a checkpoint of the newest optimizer step, unless it exists. Only rank 0 does."""
        if self.leads and self.step and defect(self._checkpoint(self.step)):
            self.save_checkpoint()

    def save_checkpoint(self) -> None:
        """Publish a checkpoint of the newest optimizer step, after its journal is on the disk. Raises
        `MachineError` if the disk is full.
        """
        step = self.step
        folder = self.run.checkpoints
        written = folder / WRITING / f"checkpoint-{step}"
        remove(folder / WRITING)
        try:
            written.mkdir(parents=True)
            self.write_state(written)
        # PyTorch and safetensors raise errors of their own for a full disk.
        except Exception as error:
            remove(folder / WRITING)
            if "No space left" in str(error) or shutil.disk_usage(folder).free < FULL:
                raise MachineError(
                    "Q-TRAIN-006",
                    f"{folder} has no room for a checkpoint: make room, and the same command resumes from "
                    "the last one",
                ) from error
            raise
        due = bool(self.held_out) and (step % self.settings.eval_steps == 0 or step >= self.max_steps)
        notes = {
            "step": step,
            "pending_evaluation": due and self.evaluated_step != step,
            "run": run_id(self.run.record),
        }
        self.run.metrics_log.sync()
        publish_checkpoint(written, self._checkpoint(step), notes)
        remove(folder / WRITING)
        prune(folder, self.settings.save_total_limit, self._best())

    def _checkpoint(self, step: int) -> Path:
        return self.run.checkpoints / f"checkpoint-{step}"

    def _best(self) -> Path | None:
        best = self.progress.best_global_step
        return self._checkpoint(best) if best else None
