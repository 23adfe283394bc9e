"""Send a run to one tracker, while it trains: the process behind `pipeline.extras.trackers.tracking`.

    python -m pipeline.extras.trackers.follow < request

Standard input gets the request, a line of JSON, and in the end how the training ended. If it closes without
that, the training was killed. The run's files are only read. What a tracker's library prints goes to
logs/trackers/NAME.log; the terminal gets a line for the run's place, and one if the tracker fails.
"""

import json
import math
import os
import signal
import sys
import threading
import traceback
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO, get_args

from pipeline.core.following import Growing, Lines
from pipeline.core.metrics_log import Row, parse_row
from pipeline.core.text import safe, shortened
from pipeline.extras.trackers.request import FILES, Outcome, Request, Sent, Stamp, Table, stamps
from pipeline.extras.trackers.sent_settings import USER
from pipeline.stages.train.run import run_id

LOOK_SECONDS = 1.0  # seconds between two looks at the run's files
# Seconds after the training's end in which a tracker may send the rest; the process ends itself then.
END_SECONDS = 150
SAMPLE = ("prompt", "reference", "answer")


class RunFiles:
    """The files of the run in the project `root`, which has `begun` when one of them is not as `before`."""

    def __init__(self, root: Path, before: list[Stamp]) -> None:
        record, log = FILES
        self.record = root / record
        self.root = root
        self.before = before
        self.has_begun = False
        self.log = Growing(root / log)
        self.lines = Lines()

    def run(self) -> str | None:
        """Return the run's id; None if it has not begun."""
        pairs = zip(stamps(self.root), self.before, strict=True)
        self.has_begun = self.has_begun or any(now not in (None, before) for now, before in pairs)
        if not self.has_begun:
            return None
        try:
            return run_id(json.loads(self.record.read_bytes())["record"])
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None  # It is being replaced.

    def rows(self) -> Iterator[Row]:
        """Yield the rows that the log has in addition to those of earlier calls, in order.

        After a resume the log is another file, and all of its rows come again. An incomplete last line is
        left for later, and a damaged one is left out.
        """
        for piece in self.log.read():
            for line in self.lines.add(piece.data, fresh=piece.fresh):
                with suppress(ValueError):
                    yield parse_row(line)


@dataclass
class Ending:
    """The end of the training: an `event`, and its `outcome`, None if the training was killed."""

    event: threading.Event = field(default_factory=threading.Event)
    outcome: Outcome | None = None

    def listen(self) -> None:
        """Wait for the end in a thread, so that a tracker that hangs ends with this process too."""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        word = os.read(0, 64).decode().strip()
        self.outcome = next((outcome for outcome in get_args(Outcome) if outcome == word), None)
        signal.alarm(END_SECONDS)
        self.event.set()


@dataclass
class Session:
    """A run at its tracker, and how much of the run has been sent."""

    root: Path
    tracker: Any
    sent: Sent

    @classmethod
    def opened(cls, request: Request, run: str, terminal: TextIO) -> "Session":
        """Return the session of the run `run`: continued if it is the one that the tracker had last."""
        # These import torch, and the tracker's own library.
        from pipeline.extras.trackers.kinds import KINDS, Place

        root = Path(request.root)
        before = Sent.read(root, request.tracker)
        continued = before is not None and before.run == run and (request.table or not before.finished)
        sent = before if before and continued else Sent(run, uuid.uuid4().hex)
        title = f"{request.title}-{run[:8]}"
        place = Place(root, title, sent.id, request.settings, resumed=sent is before)
        tracker = KINDS[request.tracker](place)
        if sent is not before:
            sent.id = tracker.id
            sent.write(root, request.tracker)
        if not request.table:
            again = "continues run" if sent is before else "gets this run as"
            where = shown(tracker.where)
            print(f"train: {request.tracker} {again} {title} ({where})", file=terminal, flush=True)
        return cls(root, tracker, sent)

    def send(self, rows: Iterator[Row]) -> None:
        """Send the rows that the tracker does not have yet."""
        count = 0
        for row in rows:
            count += self.send_row(row)
        if count:
            self.sent.write(self.root, self.tracker.name)

    def send_row(self, row: Row) -> bool:
        """Send a row unless the tracker has it. A resumed run repeats steps, with the same values."""
        step = int(row["step"])
        if row["kind"] == "step" and step > self.sent.step:
            self.tracker.log(points_of_step(row), step)
            self.sent.step = step
            return True
        if row["kind"] == "eval" and step > self.sent.evaluated:
            self.tracker.log(points_of_evaluation(row), step)
            if row.get("samples"):
                self.tracker.table(samples_of(row), step)
            self.sent.evaluated = step
            return True
        return False

    def send_table(self, table: Table) -> None:
        """Send the table at the end of a run, as a step after its last one."""
        step = self.sent.step + 1
        self.tracker.table(table, step)
        self.tracker.log(numbers(table.figures), step)
        self.sent.step = step
        self.sent.write(self.root, self.tracker.name)

    def close(self, outcome: Outcome | None) -> None:
        """End the run at the tracker."""
        self.tracker.close(outcome)
        self.sent.finished = outcome == "finished"
        self.sent.write(self.root, self.tracker.name)


