"""SIGTERM and SIGINT while training: the run stops with a checkpoint, not in the middle of one.

In the training loop a signal is noted and acted on after the current forward and backward pass. Everywhere
else (loading, evaluating, publishing) it stops the work at once. A second signal ends the process as it does
in any program, unless it comes with the first: SLURM sends a job's processes SIGTERM twice in the same
moment.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

from pipeline.core.errors import Stopped

SIGNALS = (signal.SIGTERM, signal.SIGINT)
# A signal this soon after the first is a copy of it. A user's second Ctrl-C comes later.
SAME_SECONDS = 0.5


class OutOfTime(Exception):
    """The work used more CPU time than its limit."""


@contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Stop the body with `OutOfTime` after this many seconds of this process's own CPU time.

    It acts wherever Python can be interrupted (a regular expression can). It works in the main thread only;
    in other threads there is no limit.
    """

    def end(number: int, frame: FrameType | None) -> None:
        raise OutOfTime(f"more than {seconds:g} s")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


class Interruption:
    """A context manager that handles `SIGNALS` in the main thread; in other threads it does nothing."""

    stopping = False  # True after a signal, while this process is stopping

    def __init__(self) -> None:
        self.received: int | None = None
        self._received_at = 0.0  # monotonic seconds
        self.waiting = False  # True if a signal waits until the trainer reads `received`
        self._before: dict[int, object] = {}

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._give_back()

    @contextmanager
    def deferred(self, wait: bool = True) -> Iterator[None]:
        """Let a signal wait in `received` while the body runs.

        With `wait` false, inside another `deferred`, a signal stops the work at once.
        """
        before = self.waiting
        self.waiting = wait
        try:
            yield
        finally:
            self.waiting = before

    def defer(self) -> None:
        """Let signals wait in `received` from here on.

        A process that exits on its own would leave its peers waiting.
        """
        self.waiting = True

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            if time.monotonic() - self._received_at >= SAME_SECONDS:
                self._give_back()
                os.kill(os.getpid(), number)
            return
        self.hear(number)
        if not self.waiting:
            raise Stopped(number)

    def hear(self, number: int) -> None:
        """Record signal `number`, which another process of this training received.

        Only the first one counts.
        """
        if self.received is None:
            # The time comes first: a signal between the two lines must not see an old one.
            self._received_at = time.monotonic()
            self.received = number
            Interruption.stopping = True

    def _give_back(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
