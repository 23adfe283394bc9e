"""Work on blocks in several processes: results in order, memory bounded, whatever the number of processes."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any, TypeVar

from pipeline.core.errors import MachineError, QuenchError

Block = TypeVar("Block")
Result = TypeVar("Result")
AHEAD = 2  # blocks in work or waiting, per process
_state: Any = None  # state that a worker created at its start
_failure: QuenchError | None = None  # error that prevented it


class Workers:
    """A map of functions `(state, block) → result` over blocks, in the processes of `pool` with a state each.
    Without a pool it runs in this process with `state`.
    """

    def __init__(self, pool: ProcessPoolExecutor | None, processes: int, state: Any = None) -> None:
        self.pool = pool
        self.processes = processes
        self.own = state

    def map(self, work: Callable[[Any, Block], Result], blocks: Iterable[Block]) -> Iterator[Result]:
        """Yield the results in the order of `blocks`, which are read only as fast as results are consumed.

        Raises `MachineError` if a process is killed.
        """
        if self.pool is None:
            yield from (work(self.own, block) for block in blocks)
            return
        waiting: deque[Future[Result]] = deque()
        try:
            for block in blocks:
                waiting.append(self.pool.submit(_call, work, block))
                if len(waiting) >= AHEAD * self.processes:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            raise MachineError(
                "Q-CURATE-015",
                "a worker process of curate was killed (out of memory?): close other programs, "
                "then run again",
            ) from error
        finally:
            for future in waiting:
                future.cancel()


@contextmanager
def workers(processes: int, make: Callable[..., Any], *arguments: Any) -> Iterator[Workers]:
    """Yield this many `processes`, each with the state `make(*arguments)`.

    With 1, everything runs in this one.
    """
    if processes <= 1:
        yield Workers(None, 1, make(*arguments))
        return
    # With forkserver, workers don't inherit this process's memory, threads and locks.
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(
        processes, mp_context=context, initializer=_start, initargs=(make, arguments)
    ) as pool:
        yield Workers(pool, processes)


def _start(make: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    global _state, _failure
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Only the main process handles Ctrl-C.
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        _state = make(*arguments)
    except QuenchError as error:  # Raised here, it would only break the pool.
        _failure = error


def _end_with_parent() -> None:
    """Exit this process when its parent is gone (kill -9). Otherwise it would wait for blocks forever."""
    parent = multiprocessing.parent_process()
    if parent:
        wait([parent.sentinel])
        os._exit(1)


def _call(work: Callable[[Any, Block], Result], block: Block) -> Result:
    if _failure:
        raise _failure
    return work(_state, block)
