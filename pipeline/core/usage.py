"""Resources of a stage's last run and the planned ones, in `.quench/usage/STAGE.json`: memory, time, disk.

The figures vary from run to run, so they are not an output of the stage: they make nothing out of date.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from pipeline.core.errors import QuenchError
from pipeline.core.publish import write_json

FOLDER = Path(".quench/usage")
KILO = 1 if sys.platform == "darwin" else 1024  # unit of ru_maxrss in bytes


@dataclass(frozen=True)
class Figures:
    """The resources that one run of a stage needs. None means unknown.

    `products` are the seconds that its operations take if this machine does nothing but products of matrices.
    """

    peak: int | None  # bytes of main memory, the peak of its largest process, mapped files included
    seconds: float | None
    disk: int | None  # bytes of its outputs
    products: float | None = None


@dataclass(frozen=True)
class Usage:
    """A stage's last run, as planned and as measured. `own_peak` is that of the stage's own process only."""

    planned: Figures
    seen: Figures
    own_peak: int

    @property
    def share_of_products(self) -> float | None:
        """Share of the time that the planned operations would take at the products' rate; None if unknown."""
        if self.planned.products is None or not self.seen.seconds:
            return None
        return self.planned.products / self.seen.seconds


@contextmanager
def noted(stage: str, root: Path, disk: Callable[[], int], plan: Callable[[], Figures]) -> Iterator[None]:
    """Record the body's usage as `stage` ("quantize@Q4_K_M") if it succeeds.

    `disk` and `plan` are called afterwards.
    """
    started = time.monotonic()
    yield
    seconds = time.monotonic() - started
    process = peak_of_process()
    child = peak_of_children()
    with suppress(OSError, QuenchError):  # A finished stage must not fail because of its usage record.
        seen = Figures(max(process, child), round(seconds, 3), disk())
        write_json(root / FOLDER / f"{stage}.json", asdict(Usage(plan(), seen, process)))


def usages(root: Path) -> dict[str, Usage]:
    """Return {stage: its last run} of all stages that recorded one below `root`."""
    usage_of = {}
    for path in sorted((root / FOLDER).glob("*.json")):
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
            usage_of[path.stem] = Usage(
                Figures(**value["planned"]), Figures(**value["seen"]), value["own_peak"]
            )
        except (ValueError, TypeError, KeyError):  # A record of another version counts as not measured.
            continue
    return usage_of


def peak_of_children() -> int:
    """Return the peak main memory, in bytes, of the largest child that has exited.

    A child counts its parent's memory until it calls exec, so its peak is known only if it is larger.
    """
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * KILO


def peak_of_process() -> int:
    """Return the peak main memory of this process, in bytes."""
    # ru_maxrss of a forked process counts its parent's memory.
    return peak_memory(os.getpid()) or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KILO


def peak_memory(pid: int) -> int | None:
    """Return the largest resident set of a process so far, in bytes; None if unknown.

    Mapped files are included.
    """
    return _memory(pid, "VmHWM")


def own_memory(pid: int) -> int | None:
    """Return the bytes of a process's own memory, without mapped files (the model); None if unknown."""
    return _memory(pid, "RssAnon")


def processor_seconds(pid: int) -> dict[int, float]:
    """Return the time that each thread of a process has had a processor, in seconds; nothing if unknown."""
    seconds: dict[int, float] = {}
    with suppress(OSError):  # The process, or a thread, has ended; or the system has no such files.
        for thread in Path(f"/proc/{pid}/task").iterdir():
            stat = (thread / "stat").read_text(encoding="ascii", errors="replace")
            # The name in parentheses may hold anything; user and system time are the 14th and 15th value.
            fields = stat.rpartition(")")[2].split()
            seconds[int(thread.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return seconds


def _memory(pid: int, field: str) -> int | None:
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    return next(
        (int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(f"{field}:")), None
    )
