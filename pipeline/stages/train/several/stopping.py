"""Where processes meet, and how a signal to one of them stops all at the same step."""

from contextlib import suppress
from typing import Any

import torch

from pipeline.core.errors import GateError, Stopped
from pipeline.stages.train.loop import Loop
from pipeline.stages.train.run import RESTART
from pipeline.stages.train.several.group import Group, Lost

MET = 2  # numbers that are exchanged at every meeting beside the signal and the step


class Stopping(Loop):
    """Trains with the processes of the run's `group`, None: alone. `leads` is whether this process writes,
    `sharded` whether the base is shared out: then all run its layers as often as any.

    Every exchange between processes begins with a meeting, so that one that stops finds the others there.
    """

    def __init__(self, **rest: Any) -> None:
        super().__init__(**rest)
        self.group: Group | None = self.run.group
        self.leads, self.interruption = self.run.leads, self.run.interruption
        self.sharded = self.settings.shares_base and self.group is not None
        self._told = False  # whether the others know of the signal that ends the run
        self._stopped: Stopped | None = None

    def meet(self, *numbers: int) -> list[int]:
        """The maximum of each of `MET` numbers over processes. After a signal to one, all save and stop."""
        assert self.group is not None
        with self.interruption.deferred():
            rows = self._say(self.interruption.received or 0, *numbers)
        if signals := [number for number in rows[:, 0].tolist() if number]:
            self._told = True
            self.interruption.hear(signals[0])
            self.save_and_stop()
        if len({*rows[:, 1].tolist()}) > 1:
            raise GateError(
                "Q-TRAIN-039",
                f"the processes are at different steps ({rows[:, 1].tolist()}): {RESTART}",
            )
        return [int(number) for number in rows[:, 2:].max(0).values]

    def heed_signal(self) -> None:
        """Where a signal waits: save the state after the newest optimizer step and raise `Stopped`. Where the
        base is shared out it waits for all, for who left alone would leave the others within a layer.
        """
        if self.sharded:
            self.meet(*[0] * MET)
        elif self.interruption.received is not None:
            self.save_and_stop()

    def save_and_stop(self) -> None:
        """Publish a checkpoint of the newest optimizer step, unless there, and raise `Stopped` in all."""
        if self._stopped is None:
            with self.interruption.deferred():
                self._stopped = self._stop()
        raise self._stopped

    def _stop(self) -> Stopped:
        step, number = self.step, self.interruption.received
        assert number is not None, "no signal has come"
        with suppress(Lost):  # who is gone needs no telling
            if self.group is not None and not self._told:
                self._say(number, *[0] * MET)
        self.save_newest()
        with suppress(Lost):
            if self.group is not None:  # torchrun ends all once one has ended: wait until they have saved
                self.group.gathered(torch.zeros(1))
        if not step:
            return Stopped(number, "not one step was done")
        return Stopped(number, f"checkpoint-{step} is complete, and the same command resumes from it")

    def save_newest(self) -> None:
        """Publish a checkpoint of the newest optimizer step, unless there is one; rank 0 alone."""
        raise NotImplementedError

    def _say(self, *numbers: int) -> torch.Tensor:
        """What all processes say: (processes, 2 + MET): the signal that has come, the step, two numbers."""
        assert self.group is not None
        signal, *rest = numbers
        return self.group.gathered(torch.tensor([signal, self.step, *rest]))
