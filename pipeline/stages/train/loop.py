"""Training loop, from the first row to the last checkpoint: rows in an order drawn from the seed,
micro-batches with gradients that add up to an optimizer step, losses, evaluation, entire checkpoints, exact
resume, a stop that saves.

- Order, optimizers, schedule, clipping and float16's loss scale are those of transformers' Trainer (5.23), so
  runs end in the same bytes as with it. No random state is kept: each draw of a step is seeded by the run's
  seed, the step and the micro-batch (`drawn_for`).
- The loss is computed only at the trained positions and divided by the trained tokens (or pairs, or
  positions) of the entire optimizer step.
- A checkpoint is published completely (`checkpoints`). It is exact at any later moment too, even if a signal
  comes in the middle of the next step.
- Evaluation is a mean over tokens (a mean over rows would give more weight to packed rows with fewer tokens).
  It draws no random number. If a signal cut it short, the resumed run repeats it.

The module is longer than others, because a reader follows a run from `train` to its end in it. One step:
`epoch`, `optimizer_step`, `micro_batch`, `Reducer.micro_batch` (what depends on the number of processes;
it calls back), `forward_backward`, `compute_loss`, `loss_over`, `losses`. Methods override `losses`,
`next_batches`, `items_of` and `held_out_metrics`; distill also `optimizer_step`.
"""

import math
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NoReturn

import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, get_total_norm
from torch.utils.data import BatchSampler
from transformers import get_scheduler

from pipeline.config.methods import METHODS
from pipeline.config.sections import Training
from pipeline.core.errors import ConfigError, DataError, MachineError, Stopped
from pipeline.core.publish import read_json, remove, write_json
from pipeline.models.chunked_loss import chunked_loss, weighted_loss
from pipeline.models.liger_loss import fused_loss
from pipeline.models.runtime import drawn_for, give_back_holes
from pipeline.models.tuners import causal_model, tuner_in, tuner_on
from pipeline.planning.duration import interval, steps_per_epoch, total_steps, warmup_steps
from pipeline.stages.train import requests
from pipeline.stages.train.checkpoints import WRITING, defect, prune, publish_checkpoint, read_notes
from pipeline.stages.train.dataset import flattened, for_the_model
from pipeline.stages.train.invariants import check_not_repacked
from pipeline.stages.train.journal import Journal
from pipeline.stages.train.monitoring.samples import undisturbed
from pipeline.stages.train.reducer import Reducer
from pipeline.stages.train.run import RESTART, STATE, Run, run_id
from pipeline.stages.train.step_stats import Batch, Figures, Measures, StepStats, Sums

OPTIMIZER = "optimizer.pt"  # file of a checkpoint with the states of optimizer, schedule and scaler
# B's learning rate by A's, as the LoRA+ paper recommends (Hayou et al. 2024, arXiv:2402.12354)
LORA_PLUS_RATIO = 16
# names of parameters that weight decay would only pull away from their purpose
NOT_DECAYED = re.compile(r"bias|layernorm|rmsnorm|(^|[._])norm($|\.)")
# Free bytes below which a disk counts as full.
FULL = 1 << 20
# Forwards between two trims. After five forwards the holes had grown by 0.4 GB of 3.8, after 16 by 2.3 of
# 5.8.
TRIMMED_EVERY = 2


@dataclass
class Progress:
    """Progress of a run: optimizer steps, and with early stopping the lowest loss on the held-out rows, its
    step, and the evaluations since.
    """

    global_step: int = 0
    best_loss: float | None = None
    best_global_step: int | None = None
    evaluations_since: int = 0


