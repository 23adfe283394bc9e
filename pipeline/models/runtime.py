"""Set up PyTorch and its libraries in this process (no hints, set threads), and measure their memory."""

import ctypes
import hashlib
import os
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from logging import getLogger
from typing import Any, TypeVar

from pipeline.core.hardware import usable_cores
from pipeline.core.usage import peak_of_process

# M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h
TRIM_THRESHOLD = -1
MMAP_THRESHOLD = -3
HEAP_BLOCK = 32 << 20  # bytes; the largest threshold that glibc sets by itself

Item = TypeVar("Item")
Result = TypeVar("Result")


def silence_libraries() -> None:
    """Keep hints about other set-ups, which are the same in every run, off the terminal, and progress bars
    out of logs. Call it before the libraries are imported. A variable of a library that the user sets takes
    precedence.
    """
    # bitsandbytes reports "Failed to load CPU gemm_4bit_forward from kernels-community" without a package
    # that would fetch one from the hub. Its own kernel does the same.
    getLogger("bitsandbytes").setLevel("ERROR")
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # transformers reads it too.


def let_threads_give_way() -> None:
    """Have OpenMP's threads, in PyTorch and in llama.cpp, give a core away while they wait for each other.
    Call it before the libraries are imported. A variable that the user sets takes precedence.

    By themselves they spin. Where another program has a core, they spin while the last one of them has none,
    and a step takes two to three times as long; alone on a machine nothing changes (benchmarks/waiting.py).
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def use_all_cores() -> None:
    """Use one thread per core that this process may use, whatever OMP_NUM_THREADS is. Snakemake sets it and
    DVC doesn't, so the sums would differ.
    """
    import torch

    torch.set_num_threads(usable_cores() or 1)


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch to one thread while the body runs. The bytes can't depend on how a sum was split, and small
    work loses more by waiting than it gains.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def drawn_for(*numbers: int) -> Iterator[None]:
    """Seed PyTorch's generators from `numbers` (seed, step, micro-batch) only; restore them after the body.

    So the dropout of a micro-batch depends neither on those before it nor on the process that computes it.
    """
    import torch

    digest = hashlib.sha256(",".join(map(str, numbers)).encode()).digest()
    cards = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=cards):
        torch.manual_seed(int.from_bytes(digest[:4]))
        yield


def side_by_side(work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Return the results of `work` for the items, in order.

    As many run at a time as there are cores, each on one thread.
    """
    with one_thread():
        return list(in_turn(work, items))


def in_turn(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Yield the results of `side_by_side` one by one, in order. At most two per core are being computed or
    waiting. For use in `one_thread`.
    """
    cores = usable_cores() or 1
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(cores) as pool:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) == 2 * cores:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@contextmanager
def freed_at_once() -> Iterator[None]:
    """Have glibc map large blocks one by one while the body runs, so that a freed one returns to the system.
    Otherwise weights that were quantized would leave holes as large as all of them in 16 bit.

    Afterwards blocks come from the heap, as they do once glibc has seen large ones freed, because mapping
    costs time in every step.
    """
    mallopt = _of_glibc("mallopt")
    if mallopt is None:
        yield
        return
    mallopt(MMAP_THRESHOLD, 1 << 20)
    try:
        yield
    finally:
        mallopt(MMAP_THRESHOLD, HEAP_BLOCK)
        mallopt(TRIM_THRESHOLD, 2 * HEAP_BLOCK)


def give_back_holes() -> None:
    """Return the heap's free pages to the system, those between allocations too. Does nothing with another
    library than glibc. It takes 0.15 s of a training on the CPU, and the next use of these pages takes as
    long again.
    """
    trim = _of_glibc("malloc_trim")
    if trim is not None:
        trim(0)


def _of_glibc(name: str) -> Any:
    """Return a function of glibc's allocator; None on another system, or with another library."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


def memory_used() -> int:
    """Return bytes: the most allocated on the GPU so far, or this process's resident memory without one."""
    import psutil
    import torch

    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    return int(psutil.Process().memory_info().rss)


def peak_memory() -> int:
    """Return the most bytes that this process has used: on the GPU if there is one, otherwise in memory."""
    import torch

    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    return peak_of_process()
