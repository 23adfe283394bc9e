"""The rates of this machine: products of bfloat16 matrices, widened if its CPU has no others, and its disk.

`quench config plan` measures them and keeps them in the project, in `.quench/machine-rate.json`. What must
not import torch (status, the report) reads them there. A measurement of another machine is not used.
"""

import math
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
from typing import Any, Literal

from pydantic import TypeAdapter

from pipeline.core.cpu import multiplied_in
from pipeline.core.errors import QuenchError
from pipeline.core.hardware import machine, usable_cores
from pipeline.core.hashing import json_hash
from pipeline.core.publish import write_json
from pipeline.planning.model.shape import Shape

FILE = Path(".quench/machine-rate.json")
PRODUCT_SECONDS = 1.0  # The products are repeated for so long.
MOST_TOKENS = 1024  # With more rows the rate grows no more.
MOST_OPERATIONS = 40e9  # A product of a wide model has fewer rows, so that it takes a part of a second.
# A measurement with a smaller share of the cores' time was disturbed. It is below 1, because one core fills
# the matrices.
UNDISTURBED = 0.75
DISK_SECONDS = 0.4  # for writing, and again for reading
DISK_BYTES = 256 << 20
PIECE = 16 << 20  # bytes that are written at a time


@dataclass(frozen=True)
class Rate:
    """The rates that this machine reached with all usable cores.

    `tflops` is that of products of the base's own linears in the type `multiplied_in`; None if there was no
    memory for them. `written` and `read` are bytes a second in the project's folder, past the page cache.
    """

    tflops: float | None
    linears: str  # hash of the shapes of the base's linears
    tokens: int  # rows of the products
    written: float | None
    read: float | None
    machine: str
    torch: str | None
    date: str
    core_share: float | None = None  # share of the cores' time that the products had
    multiplied_in: Literal["bfloat16", "float32"] = "bfloat16"

    @property
    def is_disturbed(self) -> bool:
        """True if other programs took so much of the cores that the rate says little of this machine."""
        return self.core_share is not None and self.core_share < UNDISTURBED

    @property
    def sentence(self) -> str:
        """The rates in words."""
        products = "products not measured (too little memory)"
        if self.tflops is not None:
            products = f"{self.tflops:.2f} TFLOP/s in {self.multiplied_in} products of {self.tokens} tokens"
        if self.core_share is not None and self.is_disturbed:
            products += f", with {self.core_share:.0%} of the cores: plan again when nothing else runs"
        disk = "disk not measured"
        if self.written and self.read:
            disk = f"disk {self.written / 1e6:,.0f} MB/s written, {self.read / 1e6:,.0f} read"
        return f"{products}; {disk} ({self.machine}; {self.date[:10]})"


RECORD = TypeAdapter(Rate)


def measure_rate(root: Path, shape: Shape, tokens: int) -> Rate:
    """Measure this machine for a base of this shape and forwards of `tokens` tokens, in about two seconds.

    It imports torch.
    """
    import torch

    tokens = min(tokens, MOST_TOKENS)
    tflops = None
    begin = time.perf_counter()
    computed = time.process_time()
    with suppress(RuntimeError):  # PyTorch has no memory for the matrices: not measured.
        tflops = product_rate(linears_of(shape), tokens) / 1e12
    core_share = (time.process_time() - computed) / (time.perf_counter() - begin) / (usable_cores() or 1)
    written, read = disk_rates(root)
    return Rate(
        tflops=tflops,
        linears=hash_of_linears(shape),
        tokens=tokens,
        written=written,
        read=read,
        machine=machine(),
        torch=str(torch.__version__),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        core_share=core_share,
        multiplied_in=multiplied_in(),
    )


def linears_of(shape: Shape) -> Mapping[tuple[int, int], int]:
    """Return {(inputs, outputs): how often a token goes through such a linear} of the layers."""
    counted = Counter[tuple[int, int]]()
    for layer in shape.by_layer:
        for linear in layer:
            counted[linear.inputs, linear.outputs] += linear.used
    return counted


def hash_of_linears(shape: Shape) -> str:
    """Return a hash that bases with linears of the same shapes share."""
    return json_hash(sorted(linears_of(shape).items()))


def product_rate(linears: Mapping[tuple[int, int], int], tokens: int) -> float:
    """Return the FLOP/s of the linears' products, forward and for the gradient of the input together.

    Each product counts with its fastest round, which other programs disturb least.
    """
    import torch

    from pipeline.models.runtime import use_all_cores

    use_all_cores()
    dtype = getattr(torch, multiplied_in())
    counts = Counter[tuple[int, int]]()
    for (inputs, outputs), count in linears.items():
        counts[inputs, outputs] += count
        counts[outputs, inputs] += count
    rows = {
        (inputs, outputs): max(1, min(tokens, int(MOST_OPERATIONS / (2 * inputs * outputs))))
        for inputs, outputs in counts
    }

    def filled(*size: int) -> Any:
        # The time doesn't depend on the values, and random ones would take longer than the products.
        return torch.full(size, 0.5, dtype=dtype)

    products = {
        (inputs, outputs): partial(
            torch.nn.functional.linear, filled(rows[inputs, outputs], inputs), filled(outputs, inputs)
        )
        for inputs, outputs in counts
    }
    fastest = fastest_of(products, PRODUCT_SECONDS)
    operations = sum(2 * inputs * outputs * count for (inputs, outputs), count in counts.items())
    return operations / sum(count * fastest[size] / rows[size] for size, count in counts.items())


def fastest_of(
    works: Mapping[tuple[int, int], Callable[[], object]], most: float
) -> dict[tuple[int, int], float]:
    """Return the seconds of each work's fastest call, in as many rounds of all works as `most` seconds hold.

    A program that disturbs a moment disturbs one round, not all calls of one work.
    """
    for work in works.values():
        work()  # It chooses a kernel and allocates the result, so it is not counted.
    fastest = dict.fromkeys(works, math.inf)
    begin = time.perf_counter()
    while math.inf in fastest.values() or time.perf_counter() - begin < most:
        for name, work in works.items():
            before = time.perf_counter()
            work()
            fastest[name] = min(fastest[name], time.perf_counter() - before)
    return fastest


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
    """Write the measurement to the project at `root`. A folder that is no project stays as it is, and a
    disturbed measurement is not kept.
    """
    if (root / "params.yaml").is_file() and not rate.is_disturbed:
        with suppress(OSError, QuenchError):  # A plan of a project that can't be written to is still a plan.
            write_json(root / FILE, asdict(rate))


def read_rate(root: Path, shape: Shape) -> Rate | None:
    """Return the kept measurement; None if there is none of this machine with so many cores and of a base of
    this shape.
    """
    try:
        rate = RECORD.validate_json((root / FILE).read_bytes())
    except (OSError, ValueError):  # A record of another version counts as not measured.
        return None
    is_of_this = rate.machine == machine() and rate.linears == hash_of_linears(shape)
    return rate if is_of_this else None
