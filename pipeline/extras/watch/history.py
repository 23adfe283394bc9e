"""What is known of a run: its curves, evaluations, sample answers, checks and last lines, from the pieces of
its files as they come.

A line that is not complete waits for its rest. A complete one that can't be read is counted and left out.
"""

import math
import statistics
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from pydantic import ValidationError

from pipeline.config.sections import Training
from pipeline.core.checks import Check
from pipeline.core.following import Lines
from pipeline.core.jsonl import BadLine, parse_object
from pipeline.core.metrics_log import parse_row
from pipeline.core.text import plural, safe
from pipeline.core.units import size_text
from pipeline.extras.watch.source import Facts, Piece
from pipeline.pages.formats import duration
from pipeline.planning.duration import total_steps
from pipeline.stages.train.method import monitor_of
from pipeline.stages.train.monitoring.monitor import Monitor

LINES = 200  # last lines of the log that are kept
LONGEST = 4000  # characters of a line, or of a text in a sample
LONGEST_TITLE = 40  # characters of a measure's name
EVALUATIONS = 50  # last evaluations whose samples are kept
RECENT = 20  # last steps from whose median time the time left is estimated
HALF_TIME_UNKNOWN = 1 << 50


@dataclass(frozen=True)
class Curve:
    """A figure of the steps: its `key` in the metrics log, its title, and how a value is written.

    `held_out` is the key of the same figure in the evaluations.
    """

    key: str
    title: str
    text: Callable[[float], str]
    held_out: str = ""


def number(value: float) -> str:
    """Return a figure with three digits."""
    return f"{value:.3g}"


def rate(value: float) -> str:
    """Return a learning rate."""
    return f"{value:.1e}"


LOSS = Curve("loss", "Loss", number, "eval_loss")
CURVES = (
    LOSS,
    Curve("learning_rate", "Learning rate", rate),
    Curve("grad_norm", "Gradient norm", number),
    Curve("tokens_per_second", "Tokens/s", number),
    Curve("memory_bytes", "Memory", size_text),
)
# Measures of a method by their name in the metrics log, the ones to look at first. Others follow by name.
MEASURES = {
    "reward": "Reward",
    "accuracy": "Ranked correctly",
    "margin": "Margin",
    "zero_variance": "Groups of equal rewards",
    "kl": "Divergence from the base",
    "entropy": "Entropy",
    "completion_tokens": "Tokens of a completion",
    "truncated": "Completions cut off",
}


@dataclass
class Points:
    """The values of a figure by step."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, step: int, value: object) -> None:
        """Add a value if it is a finite number. A step that comes again replaces its first."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return
        while self.steps and self.steps[-1] >= step:
            self.steps.pop()
            self.values.pop()
        self.steps.append(step)
        self.values.append(float(value))


@dataclass(frozen=True)
class Sample:
    """An answer of the model in training to a held-out question."""

    prompt: str
    answer: str
    reference: str


@dataclass(frozen=True)
class Evaluation:
    """An evaluation on the held-out rows."""

    step: int
    loss: float
    samples: list[Sample]
    asked: bool


