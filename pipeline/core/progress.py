"""Progress of a long job: a bar on a terminal, an occasional plain line in a log. Nothing for a short job."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pipeline.core.text import console

BAR_SECONDS = 0.1  # A bar is redrawn at most this often.
LINE_SECONDS = 15.0  # A log gets a line at most this often.


@contextmanager
def terminal_bar(label: str, total: int) -> Iterator[Callable[[int], None] | None]:
    """Give `show(done)` of a bar on standard error; None if that is not a terminal."""
    from rich.progress import Progress, TextColumn

    output = console(stderr=True)
    if not output.is_terminal:
        yield None
        return
    in_sight = sys.stdout.isatty()  # Output that goes into a file can't disturb the bar.
    plain = TextColumn("{task.description}", markup=False), *Progress.get_default_columns()[1:]
    with Progress(*plain, console=output, transient=True, redirect_stdout=in_sight) as bar:
        task = bar.add_task(label, total=total)
        yield lambda done: bar.update(task, completed=done)


@contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Give `advance(amount)`, to be called as work is done; it writes to standard error.

    `amount` and `total` are in one unit (rows, bytes, steps).
    """
    started = shown = time.monotonic()
    done = 0

    def advance(amount: int) -> None:
        nonlocal done, shown
        done += amount
        now = time.monotonic()
        if now - shown < (BAR_SECONDS if show else LINE_SECONDS) and (show is None or done < total):
            return
        shown = now
        if show:
            show(done)
        else:
            left = (now - started) * max(total - done, 0) / max(done, 1)
            print(
                f"{label}: {done / max(total, 1):.0%} after {now - started:.0f} s, about {left:.0f} s left",
                file=sys.stderr,
                flush=True,
            )

    with terminal_bar(label, total) as show:
        yield advance
