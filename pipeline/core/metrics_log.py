"""The metrics log of a training run: one JSON line per step and per evaluation.

All lines are complete except for a torn last line, whenever the run is killed.

A row has a `kind`. "step": step, epoch (passes done), loss, learning_rate, grad_norm (before clipping),
tokens, trained_tokens, rows (packed rows in order), row_ids, seconds, tokens_per_second, memory_bytes.
"eval": step, eval_loss, samples ({"prompt", "answer", "reference"} each), seconds; asked if it was only asked
for (`quench watch`). Both have `items` (pairs or answers) and `measures` (means by name) if the method
measures more than its loss. Only the fields in `MEASURED` differ between two runs of the same inputs.
"""

import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

from pipeline.core.errors import DataError, MachineError
from pipeline.core.jsonl import BadLine, parse_object
from pipeline.core.publish import write_text

# Times and memory vary from run to run.
MEASURED = (
    "seconds",
    "tokens_per_second",
    "memory_bytes",
    "processes",  # number that shared the step; the sums equal those of a single process
)
# JSON can't represent them, so they are written as text.
NO_NUMBERS = {
    "NaN": math.nan,
    "Infinity": math.inf,
    "-Infinity": -math.inf,
}

RESTART = "start from the beginning with `python -m pipeline train --no-resume`"

Row = dict[str, Any]


class MetricsLog:
    """The file at `path`, which need not exist yet. Only one process may write it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = None

    def append(self, row: Row) -> None:
        """Append one row and pass it to the operating system: a kill -9 right after can't lose it."""
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _drop_torn_line(self.path)
            self._file = self.path.open("ab")
        try:
            self._file.write(_line(row).encode())
            self._file.flush()
        except OSError as error:
            raise MachineError(
                "Q-CORE-005",
                f"{self.path} can't be written ({error.strerror}): make room, then run the same command "
                "again",
            ) from error

    def rows(self) -> list[Row]:
        """Return the complete rows in order, without a torn last line.

        Raises `DataError` if a complete line is not a JSON object.
        """
        if not self.path.exists():
            return []
        # The part after the last newline is a torn line, or empty.
        lines = self.path.read_bytes().split(b"\n")[:-1]
        return [self._parsed(number, line) for number, line in enumerate(lines, start=1)]

    def truncate(self, after_step: int, *, evaluated: bool = True) -> None:
        """Keep the rows up to and including `after_step`, from which a resumed run starts.

        Without `evaluated`, the evaluation of that very step goes too: the run will do it again. Raises
        `DataError` if a step is missing.
        """
        self.close()
        kept = [
            row
            for row in self.rows()
            if row["step"] + (row["kind"] == "eval" and not evaluated) <= after_step
        ]
        steps = [row["step"] for row in kept if row["kind"] == "step"]
        if steps != list(range(1, after_step + 1)):
            raise DataError(
                "Q-CORE-007",
                f"{self.path} has {len(steps)} of the {after_step} steps that the checkpoint has: {RESTART}",
            )
        write_rows(self.path, kept)

    def sync(self) -> None:
        """Write what was appended to the disk: a checkpoint that survives a power cut must not know more
        steps than the metrics log.
        """
        if self._file is not None:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; the next `append` opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _parsed(self, number: int, line: bytes) -> Row:
        try:
            return parse_row(line)
        except BadLine as reason:
            raise DataError(
                "Q-CORE-007", f"line {number} of {self.path} is damaged ({reason}): {RESTART}"
            ) from reason


def parse_row(line: bytes) -> Row:
    """Return the row in a complete line. Raises `BadLine` if it is damaged."""
    row = parse_object(line)  # A model's answer may contain any character.
    return {
        key: NO_NUMBERS.get(value, value) if isinstance(value, str) else value for key, value in row.items()
    }


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Publish a metrics log of `rows` at `path`, completely or not at all."""
    write_text(path, "".join(_line(row) for row in rows))


def _line(row: Row) -> str:
    strict = {
        key: json.dumps(value) if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in row.items()
    }
    return json.dumps(strict, ensure_ascii=False, allow_nan=False) + "\n"


def _drop_torn_line(path: Path) -> None:
    """Cut what a killed run left after the last newline; otherwise the next row would be appended to it."""
    if path.exists():
        content = path.read_bytes()
        with path.open("r+b") as file:
            file.truncate(content.rfind(b"\n") + 1)
