"""Reducer: the part of the training loop that depends on the number of processes, which is micro-batches,
evaluation, signals and checks before saving.

The loop (`pipeline.stages.train.loop`) is given one: `Alone` in a run of one process, or the `GroupReducer`
of `pipeline.stages.train.distributed`, which shares each optimizer step with the other processes. A reducer
gets the loop as an argument and keeps no reference to it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NoReturn, Protocol

import torch

from pipeline.core.interruption import Interruption
from pipeline.stages.train.step_stats import Batch, Figures, StepStats


class TrainerPart(Protocol):
    """Part of `pipeline.stages.train.loop.Trainer` that a reducer uses."""

    interruption: Interruption
    step_batches: list[Batch]
    stats: StepStats
    optimizer: Any
    device: torch.device

    @property
    def step(self) -> int:
        """The number of finished optimizer steps."""
        ...

    def forward_backward(self, batch: Batch, items: Any, number: int) -> torch.Tensor:
        """Run forward and backward of micro-batch `number` of an optimizer step over `items`."""
        ...

    def save_newest(self) -> None:
        """Publish a checkpoint of the newest optimizer step, unless it exists."""
        ...

    def save_and_stop(self) -> NoReturn:
        """Publish a checkpoint of the newest optimizer step and raise `Stopped`."""
        ...


class Reducer(Protocol):
    """Interface by which the loop runs micro-batches, evaluates, heeds signals and saves, together with the
    other processes if there are any. `sharded` is True if the base is sharded over them: then all processes
    run its layers equally often.
    """

    sharded: bool

    def micro_batch(self, loop: TrainerPart, batch: Batch, items: Any) -> torch.Tensor:
        """Return the loss of the optimizer step's next micro-batch, after its forward and backward in one of
        the processes. A pending signal stops the run. After the step's last micro-batch every process has the
        gradients of the entire step.
        """
        ...

    def figures_of(
        self, loop: TrainerPart, batches: Sequence[Batch], measure: Callable[[Batch], Figures]
    ) -> list[Figures]:
        """Return the figures that `measure` gives for each of `batches`, in every process."""
        ...

    def heed_signal(self, loop: TrainerPart) -> None:
        """Save the state after the newest optimizer step and raise `Stopped` if a signal is pending."""
        ...

    def check_equal(self, loop: TrainerPart) -> None:
        """Raise `GateError` unless all processes have trained the same weights."""
        ...

    def stopping(self, loop: TrainerPart, number: int) -> AbstractContextManager[None]:
        """Tell the others of signal `number`, save in the body, and wait until the others have saved."""
        ...

    def saving_if_lost(self, loop: TrainerPart) -> AbstractContextManager[None]:
        """Save the newest optimizer step if another process is gone while the body runs."""
        ...


class Alone:
    """Reducer of a run of one process."""

    sharded = False

    def micro_batch(self, loop: TrainerPart, batch: Batch, items: Any) -> torch.Tensor:
        """Run one forward and backward; then a pending signal is handled."""
        loss = loop.forward_backward(batch, items, loop.stats.batches)
        self.heed_signal(loop)
        return loss

    def figures_of(
        self, loop: TrainerPart, batches: Sequence[Batch], measure: Callable[[Batch], Figures]
    ) -> list[Figures]:
        """Return the figures that `measure` gives for each of `batches`."""
        return [measure(batch) for batch in batches]

    def heed_signal(self, loop: TrainerPart) -> None:
        """Save the state after the newest optimizer step and raise `Stopped` if a signal is pending."""
        if loop.interruption.received is not None:
            loop.save_and_stop()

    def check_equal(self, loop: TrainerPart) -> None:
        """Do nothing: one process is equal to itself."""

    @contextmanager
    def stopping(self, loop: TrainerPart, number: int) -> Iterator[None]:
        """Run the body: there is no one to tell."""
        yield

    @contextmanager
    def saving_if_lost(self, loop: TrainerPart) -> Iterator[None]:
        """Run the body: there is no one to miss."""
        yield
