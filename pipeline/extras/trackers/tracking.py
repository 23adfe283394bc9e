"""Start and end the processes that send a run to its trackers (`pipeline.extras.trackers.follow`).

Nothing here stops a stage: a process that can't be started, fails or does not end is a line of warning.
"""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pipeline.config.params import Params
from pipeline.core.places import PROJECT
from pipeline.extras.trackers.request import Outcome, Request, Sent, Table, stamps
from pipeline.extras.trackers.sent_settings import sent_settings
from pipeline.stages.train.run import run_id

# Seconds in which a tracker may send the rest after the training has ended. Someone waits for a stopped one.
PATIENCE: dict[Outcome, float] = {"finished": 120, "failed": 20, "stopped": 10}
# Variables of a training in several processes, in which accelerate would take part.
OF_A_GROUP = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
STARTS_OF_A_GROUP = ("TORCHELASTIC_", "OMPI_", "MPI_", "MV2_", "PMI_", "ACCELERATE_")
# The libraries report nothing about themselves, and compute nothing on a GPU.
QUIET = {
    "DO_NOT_TRACK": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "WANDB_ERROR_REPORTING": "false",
    "DVC_NO_ANALYTICS": "true",
    "GRADIO_ANALYTICS_ENABLED": "False",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
LEVELS = Path("reports/quants.csv")
ADAPTER_RECORD = Path("models/adapter/run.json")


class Follower:
    """The process that sends a run to one tracker."""

    def __init__(self, request: Request) -> None:
        self.tracker = request.tracker
        self.process = subprocess.Popen(
            [sys.executable, "-m", __name__.replace("tracking", "follow")],
            cwd=PROJECT,
            env=environment(),
            stdin=subprocess.PIPE,
            # Ctrl-C in a terminal reaches an entire group, and the process ends after the training.
            start_new_session=True,
        )
        self.tell(request.line())

    def tell(self, line: bytes) -> None:
        """Write to the process, if it is still there."""
        assert self.process.stdin is not None, "it has a pipe"
        with suppress(OSError):
            self.process.stdin.write(line)
            self.process.stdin.flush()

    def close(self, line: bytes = b"") -> None:
        """Tell the process that this was all."""
        self.tell(line)
        assert self.process.stdin is not None, "it has a pipe"
        with suppress(OSError):
            self.process.stdin.close()

    def wait(self, seconds: float) -> None:
        """Wait until the process has ended, and end it after so many seconds. Print a line if it did not end
        by itself; it has said why it failed.
        """
        try:
            code = self.process.wait(max(seconds, 0))
        except subprocess.TimeoutExpired:
            self.kill()
            warn(self.tracker, "did not end in time, so it may lack the last steps")
            return
        except BaseException:
            self.kill()
            raise
        if code not in (0, 1):
            warn(self.tracker, f"ended before the run (exit status {code}), so it lacks the steps since then")

    def kill(self) -> None:
        """End the process with all that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def environment() -> dict[str, str]:
    """Return the environment of a tracker's process: this one, without the group and the GPU."""
    own = {
        name: value
        for name, value in os.environ.items()
        if name not in OF_A_GROUP and not name.startswith(STARTS_OF_A_GROUP)
    }
    return QUIET | own | {"CUDA_VISIBLE_DEVICES": ""}


def warn(tracker: str, what: str) -> None:
    """Print a line about a tracker that did not get everything."""
    print(f"train: warning: {tracker} {what}", file=sys.stderr, flush=True)


def started(request: Request) -> Follower | None:
    """Return the process that does `request`; None, after a warning, if it can't be started."""
    try:
        return Follower(request)
    except OSError as error:
        warn(request.tracker, f"can't be started ({error.strerror}), so it gets nothing")
        return None


@contextmanager
def following(params: Params, root: Path) -> Iterator[None]:
    """Have the trackers follow the training that the body runs below `root`."""
    before = stamps(root)
    settings = sent_settings(params)
    requests = [
        Request(name, str(root.resolve()), params.convert.name, settings, before)
        for name in params.train.trackers
    ]
    followers = [follower for follower in map(started, requests) if follower]
    outcome: Outcome = "failed"
    try:
        yield
        outcome = "finished"
    except KeyboardInterrupt:  # `Stopped` is one.
        outcome = "stopped"
        raise
    finally:
        end(followers, outcome)


def end(followers: list[Follower], outcome: Outcome) -> None:
    """Tell the processes how the training ended, and wait for them together."""
    for follower in followers:
        follower.close(outcome.encode())
    deadline = time.monotonic() + PATIENCE[outcome]
    for follower in followers:
        follower.wait(deadline - time.monotonic())


@contextmanager
def sending_levels(params: Params, root: Path) -> Iterator[None]:
    """Send the report's table, which the body writes below `root`, to the trackers that have the run of the
    adapter there.
    """
    yield
    run = adapter_run(root)
    table = levels(root / LEVELS)
    if run is None or table is None:
        return
    requests = [
        Request(name, str(root.resolve()), params.convert.name, sent_settings(params), [], run, table)
        for name in params.train.trackers
        if (sent := Sent.read(root, name)) is not None and sent.run == run
    ]
    followers = [follower for follower in map(started, requests) if follower]
    for follower in followers:
        follower.close()
    deadline = time.monotonic() + PATIENCE["finished"]
    for follower in followers:
        follower.wait(deadline - time.monotonic())


def adapter_run(root: Path) -> str | None:
    """Return the id of the run that made the adapter below `root`; None if that can't be read."""
    try:
        return run_id(json.loads((root / ADAPTER_RECORD).read_bytes()))
    except (OSError, ValueError, AttributeError):
        return None


def levels(file: Path) -> Table | None:
    """Return the report's table, a row for each level; None if it can't be read."""
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            columns, *rows = csv.reader(lines)
    except (OSError, ValueError):
        return None
    figures = {
        f"{row[0]}/{column}": float(value)
        for row in rows
        for column, value in zip(columns[1:], row[1:], strict=True)
        if is_number(value)
    }
    return Table("levels", columns, rows, figures)


def is_number(text: str) -> bool:
    """Return True for the text of a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
