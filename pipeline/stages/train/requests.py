"""Requests to a training in progress, for a checkpoint or an evaluation at the next step (`quench watch`).

A request is an empty file in the folder of the checkpoints. The training takes it away after the optimizer
step at hand. Neither changes what is trained: a checkpoint is one more place to resume from, an evaluation
draws no random number, and early stopping does not count it. GRPO alone evaluates by drawing answers, so it
is not asked to.
"""

from contextlib import suppress
from pathlib import Path

CHECKPOINT = ".asked-checkpoint"
EVALUATION = ".asked-evaluation"


def take(folder: Path) -> set[str]:
    """Return the requests in `folder`, which are gone then. One that can't be removed is no request."""
    taken = set()
    for name in (CHECKPOINT, EVALUATION):
        with suppress(OSError):
            (folder / name).unlink()
            taken.add(name)
    return taken