def points_of_step(row: Row) -> dict[str, float]:
    """Return a step's points by the names of their curves, which are TensorBoard's."""
    from pipeline.stages.train.journal import STEP_CURVES

    named = {name: row.get(curve) for curve, name in STEP_CURVES.items()}
    return numbers({"epoch": row.get("epoch")} | named | row.get("measures", {}))


def points_of_evaluation(row: Row) -> dict[str, float]:
    """Return an evaluation's points by the names of their curves, which are TensorBoard's."""
    measures = {f"eval_{name}": value for name, value in row.get("measures", {}).items()}
    return numbers({"eval_loss": row.get("eval_loss")} | measures)


def shown(text: str) -> str:
    """Return a library's or a server's text for the terminal, without the password of an address."""
    return safe(USER.sub("", text))


def numbers(values: dict[str, Any]) -> dict[str, float]:
    """Return the values that are finite numbers: not every tracker takes others."""
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def samples_of(row: Row) -> Table:
    """Return the sample answers of an evaluation."""
    rows = [
        [row["step"], number, *(sample[part] for part in SAMPLE)]
        for number, sample in enumerate(row["samples"], start=1)
    ]
    return Table("samples", ["step", "number", *SAMPLE], rows)


def follow(request: Request, ending: Ending, terminal: TextIO) -> None:
    """Send the run that begins below the request's root, until `ending` has come."""
    files = RunFiles(Path(request.root), request.before)
    session: Session | None = None
    is_over = False
    while not is_over:
        is_over = ending.event.wait(LOOK_SECONDS)
        run = files.run()
        if run is not None and (session is None or session.sent.run != run):
            if session:  # Another run has taken the folder.
                session.close(None)
            session = Session.opened(request, run, terminal)
            files.log = Growing(files.log.path)
        if session:
            session.send(files.rows())
    if session:
        session.close(ending.outcome)


def add_table(request: Request, table: Table, terminal: TextIO) -> None:
    """Send the table at the end of a run that the tracker has."""
    session = Session.opened(request, request.run, terminal)
    session.send_table(table)
    session.close("finished")


def main() -> int:
    """Do what standard input asks for. Return 1 after a sentence if the tracker fails."""
    with open(0, "rb", buffering=0, closefd=False) as asked:
        request = Request.parsed(asked.readline())
    root = Path(request.root)
    log = root / "logs/trackers" / f"{request.tracker}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    terminal = os.fdopen(os.dup(2), "w", encoding="utf-8", errors="replace")
    with log.open("ab") as prints:
        os.dup2(prints.fileno(), 1)
        os.dup2(prints.fileno(), 2)
    try:
        os.chdir(root)  # Relative paths in a tracker's variables are the project's.
        if request.table:
            signal.alarm(END_SECONDS)
            add_table(request, request.table, terminal)
        else:
            ending = Ending()
            ending.listen()
            follow(request, ending, terminal)
    # A library may raise anything, or exit. Whatever it is, the training goes on.
    except (Exception, SystemExit) as error:
        reason = shown(f"{type(error).__name__}: {shortened(error)}")
        print(*map(shown, traceback.format_exc().splitlines()), sep="\n", file=sys.stderr)
        print(
            f"train: warning: {request.tracker} failed ({reason}) and gets no more of this run, which goes "
            f"on; {log.relative_to(root)} has what it printed",
            file=terminal,
            flush=True,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
