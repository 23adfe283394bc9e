"""Group of one training's processes, seen from one of them: a store of notes for the start, all-gathers then.

Rank 0 leads: only it writes. The others wait for its notes before they load anything, because it may find
that there is nothing to do. Numbers are exchanged over Gloo, gradients of a GPU over NCCL.
"""

import ipaddress
import json
import platform
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from pipeline.core.errors import ConfigError, MachineError
from pipeline.core.ranks import Rank

LOOK_SECONDS = 0.05
# Limit for one exchange, during which rank 0 may evaluate, answer samples and write a checkpoint. A process
# that died is noticed at once, by its closed connection.
PATIENCE = timedelta(hours=12)
# Seconds that rank 0, which hosts the store, waits for others that have yet to read that nothing will come.
# They import the libraries meanwhile.
LEAVE_SECONDS = 30.0
# PyTorch has no exception class of its own for Gloo's errors.
OF_AN_EXCHANGE = re.compile(r"gloo|NCCL|Connection (closed|reset)|Timed out waiting", re.IGNORECASE)
OVER = "over"
BEGIN = "begin"
READY = "ready"
TROUBLE = "trouble"
LEFT = "left"
FAILED = "failed"


class Lost(MachineError):
    """Another process of this training is gone."""

    def __init__(self, rank: Rank, why: object) -> None:
        super().__init__(
            "Q-TRAIN-037",
            f"process {rank.number} of {rank.count} can't reach the others any more, one has ended or "
            f"failed ({' '.join(str(why).split())[:120]}): the same command resumes from the newest "
            "checkpoint",
        )


