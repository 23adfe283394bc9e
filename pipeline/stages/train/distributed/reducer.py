"""Reducer that shares each optimizer step with other processes, and ends in the same bytes as a run alone.

All processes have the same rows in the same order and take turns: of each `gradient_accumulation_steps`
micro-batches, number j is the work of process j mod W. Sums are made in the order of the micro-batches
(`GradientSum`), so every process does the same optimizer step that a single process would do. Every
checkpoint checks that they stay equal. A signal to one process is known to all after the current
micro-batches, and stops all at the same step.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch

from pipeline.core.errors import GateError
from pipeline.stages.train.distributed.group import Group, Lost
from pipeline.stages.train.reducer import TrainerPart
from pipeline.stages.train.run import RESTART
from pipeline.stages.train.step_stats import Batch, Figures, StepStats

MET = 2  # numbers exchanged at every meeting in addition to the signal and the step
# x + -0.0 is x, bit for bit. x + 0.0 is not, if x is -0.0.
NOTHING = -0.0


class GroupReducer:
    """Reducer (`pipeline.stages.train.reducer.Reducer`) of the processes of `group`, which all train the
    parameters `trained`. `sharded` is True if the base is sharded over them.

    Every exchange between processes begins with a meeting, so that a process that stops finds the others
    there.
    """

    def __init__(self, group: Group, trained: Sequence[torch.nn.Parameter], *, sharded: bool) -> None:
        self.group = group
        self.trained = trained
        self.sharded = sharded
        self.gradients = GradientSum(trained, group)
        self.turn_losses: list[torch.Tensor] = []
        self._told = False  # True once the others know of the signal that stops the run

    # --- meetings -------------------------------------------------------------------------------------------

    def meet(self, loop: TrainerPart, *numbers: int) -> list[int]:
        """Return the maximum of each of `MET` numbers over processes. After a signal to one, all save and
        stop. Raises `GateError` if the processes are at different steps.
        """
        interruption = loop.interruption
        with interruption.deferred():
            rows = self._say(loop, interruption.received or 0, *numbers)
        signals = [number for number in rows[:, 0].tolist() if number]
        if signals:
            self._told = True
            interruption.hear(signals[0])
            loop.save_and_stop()
        if len({*rows[:, 1].tolist()}) > 1:
            raise GateError(
                "Q-TRAIN-039",
                f"the processes are at different steps ({rows[:, 1].tolist()}): {RESTART}",
            )
        return [int(number) for number in rows[:, 2:].max(0).values]

    def heed_signal(self, loop: TrainerPart) -> None:
        """Save the state after the newest optimizer step and raise `Stopped` if a signal is pending. With a
        sharded base all processes stop together, because one that left by itself would leave the others
        within a layer.
        """
        if self.sharded:
            self.meet(loop, *[0] * MET)
        elif loop.interruption.received is not None:
            loop.save_and_stop()

    @contextmanager
    def stopping(self, loop: TrainerPart, number: int) -> Iterator[None]:
        """Tell the others of signal `number` unless they know, save in the body, and wait for the others."""
        with suppress(Lost):  # A process that is gone needs no message.
            if not self._told:
                self._say(loop, number, *[0] * MET)
        yield
        with suppress(Lost):
            # torchrun kills all once one has exited, so wait until they have saved.
            self.group.all_gather(torch.zeros(1))

    @contextmanager
    def saving_if_lost(self, loop: TrainerPart) -> Iterator[None]:
        """Save the newest optimizer step and raise `Lost` if another process goes while the body runs."""
        try:
            with self.group.raising_lost():
                yield
        except Lost:
            loop.save_newest()
            raise

    def _say(self, loop: TrainerPart, *numbers: int) -> torch.Tensor:
        """Return (processes, 2 + MET) numbers of all processes: the pending signal, the step, two numbers."""
        signal, *rest = numbers
        return self.group.all_gather(torch.tensor([signal, loop.step, *rest]))

    # --- micro-batches --------------------------------------------------------------------------------------

    def micro_batch(self, loop: TrainerPart, batch: Batch, items: Any) -> torch.Tensor:
        """Return the loss of the optimizer step's next micro-batch. The first call of a turn computes all of
        it, and later calls return the stored losses.
        """
        if not self.turn_losses:
            start = loop.stats.batches
            self.turn_losses = self.turn(loop, start, items)
            if start + self.group.count >= len(loop.step_batches):
                self.gradients.finish()
        return self.turn_losses.pop(0)

    def turn(self, loop: TrainerPart, start: int, items: Any) -> list[torch.Tensor]:
        """Return the losses of a turn: the micro-batches from `start`, one for each process.

        Their gradients are added up.
        """
        batches = loop.step_batches[start : start + self.group.count]
        rank = self.group.rank.number
        stats = loop.stats
        loop.stats = StepStats()
        try:
            figures: list[Figures] = []
            if rank < len(batches):
                own_loss = loop.forward_backward(batches[rank], items, start + rank)
                figures = [([float(own_loss), float(loop.stats.loss_sum)], loop.stats.measures.sums)]
            elif self.sharded:  # Another process's batch, for the sharded layers.
                loop.forward_backward(batches[0], items, start + rank)
                loop.optimizer.zero_grad()
        finally:
            loop.stats = stats
        losses = []
        figures = self.of_all(loop, figures, len(batches))
        for batch, ((loss, total), sums) in zip(batches, figures, strict=True):
            losses.append(torch.tensor(loss, device=loop.device))
            stats.add(batch, torch.tensor(total, device=loop.device), sums)
        self.gradients.add_turn()
        return losses

    # --- figures of all -------------------------------------------------------------------------------------

    def figures_of(
        self, loop: TrainerPart, batches: Sequence[Batch], measure: Callable[[Batch], Figures]
    ) -> list[Figures]:
        """Return the figures that `measure` gives for each of `batches`. All processes have them, and each
        measures its share.
        """
        figures = [measure(batch) for batch in batches[self.group.rank.number :: self.group.count]]
        if self.sharded and len(figures) * self.group.count < len(batches):
            measure(batches[0])  # Others have one more.
        return self.of_all(loop, figures, len(batches))

    def of_all(self, loop: TrainerPart, figures: list[Figures], count: int) -> list[Figures]:
        """Return the figures of all `count` batches in their order, from those of each process's share.

        A process without a share has other names for them, but it writes nothing. Stops the run if one of the
        processes has received a signal.
        """
        names = sorted(figures[0][1]) if figures else []
        # A signal between two exchanges would have this process make another one than the others.
        with loop.interruption.deferred():
            loss_count = len(figures[0][0]) if figures else 0
            losses, measures = self.meet(loop, loss_count, len(names))
            names = names or [str(number) for number in range(measures)]
            width = losses + 2 * measures
            share = -(-count // self.group.count)
            # float64 represents every float32 and count exactly.
            sent = torch.zeros(share, width, dtype=torch.float64)
            for row, (batch_losses, sums) in enumerate(figures):
                pairs = [float(value) for name in names for value in sums[name]]
                sent[row] = torch.tensor([*batch_losses, *pairs], dtype=torch.float64)
            rows = self.group.all_gather(sent.view(-1)).view(self.group.count, share, width)
        all_figures = []
        for place in range(count):
            row_of_place = rows[place % self.group.count, place // self.group.count]
            all_figures.append(_figures(row_of_place.tolist(), losses, names))
        return all_figures

    def check_equal(self, loop: TrainerPart) -> None:
        """Raise `GateError` unless all processes have trained the same weights."""
        digest = hashlib.blake2b(digest_size=7)  # 7 bytes and a sign fit in 64 bits.
        for parameter in self.trained:
            digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        checksum = int.from_bytes(digest.digest())
        largest, smallest = self.meet(loop, checksum, -checksum)
        if largest != -smallest:
            raise GateError(
                "Q-TRAIN-039",
                f"after step {loop.step} the processes have trained different weights: {RESTART}, on cards "
                "of one kind",
            )


def _figures(row: list[float], losses: int, names: list[str]) -> Figures:
    pairs = zip(names, row[losses::2], row[losses + 1 :: 2], strict=True)
    return row[:losses], {name: (torch.tensor(total), int(count)) for name, total, count in pairs}


class GradientSum:
    """Sum of the gradients of `parameters`, float32 and on one device, over the micro-batches of a step."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], group: Group) -> None:
        self.parameters = list(parameters)
        self.group = group
        numbers = sum(parameter.numel() for parameter in self.parameters)
        self.size = -(-numbers // group.count) * group.count
        self.part: Any = None  # this process's part of the sum, (size ÷ processes,)
        self.reached = [False] * len(self.parameters)  # True for parameters with a gradient of this process

    def add_turn(self) -> None:
        """Add the gradients that the backward of each process left in `.grad`, which is None afterwards."""
        flat = torch.full((self.size,), NOTHING, device=self.parameters[0].device)
        for place, (parameter, piece) in enumerate(self._pieces(flat)):
            if parameter.grad is not None:
                piece.copy_(parameter.grad.view(-1))
                parameter.grad = None
                self.reached[place] = True
        for gradient in self.group.all_to_all(flat):
            self.part = gradient.clone() if self.part is None else self.part.add_(gradient)

    def finish(self) -> None:
        """Put the sum into every process's `.grad`, or None if no gradient came, as in one process."""
        flat = self.group.all_gather(self.part).view(-1)
        flags = torch.tensor(self.reached, dtype=torch.uint8)
        reached = self.group.all_gather(flags).any(0).tolist()
        for (parameter, piece), any_reached in zip(self._pieces(flat), reached, strict=True):
            # A copy has the same memory layout as a gradient from autograd.
            parameter.grad = piece.clone().view_as(parameter) if any_reached else None
        self.part = None
        self.reached = [False] * len(self.parameters)

    def _pieces(self, flat: torch.Tensor) -> Iterable[tuple[torch.nn.Parameter, torch.Tensor]]:
        sizes = [parameter.numel() for parameter in self.parameters]
        pieces = torch.split(flat[: sum(sizes)], sizes)
        return zip(self.parameters, pieces, strict=True)