class History:
    """A run as far as its files are read.

    `version` counts what has changed, `begun` how often it began again.
    """

    def __init__(self) -> None:
        self.facts = Facts(there=False, pid=None, elsewhere=False, run=None, rows=None, page=None)
        self.record: Mapping[str, Any] = {}
        self.settings: Training | None = None
        self.strange = ""  # why there are no checks
        self.log: deque[str] = deque(maxlen=LINES)
        self.version = 0
        self.begun = 0
        self._lines = {"journal": Lines(), "log": Lines()}
        self._begin()

    def _begin(self) -> None:
        """Forget the steps: another run's come, or the same from an earlier one on."""
        self.begun += 1
        self.step = 0
        self.points: dict[str, Points] = {}
        self.held_out: dict[str, Points] = {}
        self.evaluations: deque[Evaluation] = deque(maxlen=EVALUATIONS)
        # New warnings and failures as they came. A rule repeats only a graver one.
        self.events: list[Check] = []
        self.seconds: deque[float] = deque(maxlen=RECENT)
        self.left_out = 0  # bytes of the journal before the part that is read
        self.damaged = 0  # lines that can't be read
        self.several = False  # several processes train together
        self._monitor: Monitor | None = None

    # --- what comes -----------------------------------------------------------------------------------------

    def add(self, news: Facts | Piece) -> None:
        """Add one message of a source."""
        self.version += 1
        if isinstance(news, Facts):
            self._know(news)
            return
        if news.fresh and news.file == "journal":
            self._begin()
            self.left_out = news.left_out
        elif news.fresh:
            self.log.clear()
        for line in self._lines[news.file].add(news.data, fresh=news.fresh):
            if news.file == "log":
                text = line.decode("utf-8", errors="replace").rstrip("\r").rpartition("\r")[2]
                self.log.append(safe(text, LONGEST))
            else:
                self._row(line)

    def _know(self, facts: Facts) -> None:
        changed = facts.run != self.facts.run
        self.facts = facts
        if not changed or facts.run is None:
            return
        try:
            self.record = parse_object(facts.run.encode())
        except BadLine:
            return  # It is being written.
        settings = (self.record.get("record") or {}).get("settings")
        try:
            self.settings = Training.model_validate(settings)
            self.strange = ""
        except ValidationError as error:
            self.settings = None
            key = ".".join(map(str, error.errors()[0]["loc"]))
            self.strange = f"no checks: this run is of another version of Quench (train.{safe(key, 60)})"

    def _row(self, line: bytes) -> None:
        try:
            row = parse_row(line)
            step = row["step"]
            if not isinstance(step, int) or isinstance(step, bool) or row["kind"] not in ("step", "eval"):
                raise BadLine("not_a_step", "it is no row of the metrics log")
        except (BadLine, KeyError):
            self.damaged += bool(line.strip())
            return
        if row["kind"] == "step":
            self.step = step
            self._put(self.points, step, row)
            if isinstance(row.get("seconds"), int | float):
                self.seconds.append(float(row["seconds"]))
            self.several = isinstance(row.get("processes"), int) and row["processes"] > 1
        else:
            self._put(self.held_out, step, row)
            self._evaluated(step, row)
        self._judge(row)

    def _put(self, where: dict[str, Points], step: int, row: Mapping[str, Any]) -> None:
        measures = row.get("measures")
        values = {**row, **(measures if isinstance(measures, dict) else {})}
        for key in ("step", "epoch", "tokens", "trained_tokens", "seconds", "items", "processes"):
            values.pop(key, None)
        for key, value in values.items():
            if isinstance(value, int | float):
                where.setdefault(key, Points()).add(step, value)

    def _evaluated(self, step: int, row: Mapping[str, Any]) -> None:
        loss = row.get("eval_loss")
        samples = [
            Sample(
                *(
                    safe(str(sample.get(key, "")), LONGEST, lines=True)
                    for key in ("prompt", "answer", "reference")
                )
            )
            for sample in row.get("samples") or []
            if isinstance(sample, dict)
        ]
        asked = row.get("asked") is True
        self.evaluations.append(
            Evaluation(step, loss if isinstance(loss, int | float) else math.nan, samples, asked)
        )

    def _judge(self, row: dict[str, Any]) -> None:
        """Let the rules of training's own monitor judge the row."""
        if self.settings is None or self.strange:
            return
        if self._monitor is None:
            self._monitor = monitor_of(self.planned or HALF_TIME_UNKNOWN, self.settings)
        try:
            self.events.extend(self._monitor.see(row))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self._monitor = None
            self.strange = f"no checks: the steps are of another version of Quench ({safe(str(error), 60)})"

    # --- what is shown --------------------------------------------------------------------------------------

    @property
    def planned(self) -> int | None:
        """The optimizer steps of the entire run; None if they are not known."""
        if self.settings is None or (self.settings.max_steps <= 0 and not self.facts.rows):
            return None
        return total_steps(self.settings, self.facts.rows or 0)

    @property
    def finished(self) -> bool:
        """True if the run's adapter is published, or only the report of a run is left."""
        if self.facts.run is None:
            return self.facts.there and self.facts.pid is None
        return self.record.get("finished") is True

    @property
    def state(self) -> str:
        """The state in one word: finished, training, starting, stopped, or waiting for a training."""
        if self.facts.pid is not None:
            return "training" if self.step else "starting"
        if self.finished:
            return "finished"
        return "stopped" if self.facts.there else "waiting"

    @property
    def seconds_left(self) -> float | None:
        """The time that the rest takes, by the time of the last steps; None if it is not known."""
        if self.planned is None or not self.seconds or self.state != "training" or self.step >= self.planned:
            return None
        return (self.planned - self.step) * statistics.median(self.seconds)

    def curves(self) -> list[Curve]:
        """Return the curves of this run: first the reward, if the method has one."""
        known = [key for key in MEASURES if key in self.points]
        first = {curve.key for curve in CURVES} | {"eval_loss", "weightless", "asked"}
        others = sorted(self.points.keys() - first - MEASURES.keys())
        measures = [
            Curve(key, MEASURES.get(key, safe(key, LONGEST_TITLE)), number, key) for key in [*known, *others]
        ]
        leading = [curve for curve in measures if curve.key == "reward"]
        rest = [curve for curve in measures if curve.key != "reward"]
        return [*leading, *CURVES, *rest]

    def series(self, curve: Curve) -> tuple[Points, Points]:
        """Return a curve's points in the steps, and in the evaluations."""
        held_out = self.held_out.get(curve.held_out, Points())
        if curve is LOSS and "reward" in self.held_out:
            held_out = Points()  # It is the negative reward there, and no loss.
        return self.points.get(curve.key, Points()), held_out

    def newest(self, curve: Curve) -> str:
        """Return the newest value of a curve as text, and of the held-out rows."""
        trained, held_out = self.series(curve)
        words = [curve.text(trained.values[-1])] if trained.values else []
        if held_out.values:
            words.append(f"held out {curve.text(held_out.values[-1])}")
        return ", ".join(words) or "–"

    def checks(self) -> list[Check]:
        """Return the findings of the rules, failures and warnings first."""
        return self._monitor.findings() if self._monitor else []

    def headline(self) -> str:
        """Return the state of the run in one line."""
        of = f" of {self.planned}" if self.planned else ""
        words = [self.state, f"step {self.step}{of}"]
        loss = self.newest(LOSS)
        if loss != "–":
            words.append(f"loss {loss}")
        if self.seconds_left is not None:
            words.append(f"about {duration(self.seconds_left)} left")
        elif self.state == "training" and self.step == self.planned:
            words.append("the last evaluation")
        if self.facts.elsewhere:
            words.append("on another machine")
        return " · ".join(words)

    def notes(self) -> list[str]:
        """Return what a reader should know about the figures, a sentence each."""
        notes = []
        if self.left_out:
            notes.append(
                f"the first {size_text(self.left_out)} of the steps are not shown: only the last are read"
            )
        if self.damaged:
            notes.append(f"{plural(self.damaged, 'line')} of the steps can't be read and are left out")
        if self.strange:
            notes.append(self.strange)
        if self.state == "stopped":
            notes.append("no process trains here: the same command as before resumes the run")
        return notes

    def last_lines(self, count: int) -> list[str]:
        """Return the last lines of the log."""
        return list(islice(self.log, max(0, len(self.log) - count), None))
