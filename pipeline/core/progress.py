"""How far a long job has come: a bar on a terminal, now and then a plain line in a log; nothing for a short
job.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from pipeline.core.text import console

BAR_SECONDS = 0.1  # a bar is redrawn at most this often
LINE_SECONDS = 15.0  # a log gets a line at most this often


@contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Give `advance(amount)`, to be called as work is done; `amount` and `total` are in one unit (rows,
    bytes, steps).

    Writes to standard error.
    """
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    output = console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=output, transient=True) if output.is_terminal else None
    task = bar.add_task(label, total=total) if bar else None
    started = shown = time.monotonic()
    done = 0

    def advance(amount: int) -> None:
        nonlocal done, shown
        done += amount
        now = time.monotonic()
        if now - shown < (BAR_SECONDS if bar else LINE_SECONDS) and (bar is None or done < total):
            return
        shown = now
        if bar and task is not None:
            bar.update(task, completed=done)
        else:
            left = (now - started) * max(total - done, 0) / max(done, 1)
            print(
                f"{label}: {done / max(total, 1):.0%} after {now - started:.0f} s, about {left:.0f} s left",
                file=sys.stderr,
                flush=True,
            )

    with bar or nullcontext():
        yield advance
