"""CPU time of `quench watch` on a run of 10,000 steps: the first look, a look with nothing new, and one that
draws a new step. Times are the process's own, so other work on the machine doesn't count.

    python benchmarks/watching.py
"""

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

from pipeline.extras.watch.app import SHARE, WatchApp
from pipeline.extras.watch.source import LocalRun
from pipeline.extras.watch.watched import Watched

STEPS = 10_000
LOOKS = 20
SIZES = ((80, 24), (160, 50))


def step(number: int) -> str:
    """Return a line of the metrics log."""
    row = {
        "kind": "step",
        "step": number,
        "epoch": number / STEPS,
        "loss": 2 - number / STEPS,
        "grad_norm": 0.8,
    }
    row |= {
        "learning_rate": 2e-4,
        "tokens": 1024,
        "trained_tokens": 400,
        "rows": [1],
        "row_ids": [["chat-1"]],
    }
    row |= {"seconds": 1.0, "tokens_per_second": 1024.0, "memory_bytes": 3_400_000_000}
    return json.dumps(row) + "\n"


async def measure(root: Path, size: tuple[int, int]) -> None:
    """Print the times on a screen of this size."""
    started = time.process_time()
    watched = Watched(LocalRun(root))
    watched.read_all()
    first = time.process_time() - started
    app = WatchApp(watched)
    async with app.run_test(size=size) as pilot:
        await pilot.pause(0.5)
        started = time.process_time()
        for _ in range(LOOKS):
            await app.look()
        idle = (time.process_time() - started) / LOOKS
        started = time.process_time()
        for number in range(LOOKS):
            with (root / "models/checkpoints/steps.jsonl").open("a") as journal:
                journal.write(step(STEPS + number + 1))
            await app.look()
            app.drawn = 0.0  # Otherwise a second drawing waits until its share of the time has passed.
            await pilot.pause(0.05)
        drawn = (time.process_time() - started) / LOOKS
    print(
        f"{size[0]}x{size[1]}: first look {first:.2f} s, nothing new {idle * 1000:.2f} ms, a new step "
        f"{drawn * 1000:.0f} ms (at most {SHARE:.0%} of a core: every {drawn / SHARE:.1f} s)"
    )


def main() -> None:
    """Measure on each size of screen."""
    for size in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            journal = Path(folder) / "models/checkpoints/steps.jsonl"
            journal.parent.mkdir(parents=True)
            journal.write_text("".join(map(step, range(1, STEPS + 1))))
            asyncio.run(measure(Path(folder), size))


if __name__ == "__main__":
    sys.exit(main())