class Trainer:
    """Trainer of the parameters in `run` that its tuner put on `model`, on batches that `collate` makes from
    `rows`. `reducer` shares the work with other processes, if there are any.

    It trains with `loss` (liger or chunked; `loss_reason` is why auto did not choose liger), and evaluates on
    the batches `held_out`. `answer` returns sample answers of the current model. `journal` gets every step
    and evaluation; it is None if this process does not write.

    In all methods `items` is the number that the loss is a mean over: the tokens, positions, pairs or answers
    of an optimizer step, or of the held-out rows.
    """

    def __init__(
        self,
        *,
        run: Run,
        reducer: Reducer,
        model: Any,
        rows: Any,
        collate: Any,
        loss: str,
        loss_reason: str,
        held_out: list[Batch],
        answer: Callable[[Any], list[dict[str, Any]]],
        journal: Journal | None,
    ) -> None:
        self.run = run
        self.settings = run.settings
        self.leads = run.leads
        self.interruption = run.interruption
        self.stopped: Stopped | None = None  # the stop that a signal has begun
        self.reducer = reducer
        self.model = model
        self.rows = rows
        self.collate = collate
        self.device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
        self.max_steps = total_steps(self.settings, len(rows))
        self.epoch_steps = steps_per_epoch(self.settings, len(rows))
        self.epoch_batches = math.ceil(len(rows) / self.settings.per_device_train_batch_size)
        self.progress = Progress()
        self.stats = StepStats()
        self.step_batches: list[Batch] = []  # the optimizer step's micro-batches
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer: Any = make_optimizer(model, self.settings)
        lowest = self.settings.min_lr_rate
        self.schedule: Any = get_scheduler(
            "cosine_with_min_lr" if lowest else self.settings.lr_scheduler_type,
            optimizer=self.optimizer,
            num_warmup_steps=warmup_steps(self.settings, len(rows)),
            num_training_steps=self.max_steps,
            scheduler_specific_kwargs={"min_lr_rate": lowest} if lowest else None,
        )
        self.scaler = torch.amp.GradScaler("cuda", enabled=self.compute_dtype() == torch.float16)
        self.loss = loss
        self.loss_reason = loss_reason
        self.token_loss = fused_loss if loss == "liger" else chunked_loss
        self.held_out = held_out
        self.answer = answer
        self.journal = journal
        self.pending_evaluation = False
        self.evaluated_step = -1
        self.forwards = 0

    @property
    def step(self) -> int:
        """The number of finished optimizer steps."""
        return self.progress.global_step

    # --- the run --------------------------------------------------------------------------------------------

    def train(self) -> None:
        """Train to the end, from the checkpoint that the run resumes from. Raises `Stopped` after a signal,
        `GateError` if a monitoring rule fails.
        """
        self.begin()
        with self.journal.begun(self.step) if self.journal else nullcontext():
            if self.pending_evaluation:  # A signal had cut it short.
                self.evaluate()
            with self.interruption.deferred(), self.reducer.saving_if_lost(self):
                while not self.is_over():
                    self.epoch()
        self.reducer.check_equal(self)
        self.take_best()

    def begin(self) -> None:
        """Turn on activation checkpointing and embedding noise if set, and restore the checkpoint's state."""
        settings = self.settings
        start = self.run.start
        layers = int(settings.gradient_checkpointing)
        if layers:
            self.model.activation_checkpointing_enable({"use_reentrant": False}, every_n_layers=layers)
        if settings.neftune_noise_alpha is not None:
            from transformers.integrations.neftune import activate_neftune

            activate_neftune(self.model, settings.neftune_noise_alpha)
        if settings.compiled:
            self.compile_graphs()
        if start is not None:
            self.read_state(start)
            self.pending_evaluation = bool(read_notes(start).get("pending_evaluation"))
            self.evaluated_step = -1 if self.pending_evaluation else self.step

    def compile_graphs(self) -> None:
        """Run forward and backward of a row alone and of two that are packed, and drop the gradients.

        The sizes that a graph is first used with decide how its sums are split. Here they are the same at
        every start, so a resumed run computes what an unbroken one does.
        """
        ids = self.rows[0]["input_ids"]
        half = len(ids) // 2
        self.model.train()
        for lengths in ([len(ids)], [half, len(ids) - half]):
            row = flattened([{"input_ids": ids, "labels": ids, "seq_lengths": lengths}])
            with drawn_for(self.settings.seed), self.autocast():
                self.token_loss(causal_model(self.model), self.on_device(row)).backward()
        self.optimizer.zero_grad()

    def epoch(self) -> None:
        """Train to the end of the pass, or of the run."""
        number, done = divmod(self.step, self.epoch_steps)
        batches = self.batches(number, done)
        for position in range(done, self.epoch_steps):
            figures = self.optimizer_step(self.next_batches(batches))
            self.progress.global_step += 1
            passed = min((position + 1) * self.settings.gradient_accumulation_steps, self.epoch_batches)
            self.stepped({"epoch": number + passed / self.epoch_batches, **figures})
            if self.is_over():
                return

    def stepped(self, row: dict[str, float]) -> None:
        """Record the step. Evaluate and save when that is due or asked for, and always at the last step."""
        last = self.step >= self.max_steps
        if self.journal:
            self.journal.step(self.step, row, self.stats)
        # Several processes would have to agree on a request first.
        asked = requests.take(self.run.checkpoints) if self.run.group is None else set()
        if self.held_out and (last or self.is_due(self.settings.eval_steps)):
            self.evaluate()
        elif self.held_out and requests.EVALUATION in asked and not METHODS[self.settings.method].prompts:
            self.evaluate(asked=True)
        if last or self.is_due(self.settings.save_steps) or requests.CHECKPOINT in asked:
            self.save()

    def is_due(self, every: int | Literal["epoch"]) -> bool:
        """Return True after a step at which what is done so often is done."""
        return self.step % interval(every, self.epoch_steps) == 0

    def is_over(self) -> bool:
        """Return True if the last step is done, or the held-out rows have not improved for long enough."""
        patience = self.settings.early_stopping_patience
        impatient = patience is not None and self.progress.evaluations_since >= patience
        return self.step >= self.max_steps or impatient

    def take_best(self) -> None:
        """Load the weights of the step with the lowest held-out loss, if training stops early."""
        best = self._best() if self.leads else None  # Only rank 0's weights are published.
        if best is None:
            return
        trouble = defect(best)
        if trouble:
            raise DataError("Q-TRAIN-035", f"{best}, the best adapter, is torn ({trouble}): {RESTART}")
        tuner_in(best).load(self.model, best)

    # --- rows -----------------------------------------------------------------------------------------------

    def batches(self, epoch: int, done: int) -> Iterator[Batch]:
        """Yield the micro-batches of a pass over the rows, without its first `done` optimizer steps.

        The order depends only on the seed and the number of the pass, so a resumed run has the same order.
        """
        order = list(range(len(self.rows)))
        if self.settings.order == "shuffled":
            generator = torch.Generator().manual_seed(self.settings.seed + epoch)
            order = torch.randperm(len(self.rows), generator=generator).tolist()
        batches = BatchSampler(order, self.settings.per_device_train_batch_size, drop_last=False)
        for numbers in islice(batches, done * self.settings.gradient_accumulation_steps, None):
            yield self.collate([self.rows[number] for number in numbers])

    def next_batches(self, batches: Iterator[Batch]) -> list[Batch]:
        """Return the next optimizer step's micro-batches, fewer at the end of a pass."""
        return list(islice(batches, self.settings.gradient_accumulation_steps))

    def items_of(self, batches: list[Batch]) -> int:
        """Count what the loss of an optimizer step is a mean over: tokens, pairs or answers."""
        return sum(batch["items"] for batch in batches)

    # --- an optimizer step ----------------------------------------------------------------------------------

    def optimizer_step(self, micro_batches: list[Batch]) -> dict[str, float]:
        """Run one optimizer step.

        Return its loss, learning_rate, and grad_norm, the gradient's norm before clipping.
        """
        self.step_batches = micro_batches
        self.stats = StepStats()
        items = torch.tensor(self.items_of(micro_batches), device=self.device)
        total = torch.tensor(0.0, device=self.device)
        for batch in micro_batches:
            total += self.micro_batch(batch, items)
        self.scaler.unscale_(self.optimizer)
        norm = self.clip()
        rate = self.schedule.get_last_lr()[0]
        scale = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.scaler.get_scale() >= scale:  # Otherwise float16 overflowed, and no step was made.
            self.schedule.step()
        self.optimizer.zero_grad()
        return {"loss": float(total), "learning_rate": rate, "grad_norm": norm}

    def micro_batch(self, batch: Batch, items: Any) -> torch.Tensor:
        """Return the share of the loss that a micro-batch of an optimizer step over `items` has, after its
        forward and backward. Then a pending signal is handled.
        """
        return self.reducer.micro_batch(self, batch, items)

    def forward_backward(self, batch: Batch, items: Any, number: int) -> torch.Tensor:
        """Run forward and backward of micro-batch `number` of an optimizer step over `items`.

        Return its share of the loss.
        """
        self.model.train()
        with drawn_for(self.settings.seed, self.step, number):
            loss = self.compute_loss(batch, items)
            torch.autograd.backward(self.scaler.scale(loss))
        return loss.detach()

    def clip(self) -> float:
        """Bound the gradients of an optimizer step. Return their norm before clipping.

        First every element is cut to ± `clip_value`, then what is left is scaled down to `max_grad_norm`.
        """
        if self.settings.clip_value is None:
            return float(clip_grad_norm_(self.trained, self.settings.max_grad_norm))
        gradients = [weight.grad for weight in self.trained if weight.grad is not None]
        norm = float(get_total_norm(gradients))
        clip_grad_value_(self.trained, self.settings.clip_value)
        clip_grad_norm_(self.trained, self.settings.max_grad_norm)
        return norm

    # --- the loss -------------------------------------------------------------------------------------------

    def compute_loss(self, batch: Batch, items: Any) -> torch.Tensor:
        """Return the method's loss of a micro-batch ÷ `items`, a scalar.

        It is counted in the step's statistics.
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

    # --- evaluation -----------------------------------------------------------------------------------------

    def evaluate(self, *, asked: bool = False) -> None:
        """Compute the mean loss over the items of all held-out rows, and sample answers.

        The journal gets both. Early stopping does not count an evaluation that was only `asked` for.
        """
        started = time.monotonic()
        if self.journal:
            self.journal.evaluation_begins(self.step, len(self.held_out))
        self.heed_signal()
        give_back_holes()  # The answers' caches would need memory in addition.
        # A process that left by itself would leave the others within a layer.
        with self.interruption.deferred(self.reducer.sharded):
            try:
                metrics = self.held_out_metrics()
                with self.autocast():
                    samples = self.answer(self.model) if self.leads or self.reducer.sharded else []
            except Stopped:
                self.save_and_stop()
        self.evaluated_step = self.step
        if not asked:
            self.evaluated(metrics["eval_loss"])
        if self.journal:
            seconds = round(time.monotonic() - started, 3)
            more = {"asked": True} if asked else {}
            self.journal.evaluation(self.step, metrics | {"samples": samples, "seconds": seconds} | more)

    def held_out_metrics(self) -> dict[str, Any]:
        """Return `eval_loss`, the mean over the items of all held-out rows, and the method's `measures`."""
        total = 0.0
        items = sum(batch["items"] for batch in self.held_out)
        measures = Measures()

        def measure(batch: Batch) -> Figures:
            loss, sums = self.loss_over(batch, 1)
            return [float(loss)], sums

        with undisturbed(self.model):
            figures = self.reducer.figures_of(self, self.held_out, measure)
        for (loss_sum,), sums in figures:
            total += loss_sum
            measures.add(sums)
        self.heed_signal()
        check_not_repacked(self.model)
        return {"eval_loss": total / items, **measures.record(items)}

    def evaluated(self, loss: float) -> None:
        """Count an evaluation of the held-out rows, if training may stop early."""
        if self.settings.early_stopping_patience is None:
            return
        best = self.progress.best_loss
        progress = self.progress
        if loss < (math.inf if best is None else best):
            progress.best_loss = loss
            progress.best_global_step = self.step
            progress.evaluations_since = 0
        else:
            progress.evaluations_since += 1

    # --- signals --------------------------------------------------------------------------------------------

    def heed_signal(self) -> None:
        """Save the state after the newest optimizer step and raise `Stopped` if a signal is pending."""
        self.reducer.heed_signal(self)

    def save_and_stop(self) -> NoReturn:
        """Publish the newest optimizer step's checkpoint if missing, and raise `Stopped` in all processes."""
        if self.stopped is None:
            with self.interruption.deferred():
                self.stopped = self._stop()
        raise self.stopped

    def _stop(self) -> Stopped:
        step = self.step
        number = self.interruption.received
        assert number is not None, "no signal has come"
        with self.reducer.stopping(self, number):
            self.save_newest()
        if not step:
            return Stopped(number, "not one step was done")
        return Stopped(number, f"checkpoint-{step} is complete, and the same command resumes from it")

    # --- checkpoints ----------------------------------------------------------------------------------------

    def save(self) -> None:
        """Publish the newest optimizer step's checkpoint if the weights of all processes are equal."""
        self.reducer.check_equal(self)
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
        due = bool(self.held_out) and (self.is_due(self.settings.eval_steps) or step >= self.max_steps)
        notes = {
            "step": step,
            "pending_evaluation": due and self.evaluated_step != step,
            "run": run_id(self.run.record),
        }
        self.run.metrics_log.sync()
        publish_checkpoint(written, self._checkpoint(step), notes)
        remove(folder / WRITING)
        prune(folder, self.settings.save_total_limit, self._best())

    def write_state(self, folder: Path) -> None:
        """Write the trained parameters, and the state that a run resumes from, into `folder`."""
        tuner_on(self.model).save(self.model, folder)
        parts = {"optimizer": self.optimizer, "schedule": self.schedule, "scaler": self.scaler}
        torch.save({name: part.state_dict() for name, part in parts.items()}, folder / OPTIMIZER)
        write_json(folder / STATE, asdict(self.progress))

    def read_state(self, checkpoint: Path) -> None:
        """Restore the state of the run at `checkpoint`.

        Raises `ConfigError` for a checkpoint of another version.
        """
        tuner_in(checkpoint).load(self.model, checkpoint)
        # Loading to the card would need twice the memory for a while. Optimizers move to it what belongs
        # there.
        states = torch.load(checkpoint / OPTIMIZER, map_location="cpu", weights_only=True)
        if "schedule" not in states:
            raise ConfigError(
                "Q-TRAIN-029",
                f"{checkpoint} is of a version with another training loop: put that version back to resume "
                f"it, or {RESTART}",
            )
        self.optimizer.load_state_dict(states["optimizer"])
        self.schedule.load_state_dict(states["schedule"])
        if states["scaler"]:  # empty if the run was on a CPU
            self.scaler.load_state_dict(states["scaler"])
        self.progress = Progress(**read_json(checkpoint / STATE, RESTART))

    def _checkpoint(self, step: int) -> Path:
        return self.run.checkpoints / f"checkpoint-{step}"

    def _best(self) -> Path | None:
        best = self.progress.best_global_step
        return self._checkpoint(best) if best else None

    # --- device ---------------------------------------------------------------------------------------------

    def compute_dtype(self) -> torch.dtype:
        """Return the type that a GPU computes in. On a CPU nothing is cast."""
        dtype: torch.dtype = getattr(torch, self.settings.bnb_4bit_compute_dtype)
        return dtype if self.device.type == "cuda" else torch.float32

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a context in which products are in `compute_dtype` and sums in float32."""
        dtype = self.compute_dtype()
        return nullcontext() if dtype == torch.float32 else torch.autocast("cuda", dtype)

    def on_device(self, value: Any) -> Any:
        """Return a batch with its tensors on the device that computes."""
        if isinstance(value, torch.Tensor):
            return value.to(self.device)
        if isinstance(value, dict):
            return {name: self.on_device(part) for name, part in value.items()}
        return value


def make_optimizer(model: Any, settings: Training) -> Any:
    """Return the optimizer of the trained parameters in `model`.

    With LoRA+, B has a learning rate of its own.
    """
    kind, options = kind_of(settings.optim)
    if "lora_plus" in settings.lora_variants:
        from peft.optimizers import create_loraplus_optimizer

        return create_loraplus_optimizer(
            model,
            kind,
            lr=settings.learning_rate,
            loraplus_lr_ratio=LORA_PLUS_RATIO,
            loraplus_weight_decay=settings.weight_decay,
            **options,
        )
    trained = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    plain = {name for name, _ in trained if NOT_DECAYED.search(name.lower())}
    groups = [
        {
            "params": [weight for name, weight in trained if name not in plain],
            "weight_decay": settings.weight_decay,
        },
        {"params": [weight for name, weight in trained if name in plain], "weight_decay": 0.0},
    ]
    return kind(groups, lr=settings.learning_rate, **options)


def kind_of(optim: str) -> tuple[Any, dict[str, Any]]:
    """Return the class that `train.optim` names, and its options."""
    betas = (0.9, 0.999)
    eps = 1e-8
    if optim == "sgd":
        return torch.optim.SGD, {}
    if optim.startswith("adamw_torch"):
        fused: dict[str, Any] = {"fused": True} if "fused" in optim else {}
        return torch.optim.AdamW, {"betas": betas, "eps": eps} | fused
    from bitsandbytes.optim import AdamW, Lion

    options = {"betas": betas, "optim_bits": 8 if "8bit" in optim else 32, "is_paged": "paged" in optim}
    if "lion" in optim:
        return Lion, options
    return AdamW, options | {"eps": eps}
