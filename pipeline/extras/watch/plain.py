"""The run as lines of text: for a screen reader, a file or a pipe, and where Textual is not installed."""

import time

from pipeline.core.checks import Check, counts_text
from pipeline.core.text import one_line
from pipeline.extras.watch.history import Curve, Evaluation, History, number
from pipeline.extras.watch.watched import Watched

LOOK_SECONDS = 1.0
LINE_SECONDS = 15.0  # The step is said at most this often.
LETTERS = 400  # characters of a text in a sample


def show(watched: Watched) -> None:
    """Print what is known, then what comes, until the training ends."""
    watched.read_all()
    watched.need_training()
    with watched.history() as history:
        print(f"{watched.source.name}: {history.headline()}")
        for line in summary(history):
            print(line, flush=True)
        seen = Seen(history)
    said = time.monotonic()
    while True:
        with watched.history() as history:
            for line in seen.new(history):
                print(line, flush=True)
            if history.state not in ("starting", "training"):
                if seen.was_running:
                    print(history.headline(), flush=True)
                return
            if time.monotonic() - said >= LINE_SECONDS and history.step != seen.step:
                seen.step = history.step
                said = time.monotonic()
                print(history.headline(), flush=True)
        trouble = watched.source.trouble
        if trouble and trouble != seen.trouble:
            print(trouble, flush=True)
        seen.trouble = trouble
        time.sleep(LOOK_SECONDS)
        watched.read_all()


class Seen:
    """What has been said of a run."""

    def __init__(self, history: History) -> None:
        self.step = history.step
        self.trouble = ""
        self.was_running = history.state in ("starting", "training")
        self._remember(history)

    def _remember(self, history: History) -> None:
        self.begun = history.begun
        self.evaluation = history.evaluations[-1].step if history.evaluations else 0
        self.events = len(history.events)

    def new(self, history: History) -> list[str]:
        """Return the lines of what has come since the last call: evaluations and checks."""
        if history.begun != self.begun:
            self.begun = history.begun
            self.evaluation = 0
            self.events = 0
        lines = [
            text
            for row in history.evaluations
            if row.step > self.evaluation
            for text in evaluation_lines(row)
        ]
        lines += [check_line(check) for check in history.events[self.events :]]
        self._remember(history)
        return lines


def summary(history: History) -> list[str]:
    """Return the run in lines: notes, curves, the last evaluation, checks, the log's last line."""
    lines = [f"note: {note}" for note in history.notes()]
    lines += [curve_line(curve, history) for curve in history.curves() if history.series(curve)[0].values]
    if history.evaluations:
        lines += evaluation_lines(history.evaluations[-1])
    lines += [check_line(check) for check in history.checks() if check.verdict in ("warn", "fail")]
    checks = history.checks()
    if checks:
        lines.append(f"checks: {counts_text(checks)}")
    return lines + [f"log: {one_line(line, 200)}" for line in history.last_lines(1)]


def curve_line(curve: Curve, history: History) -> str:
    """Return a curve in words: its newest value, its first, its range."""
    trained, _ = history.series(curve)
    lowest = min(trained.values)
    highest = max(trained.values)
    return (
        f"{curve.title}: {history.newest(curve)} at step {trained.steps[-1]}; "
        f"{curve.text(trained.values[0])} at step {trained.steps[0]}, "
        f"between {curve.text(lowest)} and {curve.text(highest)}"
    )


def evaluation_lines(row: Evaluation) -> list[str]:
    """Return an evaluation with its sample answers in lines."""
    asked = " (asked for)" if row.asked else ""
    lines = [f"step {row.step}: loss on the held-out rows {number(row.loss)}{asked}"]
    for place, sample in enumerate(row.samples, start=1):
        lines += [
            f"  question {place}: {one_line(sample.prompt, LETTERS)}",
            f"  expected {place}: {one_line(sample.reference, LETTERS)}",
            f"  answer {place}: {one_line(sample.answer, LETTERS)}",
        ]
    return lines


def check_line(check: Check) -> str:
    """Return a warning or a failure with its cause in one line."""
    at = f" (step {check.step})" if check.step is not None else ""
    remedy = f" → {check.remedy}" if check.remedy else ""
    return f"{check.verdict}: {check.name}{at}: {check.found}{remedy}"
