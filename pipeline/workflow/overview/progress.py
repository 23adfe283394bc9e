"""How far a job is, by what its stage says: the lines in its log, and of a training the log of its steps."""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

STEPS = Path("models/checkpoints/steps.jsonl")  # a row for each step of a training
TAIL = 1 << 17  # bytes at the end of a log that are read, however long it is
RECENT = 20  # steps whose seconds say how long the next ones take
# Lines of `pipeline.core.progress`, and of a training's journal.
SHARE = re.compile(r"(?P<label>.*): (?P<percent>\d+)% after \d+ s, about (?P<left>\d+) s left")
STEP = re.compile(r"\w+: step (?P<step>\d+) of (?P<all>\d+)\b(?P<evaluating>, evaluating\b)?")


@dataclass(frozen=True)
class Far:
    """A share from 0 to 1 of a job, or of a part of it, the seconds left of that, and what it does."""

    share: float
    left: float | None
    what: str
    steps: int = 0  # of a training
    evaluating: bool = False  # a training that evaluates after this step

    @property
    def text(self) -> str:
        """What it does, and how far that is."""
        return self.what if self.steps else f"{self.what}, {self.share * 100:.0f} %"


def is_past(steps: Far, log: Far) -> bool:
    """Return True unless the log names an evaluation that comes after all `steps` of the metrics log."""
    return not log.evaluating or steps.share > log.share


def from_line(line: str) -> Far | None:
    """Return how far a job is by a line of its log; None if the line is about something else."""
    if said := SHARE.fullmatch(line):
        return Far(int(said["percent"]) / 100, float(said["left"]), said["label"].rpartition(": ")[2])
    if said := STEP.match(line):
        step = int(said["step"])
        steps = int(said["all"])
        what = f"step {step} of {steps}{said['evaluating'] or ''}"
        return Far(step / max(steps, 1), None, what, steps, bool(said["evaluating"]))
    return None


def from_log(file: Path) -> Far | None:
    """Return how far a job is by the last line of its log that says it; None if none does."""
    lines = re.split(r"[\r\n]+", tail(file).decode("utf-8", errors="replace"))
    return next((far for line in reversed(lines) if (far := from_line(line))), None)


def from_steps(root: Path, steps: int) -> Far | None:
    """Return how far a training of so many `steps` is by its last rows; None if they can't be read."""
    rows = _last_rows(root / STEPS)
    if not rows or not steps:
        return None
    seconds = sorted(row["seconds"] for row in rows[-RECENT:])
    step = rows[-1]["step"]
    left = (steps - step) * seconds[len(seconds) // 2]
    loss = rows[-1]["loss"]
    shown = f", loss {loss:.3g}" if isinstance(loss, float) else ""
    return Far(min(step / steps, 1.0), max(left, 0.0), f"step {step} of {steps}{shown}", steps)


def tail(file: Path) -> bytes:
    """Return the end of a log; nothing if it can't be read."""
    try:
        with file.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - TAIL))
            return log.read(TAIL)
    except OSError:
        return b""


def _last_rows(path: Path) -> list[dict]:
    """Return the rows of steps at the file's end that are whole."""
    rows = []
    for line in tail(path).split(b"\n")[:-1]:
        try:
            row = json.loads(line)
            if row["kind"] == "step" and isinstance(row["step"], int):
                rows.append({"step": row["step"], "seconds": float(row["seconds"]), "loss": row.get("loss")})
        except (ValueError, TypeError, KeyError):  # the first line may be cut
            continue
    return rows
