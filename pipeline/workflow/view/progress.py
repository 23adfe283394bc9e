"""How far a job is, by what its stage says: the lines in its log, and of a training the log of its steps."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

STEPS = Path("models/checkpoints/steps.jsonl")  # a row for each step of a training
LAST = 1 << 18  # bytes of it that are read
# Lines of `pipeline.core.progress`, and of a training's journal.
SHARE = re.compile(r"(?P<label>.*): (?P<percent>\d+)% after \d+ s, about (?P<left>\d+) s left")
STEP = re.compile(r"\w+: step (?P<step>\d+) of (?P<all>\d+)\b")
WARNING = re.compile(r"\b(?:warn(?:ing)?|beware)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Far:
    """A share from 0 to 1 of a job, or of a part of it, the seconds left of that, and both in words."""

    share: float
    left: float | None
    text: str
    steps: int = 0  # of a training


def from_line(line: str) -> Far | None:
    """Return how far a job is by a line of its log; None if the line is about something else."""
    if said := SHARE.fullmatch(line):
        label = said["label"].rpartition(": ")[2]
        return Far(int(said["percent"]) / 100, float(said["left"]), f"{label}, {said['percent']} %")
    if said := STEP.match(line):
        step = int(said["step"])
        steps = int(said["all"])
        return Far(step / max(steps, 1), None, f"step {step} of {steps}", steps)
    return None


def from_steps(root: Path, steps: int) -> Far | None:
    """Return how far a training of so many `steps` is by its last rows; None if they can't be read."""
    rows = _last_rows(root / STEPS)
    seconds = sorted(row["seconds"] for row in rows)
    if not rows or not steps:
        return None
    step = rows[-1]["step"]
    left = (steps - step) * seconds[len(seconds) // 2]
    loss = rows[-1]["loss"]
    shown = f", loss {loss:.3g}" if isinstance(loss, float) else ""
    return Far(min(step / steps, 1.0), max(left, 0.0), f"step {step} of {steps}{shown}", steps)


def _last_rows(path: Path) -> list[dict]:
    """Return the rows of steps at the file's end that are whole."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - LAST))
            lines = file.read(LAST).split(b"\n")[:-1]
    except OSError:
        return []
    rows = []
    for line in lines:
        try:
            row = json.loads(line)
            if row["kind"] == "step" and isinstance(row["step"], int):
                rows.append({"step": row["step"], "seconds": float(row["seconds"]), "loss": row.get("loss")})
        except (ValueError, TypeError, KeyError):  # the first line may be cut
            continue
    return rows
