"""transformers' Trainer with what a night alone needs: whole checkpoints, exact resume, a stop that saves, an
account of every step.

What is changed, and why:
- the loss is taken at the trained positions only and divided by the trained tokens (or pairs, or positions)
  of the entire optimizer step;
- a checkpoint is published completely (`checkpoints`), with the random state from right after its optimizer
  step, so that it is exact at any later moment too: also where a signal comes in the middle of the next step;
- evaluation is the mean over tokens (the library's is a mean over rows, and packed rows hold more or fewer),
  draws no random number, and is made up for by the resumed run where a signal cut it short.
"""

import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from transformers import EarlyStoppingCallback

from pipeline.config.sections import CHECKPOINTS_KEPT
from pipeline.core.errors import DataError, MachineError, Stopped
from pipeline.core.publish import remove
from pipeline.models.chunked_loss import chunked_loss, weighted_loss
from pipeline.models.liger_loss import fused_loss
from pipeline.models.runtime import give_back_holes
from pipeline.models.tuners import causal_model
from pipeline.stages.train.checkpoints import WRITING, defect, prune, publish_checkpoint, read_notes, step_of
from pipeline.stages.train.dataset import for_the_model
from pipeline.stages.train.monitoring.samples import undisturbed
from pipeline.stages.train.proofs import check_not_repacked
from pipeline.stages.train.randomness import random_state, random_state_of
from pipeline.stages.train.run import run_in
from pipeline.stages.train.several.group import Lost
from pipeline.stages.train.several.sharing import Figures, Sharing
from pipeline.stages.train.step_stats import Batch, Measures, StepStats, Sums

FULL = 1 << 20  # bytes free on a disk that is taken for full


