"""Start one command as several processes on this machine, one per card, that stop together.

It does what `torchrun --standalone` does, with this project's exit codes and a store that only this machine
can reach.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from math import inf
from types import FrameType

from pipeline.core.child import bound
from pipeline.core.errors import MachineError, Stopped
from pipeline.core.ranks import HERE, LAUNCHED, PROCESSES, STORE_FD, check_cards

LOOK_SECONDS = 0.05
# After one process has failed, or rank 0 has exited, the others get SIGTERM and are then killed. They notice
# it themselves when they communicate, and rank 0 saves a checkpoint then.
GRACE_SECONDS = 10.0  # time before SIGTERM
LAST_SECONDS = 60.0  # time before SIGKILL


def launch(words: Sequence[str], count: int) -> int:
    """Run `python -m pipeline WORDS` as `count` processes and return the exit code.

    It is 0 if rank 0 has done its work, because only rank 0 publishes. Otherwise it is the code of the first
    process that failed for a reason of its own. A signal is passed on to all. Raises `MachineError` if one
    was killed and that stopped the others, `Stopped` after a signal that came before any of them was prepared
    for one, `ConfigError` if there are fewer cards.
    """
    check_cards(count)
    with socket.socket() as store:
        store.bind((HERE, 0))
        store.listen()
        processes = [_started(words, number, count, store) for number in range(count)]
    # This process has closed the socket, so only rank 0 has it: if rank 0 dies, the others notice.
    with _passed_on(processes) as heard:
        ended = _wait(processes)
    return exit_code(ended, heard)


def exit_code(ended: dict[int, int], heard: Sequence[int]) -> int:
    """Return the exit code after processes that exited like this, {number: exit code} in their order.

    As in `subprocess`, a negative code is the signal that ended a process. `heard` contains the signals that
    were passed on to them. Raises what `launch` does.
    """
    failed = [(number, code) for number, code in ended.items() if code]
    if not ended[0] or not failed:
        return 0
    # A lost peer is not a reason of its own, nor is our signal to a process that has not noticed the loss.
    noticed: set[int] = {MachineError.exit_code}
    if not heard:
        noticed.add(128 + signal.SIGTERM)
    reasons = [code for _, code in failed if code > 0 and code not in noticed]
    if reasons:
        return reasons[0]
    number, code = failed[0]
    if code > 0:
        return code
    if -code in heard:
        raise Stopped(-code)
    raise MachineError(
        "Q-TRAIN-037",
        f"process {number} of {len(ended)} was ended by {signal.Signals(-code).name}: the same command "
        "resumes from the newest checkpoint",
    )


def _started(
    words: Sequence[str], number: int, count: int, store: socket.socket
) -> "subprocess.Popen[bytes]":
    environment = os.environ | {
        "RANK": str(number),
        "LOCAL_RANK": str(number),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": HERE,
        "MASTER_PORT": str(store.getsockname()[1]),
        LAUNCHED: "1",
        **({} if number else {STORE_FD: str(store.fileno())}),
    }
    environment.pop(PROCESSES, None)
    return subprocess.Popen(
        # On SIGTERM a training saves a checkpoint.
        bound([sys.executable, "-m", "pipeline", *words], signal.SIGTERM),
        env=environment,
        stdin=subprocess.DEVNULL,
        pass_fds=[] if number else [store.fileno()],
        # Ctrl-C in a terminal reaches an entire process group, and a training exits at once at its second
        # signal.
        start_new_session=True,
    )


@contextmanager
def _passed_on(processes: "list[subprocess.Popen[bytes]]") -> Iterator[list[int]]:
    """Pass SIGTERM and SIGINT of this process on to all of `processes`; give the list of those that came."""
    heard: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        _send_signal(processes, number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(processes: "list[subprocess.Popen[bytes]]") -> dict[int, int]:
    """Return {number: exit code} of all processes, in the order in which they exited.

    After the first that failed, or rank 0, the others get SIGTERM and then SIGKILL if they are too late.
    """
    ended: dict[int, int] = {}
    over = False
    terminate_at = inf
    kill_at = inf
    while len(ended) < len(processes):
        codes = {number: process.poll() for number, process in enumerate(processes) if number not in ended}
        exited = [(number, code) for number, code in codes.items() if code is not None]
        # The code of a killed process is negative, so it comes before those that noticed it at once.
        ended |= sorted(exited, key=lambda process: process[1])
        now = time.monotonic()
        if not over and (0 in ended or any(ended.values())):
            over = True
            terminate_at = now + GRACE_SECONDS
            kill_at = now + LAST_SECONDS
        if now > terminate_at:
            _send_signal(processes, signal.SIGTERM)
            terminate_at = inf
        elif now > kill_at:
            _send_signal(processes, signal.SIGKILL)
            kill_at = inf
        time.sleep(LOOK_SECONDS)
    return ended


def _send_signal(processes: "list[subprocess.Popen[bytes]]", number: int) -> None:
    for process in processes:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                process.send_signal(number)
