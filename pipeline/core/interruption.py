"""SIGTERM and SIGINT while training: the run ends with a checkpoint, not in the middle of one.

In the training loop a signal is noted and acted on after the forward and backward pass at hand; everywhere
else (loading, evaluating, publishing) it ends the work at once. A second signal ends the process as it does
elsewhere.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

from pipeline.core.errors import Stopped

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Interruption:
    """Context manager that takes over `SIGNALS` (in a program's main thread; elsewhere it does nothing)."""

    stopping = False  # whether this process was told to end and is at it

    def __init__(self) -> None:
        self.received: int | None = None
        self.waiting = False  # whether a signal waits until the trainer asks for `received`
        self._before: dict[int, object] = {}

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    @contextmanager
    def deferred(self, wait: bool = True) -> Iterator[None]:
        """Inside, a signal waits in `received` (`wait` false: ends the work at once, inside another
        `deferred`).
        """
        before, self.waiting = self.waiting, wait
        try:
            yield
        finally:
            self.waiting = before

    def _note(self, number: int, frame: FrameType | None) -> None:
        for known, handler in self._before.items():
            signal.signal(known, handler)  # type: ignore[arg-type]
        self.received, Interruption.stopping = number, True
        if not self.waiting:
            raise Stopped(number)