class QuenchTrainer(Sharing):
    """Trains with `loss` (liger or chunked), evaluates on the batches `held_out`; `answer` gives sample
    answers of the model as it is. The run's metrics log is brought to the disk before a checkpoint is.
    """

    def __init__(
        self,
        *,
        loss: str,
        held_out: list[Batch],
        answer: Callable[[Any], list[dict[str, Any]]],
        **rest: Any,
    ) -> None:
        super().__init__(**rest)
        self.loss, self.token_loss = loss, fused_loss if loss == "liger" else chunked_loss
        self.held_out, self.answer, start = held_out, answer, self.run.start
        self.pending_evaluation = start is not None and read_notes(start).get("pending_evaluation", False)
        self.model_accepts_loss_kwargs = True  # `compute_loss` divides by the step's trained tokens itself
        self.stats = StepStats()
        self.answered: Any = 1  # the assistant's tokens in the optimizer step, as the library counts them
        self.evaluated_step = step_of(start) if start is not None and not self.pending_evaluation else -1
        # of the random number generators, right after the newest optimizer step
        self.after_step = random_state()
        self._writing: Path | None = None

    # --- the loss -------------------------------------------------------------------------------------------

    def compute_loss(
        self, model: Any, inputs: Batch, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Cross entropy of the micro-batch's trained tokens ÷ the step's trained tokens: a scalar."""
        loss, measures = self.loss_over(model, inputs, num_items_in_batch)
        self.stats.add(inputs, loss * num_items_in_batch, measures)
        return loss

    def loss_over(self, model: Any, inputs: Batch, items: Any) -> tuple[torch.Tensor, Sums]:
        """Sum of a batch's losses ÷ `items`, a scalar, and what else the method measures of it."""
        # autocast is wrapped round the outer forward, which this loss goes past
        with self.accelerator.autocast():
            return self.losses(causal_model(self.accelerator.unwrap_model(model)), inputs, items)

    def losses(self, model: Any, inputs: Batch, items: Any) -> tuple[torch.Tensor, Sums]:
        """`loss_over` of the causal model itself: the cross entropies of the trained tokens."""
        tensors = for_the_model(inputs)
        if "weights" in inputs:
            return weighted_loss(model, tensors, inputs["weights"], items), {}
        return self.token_loss(model, tensors, items), {}

    def _get_num_items_in_batch(self, batch_samples: list[Batch], device: Any) -> Any:
        """What the loss of an optimizer step is a mean over; the library knows tokens only."""
        self.answered = super()._get_num_items_in_batch(batch_samples, device)
        return torch.tensor(sum(batch["items"] for batch in batch_samples), device=device)

    def floating_point_ops(self, inputs: Batch) -> int:
        """Not counted: nothing reads it, and a checkpoint from the middle of a step would differ by it."""
        return 0

    # --- evaluation -----------------------------------------------------------------------------------------

    def evaluate(self, *arguments: Any, **more: Any) -> dict[str, float]:
        """Mean loss over the items of all held-out rows, with sample answers; the callbacks get both."""
        started, step = time.monotonic(), self.state.global_step
        self.heed_signal()
        give_back_holes()  # the answers' caches would lie beside them
        with self.interruption.deferred(self.sharded):  # who left alone would leave the others in a layer
            try:
                metrics = self.held_out_metrics()
                samples = self.answer(self.model) if self.leads or self.sharded else []
            except Stopped:
                self.save_and_stop()
        self.evaluated_step = step
        self.log({"eval_loss": metrics["eval_loss"]})
        seconds = round(time.monotonic() - started, 3)
        self.control: Any = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics | {"samples": samples, "seconds": seconds}
        )
        return metrics

    def held_out_metrics(self) -> dict[str, Any]:
        """`eval_loss`, the mean loss over the items of all held-out rows, and the method's `measures`."""
        total, items, measures = 0.0, sum(batch["items"] for batch in self.held_out), Measures()

        def measure(batch: Batch) -> Figures:
            loss, sums = self.loss_over(self.model, self._prepare_inputs(dict(batch)), 1)
            return [float(loss)], sums

        with undisturbed(self.model):
            figures = self.figures_of(self.held_out, measure)
        for (loss_sum,), sums in figures:
            total += loss_sum
            measures.add(sums)
        self.heed_signal()
        check_not_repacked(self.model)
        return {"eval_loss": total / items, **measures.record(items)}

    def _run_epoch(self, *arguments: Any, **more: Any) -> None:
        self.make_up_for_evaluation()
        if self.is_over():
            self.control.should_training_stop = True
            return
        with self.interruption.deferred():
            try:
                with self.group.noticing() if self.group else nullcontext():
                    super()._run_epoch(*arguments, **more)
            except Lost:
                self.save_newest()
                raise

    def _finalize_training(self, *arguments: Any, **more: Any) -> Any:
        self.make_up_for_evaluation()  # where all epochs were done, no epoch has
        self.check_equal()
        best = self._best() if self.leads else None
        self.args.load_best_model_at_end &= self.leads  # only what rank 0 has is published
        if best is not None and self.args.load_best_model_at_end:
            if trouble := defect(best):
                raise DataError(
                    "Q-TRAIN-035",
                    f"{best}, the best adapter, is torn ({trouble}): start again with `python -m pipeline "
                    "train --no-resume`",
                )
            # the state may hold the path of another place, or of the writing of it
            self.state.best_model_checkpoint = str(best)
        return super()._finalize_training(*arguments, **more)

    def make_up_for_evaluation(self) -> None:
        """Evaluate the step that was gone on from, where a signal had cut its evaluation short."""
        if self.pending_evaluation:
            self.pending_evaluation = False
            self._determine_best_metric(metrics=self._evaluate(None, None), trial=None)

    def is_over(self) -> bool:
        """Whether the step resumed from was the last: the library would do one more before it looks."""
        out_of_patience = any(
            callback.early_stopping_patience_counter >= callback.early_stopping_patience
            for callback in self.callback_handler.callbacks
            if isinstance(callback, EarlyStoppingCallback)
        )
        return self.state.global_step >= self.state.max_steps or out_of_patience

    # --- checkpoints ----------------------------------------------------------------------------------------

    def save_newest(self) -> None:
        """Publish a checkpoint of the newest optimizer step, unless there is one; rank 0 alone."""
        if self.leads and self.state.global_step and defect(self._checkpoint(self.state.global_step)):
            self._write_checkpoint(self.model, None)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self.check_equal()
        if self.leads:
            self._write_checkpoint(model, trial)

    def _write_checkpoint(self, model: Any, trial: Any) -> None:
        step, folder = self.state.global_step, Path(self.args.output_dir)
        self._writing = folder / WRITING
        remove(self._writing)
        try:
            super()._save_checkpoint(model, trial)
        except Exception as error:  # PyTorch and safetensors have errors of their own for a full disk
            remove(folder / WRITING)
            if "No space left" in str(error) or shutil.disk_usage(folder).free < FULL:
                raise MachineError(
                    "Q-TRAIN-006",
                    f"{folder} has no room for a checkpoint: make room, and the same command goes on from "
                    "the last one",
                ) from error
            raise
        finally:
            self._writing = None
        due = bool(self.held_out) and (step % self.args.eval_steps == 0 or step >= self.state.max_steps)
        notes = {
            "step": step,
            "pending_evaluation": due and self.evaluated_step != step,
            "run": run_in(folder),
        }
        self.run.metrics_log.sync()
        publish_checkpoint(folder / WRITING / f"checkpoint-{step}", self._checkpoint(step), notes)
        remove(folder / WRITING)
        best = self._best()
        if best is not None:
            self.state.best_model_checkpoint = str(best)
        prune(folder, CHECKPOINTS_KEPT, best)

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._writing or self.args.output_dir)

    def _save_rng_state(self, output_dir: str) -> None:
        with random_state_of(self.after_step):
            super()._save_rng_state(output_dir)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        super()._load_rng_state(checkpoint)
        self.after_step = random_state()

    def _checkpoint(self, step: int) -> Path:
        return Path(self.args.output_dir) / f"checkpoint-{step}"

    def _best(self) -> Path | None:
        return self._checkpoint(self.state.best_global_step) if self.state.best_global_step else None
