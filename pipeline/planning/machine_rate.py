"""The rates of this machine: products of bfloat16 matrices, and its disk.

`quench config plan` measures them and keeps them in the project, in `.quench/machine-rate.json`. What must
not import torch (status, the report) reads them there. A measurement of another machine is not used.
"""

import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from pipeline.core.cpu import multiplies_bfloat16
from pipeline.core.errors import QuenchError
from pipeline.core.hardware import machine
from pipeline.core.publish import write_json
from pipeline.planning.model.shape import Shape

FILE = Path(".quench/machine-rate.json")
SECONDS = 1.0  # for the products
ROUNDS = 6  # of each product, of which the fastest counts; fewer if the time is over
# Rows of a product, from which on the rate grows no more, and operations, for wide models.
MOST_TOKENS = 1024
MOST_OPERATIONS = 40e9
DISK_SECONDS = 0.4  # for writing, and again for reading
DISK_BYTES = 256 << 20
PIECE = 16 << 20  # bytes that are written at a time


@dataclass(frozen=True)
class Rate:
    """What this machine reached, with all usable cores.

    `tflops` is that of bfloat16 products of the base's own linears; None if the CPU has no such products.
    `written` and `read` are bytes a second in the project's folder, past the page cache.
    """

    tflops: float | None
    tokens: int  # rows of the products
    written: float | None
    read: float | None
    machine: str
    torch: str | None
    date: str

    @property
    def words(self) -> str:
        """The rates in a sentence."""
        products = "bfloat16 products not measured (this CPU has none)"
        if self.tflops is not None:
            products = f"{self.tflops:.2f} TFLOP/s in bfloat16 products of {self.tokens} tokens"
        disk = "disk not measured"
        if self.written and self.read:
            disk = f"disk {self.written / 1e6:,.0f} MB/s written, {self.read / 1e6:,.0f} read"
        return f"{products}; {disk} ({self.machine}; {self.date[:10]})"


def measure_rate(root: Path, shape: Shape, tokens: int) -> Rate:
    """Measure this machine for a base of this shape and forwards of `tokens` tokens, in about two seconds.

    It imports torch if the CPU multiplies bfloat16.
    """
    tokens = min(tokens, MOST_TOKENS)
    tflops = None
    version = None
    if multiplies_bfloat16():
        import torch

        version = str(torch.__version__)
        tflops = product_rate(linears_of(shape), tokens) / 1e12
    written, read = disk_rates(root)
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return Rate(tflops, tokens, written, read, machine(), version, date)


def linears_of(shape: Shape) -> Mapping[tuple[int, int], int]:
    """Return {(inputs, outputs): how often a token goes through such a linear} of the layers."""
    counted = Counter[tuple[int, int]]()
    for layer in shape.by_layer:
        for linear in layer:
            counted[linear.inputs, linear.outputs] += linear.used
    return counted


def product_rate(linears: Mapping[tuple[int, int], int], tokens: int) -> float:
    """Return the FLOP/s of the linears' products, forward and for the gradient of the input together.

    Each product counts with its fastest round, which other programs disturb least.
    """
    import torch

    from pipeline.models.runtime import use_all_cores

    use_all_cores()
    products = Counter[tuple[int, int]]()
    for (inputs, outputs), count in linears.items():
        products[inputs, outputs] += count
        products[outputs, inputs] += count
    share = SECONDS / len(products)
    operations = 0.0
    taken = 0.0
    for (inputs, outputs), count in products.items():
        rows = max(1, min(tokens, int(MOST_OPERATIONS / (2 * inputs * outputs))))
        # The time doesn't depend on the values, and random ones would take longer than the products.
        left = torch.full((rows, inputs), 0.5, dtype=torch.bfloat16)
        right = torch.full((outputs, inputs), 0.5, dtype=torch.bfloat16)
        multiply = partial(torch.nn.functional.linear, left, right)
        operations += count * 2 * inputs * outputs
        taken += count * fastest(multiply, share) / rows
    return operations / taken


def fastest(work: Callable[[], object], most: float) -> float:
    """Return the seconds of the fastest call: of one at least, and of more within `most` seconds."""
    begin = time.perf_counter()
    work()  # It chooses a kernel and allocates the result, so it is not counted.
    taken: list[float] = []
    while not taken or (len(taken) < ROUNDS and time.perf_counter() - begin < most):
        before = time.perf_counter()
        work()
        taken.append(time.perf_counter() - before)
    return min(taken)


def disk_rates(folder: Path) -> tuple[float | None, float | None]:
    """Return the bytes a second that are written and read in `folder`; None if they can't be measured.

    Every piece is synced, and the system is asked to forget it before it is read. The file has no name, so a
    killed measurement leaves nothing.
    """
    piece = os.urandom(PIECE)  # Some file systems compress, or skip zeros.
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            begin = time.perf_counter()
            written = 0
            while written < DISK_BYTES and (not written or time.perf_counter() - begin < DISK_SECONDS):
                written += file.write(piece)
                os.fsync(file.fileno())
            writing = written / (time.perf_counter() - begin)
            if not hasattr(os, "posix_fadvise"):  # macOS would read from its cache.
                return writing, None
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.seek(0)
            begin = time.perf_counter()
            read = 0
            while read < written and (not read or time.perf_counter() - begin < DISK_SECONDS):
                read += len(file.read(PIECE))
            return writing, read / (time.perf_counter() - begin)
    except OSError:  # a full disk, or a folder that can't be written to
        return None, None


def keep_rate(rate: Rate, root: Path) -> None:
    """Write the measurement to the project at `root`. A folder that is no project stays as it is."""
    if (root / "params.yaml").is_file():
        with suppress(OSError, QuenchError):  # A plan of a project that can't be written to is still a plan.
            write_json(root / FILE, asdict(rate))


def read_rate(root: Path) -> Rate | None:
    """Return the kept measurement; None if there is none of this machine with so many cores."""
    try:
        rate = Rate(**json.loads((root / FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # A record of another version counts as not measured.
        return None
    return rate if rate.machine == machine() else None
