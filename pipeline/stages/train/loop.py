"""Training loop: rows in an order drawn from the seed, micro-batches with gradients that add up to an
optimizer step, and the state in a checkpoint.

Order, optimizers, schedule, clipping and float16's loss scale are those of transformers' Trainer (5.23), so
runs end in the same bytes as with it. No random state is kept: each draw of a step is seeded by the run's
seed, the step and the micro-batch (`drawn_for`).
"""

import math
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, get_total_norm
from torch.utils.data import BatchSampler
from transformers import get_scheduler

from pipeline.config.sections import Training
from pipeline.core.errors import ConfigError
from pipeline.core.publish import read_json, write_json
from pipeline.models.runtime import drawn_for
from pipeline.models.tuners import tuner_in, tuner_on
from pipeline.planning.duration import steps_per_epoch, total_steps, warmup_steps
from pipeline.stages.train.run import RESTART, STATE, Run
from pipeline.stages.train.step_stats import Batch, StepStats

OPTIMIZER = "optimizer.pt"  # file of a checkpoint with the states of optimizer, schedule and scaler
# B's learning rate by A's, as the LoRA+ paper recommends (Hayou et al. 2024, arXiv:2402.12354)
LORA_PLUS_RATIO = 16
# names of parameters that weight decay would only pull away from their purpose
NOT_DECAYED = re.compile(r"bias|layernorm|rmsnorm|(^|[._])norm($|\.)")


@dataclass
class Progress:
    """Progress of a run: optimizer steps, and with early stopping the lowest loss on the held-out rows, its
    step, and the evaluations since.
    """

    global_step: int = 0
    best_loss: float | None = None
    best_global_step: int | None = None
    evaluations_since: int = 0


class Loop:
    """Loop that trains in `run` the parameters that its tuner put on `model`, on batches that `collate`
    makes from `rows`.
    """

    def __init__(self, *, run: Run, model: Any, rows: Any, collate: Any) -> None:
        self.run = run
        self.settings = run.settings
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
        self.schedule: Any = get_scheduler(
            self.settings.lr_scheduler_type,
            optimizer=self.optimizer,
            num_warmup_steps=warmup_steps(self.settings, len(rows)),
            num_training_steps=self.max_steps,
        )
        self.scaler = torch.amp.GradScaler("cuda", enabled=self.compute_dtype() == torch.float16)

    @property
    def step(self) -> int:
        """The number of finished optimizer steps."""
        return self.progress.global_step

    # --- rows -----------------------------------------------------------------------------------------------

    def batches(self, epoch: int, done: int) -> Iterator[Batch]:
        """Yield the micro-batches of a pass over the rows, without those of its first `done` optimizer
        steps.

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

    # --- steps ----------------------------------------------------------------------------------------------

    def epoch(self) -> None:
        """Train to the end of the pass, or of the run."""
        number, done = divmod(self.step, self.epoch_steps)
        batches = self.batches(number, done)
        for position in range(done, self.epoch_steps):
            figures = self.optimize(self.next_batches(batches))
            self.progress.global_step += 1
            passed = min((position + 1) * self.settings.gradient_accumulation_steps, self.epoch_batches)
            self.stepped({"epoch": number + passed / self.epoch_batches, **figures})
            if self.is_over():
                return

    def optimize(self, micro_batches: list[Batch]) -> dict[str, float]:
        """Run one optimizer step. Return its loss, learning_rate, and grad_norm, the gradient's norm before
        clipping.
        """
        self.step_batches = micro_batches
        self.stats = StepStats()
        items = torch.tensor(self.items_of(micro_batches), device=self.device)
        total = torch.tensor(0.0, device=self.device)
        for batch in micro_batches:
            total += self.training_step(batch, items)
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

    def training_step(self, batch: Batch, items: Any) -> torch.Tensor:
        """Run forward and backward of a micro-batch of an optimizer step over `items`. Return its share of
        the loss.
        """
        self.model.train()
        with drawn_for(self.settings.seed, self.step, self.stats.batches):
            loss = self.compute_loss(batch, items)
            torch.autograd.backward(self.scaler.scale(loss))
        return loss.detach()

    def compute_loss(self, batch: Batch, items: Any) -> torch.Tensor:
        """Return the sum of a micro-batch's losses ÷ `items`, a scalar."""
        raise NotImplementedError

    def stepped(self, row: dict[str, float]) -> None:
        """Record, evaluate and save after an optimizer step."""
        raise NotImplementedError

    def is_over(self) -> bool:
        """Return True if the last step is done, or the held-out rows have not improved for long enough."""
        patience = self.settings.early_stopping_patience
        impatient = patience is not None and self.progress.evaluations_since >= patience
        return self.step >= self.max_steps or impatient

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

    # --- checkpoints ----------------------------------------------------------------------------------------

    def write_state(self, folder: Path) -> None:
        """Write the trained parameters, and the state that a run resumes from, into `folder`."""
        tuner_on(self.model).save(self.model, folder)
        parts = {"optimizer": self.optimizer, "schedule": self.schedule, "scaler": self.scaler}
        torch.save({name: part.state_dict() for name, part in parts.items()}, folder / OPTIMIZER)
        write_json(folder / STATE, asdict(self.progress))

    def read_state(self, checkpoint: Path) -> None:
        """Restore the state of the run at `checkpoint`. Raises `ConfigError` for a checkpoint of another
        version.
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


def make_optimizer(model: Any, settings: Training) -> Any:
    """Return the optimizer of the trained parameters in `model`. With LoRA+ B has a learning rate of its
    own.
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