class Group:
    """Group of all processes of a training. `rank` is this one's. Use `open_group`."""

    def __init__(self, rank: Rank, store: Any) -> None:
        self.rank = rank
        self.count = rank.count
        self.leads = rank.leads
        self._store = store
        self._threads = 0  # threads of all processes on this machine together; 0: never shared
        self._begun = False  # True once rank 0 has begun a training, as far as this process knows

    def share_cores(self) -> None:
        """Leave the other processes on this machine their share of the threads that PyTorch would use."""
        self._threads = torch.get_num_threads()
        cores = self.rank.cores or self._threads // self.rank.local_count
        torch.set_num_threads(max(1, min(cores, self._threads)))

    # --- notes, before there are gradients -----------------------------------------------------------------

    def begin(self, plan: dict[str, Any]) -> None:
        """Let the others load the same run, and wait until each has found its inputs to be the same. Only
        rank 0 calls it.

        Raises `ConfigError` with the sentence of a process that has not.
        """
        self._begun = True
        self._note(BEGIN, json.dumps(plan))
        for number in range(1, self.count):
            self._await(f"{READY}/{number}", TROUBLE)
            trouble = self._read(TROUBLE)
            if trouble:
                raise ConfigError("Q-TRAIN-038", trouble)

    def follow(self, record: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        """Return the plan that rank 0 began with, or None if rank 0 has nothing to do. All other processes
        call it. `record()`, this process's record of the run, must equal the plan's `alike`.

        Raises `ConfigError` if the records differ.
        """
        self._await(BEGIN, OVER)
        text = self._read(BEGIN)
        if not text:
            return None
        self._begun = True
        plan: dict[str, Any] = json.loads(text)
        mine = record()
        theirs = plan["alike"]
        # The number of threads belongs to this machine. Each micro-batch is the work of one process.
        theirs["threads"] = mine["threads"]
        differing = [key for key in sorted({*mine, *theirs}) if mine.get(key) != theirs.get(key)]
        if differing:
            sentence = (
                f"process {self.rank.number} of {self.count} has another {', '.join(differing)} than process "
                "0: give all the same files, libraries and kind of device"
            )
            self._note(TROUBLE, sentence)
            raise ConfigError("Q-TRAIN-038", sentence)
        self._note(f"{READY}/{self.rank.number}", "yes")
        return plan

    def close(self, *, failed: bool) -> None:
        """Leave the group. Rank 0 notes that nothing more will come, and waits until the others know if
        nothing came at all.

        A process that `failed` leaves a note for those that wait for notes. It leaves the process group as it
        is: NCCL would wait for the others to leave it too, and they wait for this process.
        """
        with suppress(Lost):
            if self.leads:
                self._note(OVER, "yes")
            if failed:
                self._note(FAILED, str(self.rank.number))  # last, as `_await` expects
            if not self._begun:
                if not self.leads:
                    self._note(f"{LEFT}/{self.rank.number}", "yes")
                elif not self.rank.hosted:  # The store is gone once this process exits.
                    end = time.monotonic() + LEAVE_SECONDS
                    others = [f"{LEFT}/{number}" for number in range(1, self.count)]
                    while not all(map(self._read, others)) and time.monotonic() < end:
                        time.sleep(LOOK_SECONDS)
        if dist.is_initialized() and not failed:
            dist.destroy_process_group()

    def _note(self, key: str, text: str) -> None:
        try:
            self._store.set(key, text)
        except RuntimeError as error:
            raise Lost(self.rank, error) from error

    def _await(self, *keys: str) -> None:
        """Wait for one of the notes.

        Signals are handled meanwhile. Raises `Lost` if another process has failed.
        """
        try:
            while True:
                # Read first, because a process that fails leaves its other notes before that one.
                failed = self._read(FAILED)
                if any(self._store.check([key]) for key in keys):
                    return
                if failed:
                    raise Lost(self.rank, f"process {failed} has failed")
                time.sleep(LOOK_SECONDS)
        except RuntimeError as error:
            raise Lost(self.rank, error) from error

    def _read(self, key: str) -> str:
        return self._store.get(key).decode() if self._store.check([key]) else ""

    # --- exchanges ------------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Start the process group. From here on all processes make the same exchanges, in the same order. A
        second call does nothing.
        """
        if dist.is_initialized():
            return
        self.wait_for_all("loaded")
        with self.raising_lost():
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
                store=self._store,
                rank=self.rank.number,
                world_size=self.count,
                timeout=PATIENCE,
            )

    def wait_for_all(self, what: str) -> None:
        """Return once all processes have reached `what`. Unlike in an exchange, signals are handled here."""
        self._note(f"{what}/{self.rank.number}", "yes")
        for number in range(self.count):
            self._await(f"{what}/{number}")

    @contextmanager
    def one_at_a_time(self) -> Iterator[None]:
        """Run the body in one process of this machine at a time, with all of its cores."""
        if self.rank.local:
            self._await(f"turn/{platform.node()}/{self.rank.local - 1}")
        shared = torch.get_num_threads()
        torch.set_num_threads(self._threads or shared)
        yield
        torch.set_num_threads(shared)
        self._note(f"turn/{platform.node()}/{self.rank.local}", "over")

    def all_gather(self, values: torch.Tensor) -> torch.Tensor:
        """Return the `values` (n,) of all processes: (processes, n), in the order of their ranks."""
        output = values.new_empty(self.count * len(values))
        with self.raising_lost():
            dist.all_gather_single(output, values)
        return output.view(self.count, -1)

    def all_to_all(self, values: torch.Tensor) -> torch.Tensor:
        """Return this process's part of `values` (n,) from all processes: (processes, n ÷ processes)."""
        output = torch.empty_like(values)
        with self.raising_lost():
            dist.all_to_all_single(output, values)
        return output.view(self.count, -1)

    @contextmanager
    def raising_lost(self) -> Iterator[None]:
        """Raise `Lost` if an exchange in the body fails."""
        try:
            yield
        except RuntimeError as error:
            if not isinstance(error, dist.DistError) and not OF_AN_EXCHANGE.search(str(error)):
                raise
            raise Lost(self.rank, error) from error


def _listening(rank: Rank) -> int:
    """Return the descriptor of a socket that listens only at the address where the others look for rank 0.
    By default PyTorch's store, which has no authentication, listens on all interfaces.
    """
    addresses = socket.getaddrinfo(rank.address, rank.port, type=socket.SOCK_STREAM)
    family, kind, protocol, _, address = addresses[0]
    if rank.local_count < rank.count and ipaddress.ip_address(address[0]).is_loopback:
        # This machine resolves its own name to its loopback, but others don't.
        address = ("", rank.port)
    with socket.socket(family, kind, protocol) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen()
        return listening.detach()


@contextmanager
def open_group(rank: Rank) -> Iterator[Group]:
    """Join the other processes during the body. Raises `Lost` if rank 0 can't be found or can't listen."""
    leads = rank.leads and not rank.hosted
    listening = None
    try:
        if leads:
            listening = _listening(rank) if rank.listening is None else rank.listening
        store = TCPStore(
            rank.address,
            rank.port,
            is_master=leads,
            timeout=timedelta(minutes=5),
            wait_for_workers=False,
            master_listen_fd=listening,
        )
    except (RuntimeError, OSError) as error:
        raise Lost(rank, error) from error
    # A prefix of our own in torchrun's store, and for each of its attempts.
    group = Group(rank, PrefixStore(f"quench/{rank.run}", store))
    failed = True
    try:
        yield group
        failed = False
    finally:
        group.close(failed=failed)
