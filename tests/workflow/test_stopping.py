"""Signals to a run, as terminals, users and batch systems send them, on the toy project (`tests/toy`): its
training stops after its step and says so in the terminal and in its log, and the run ends with that signal's
code.
"""

import fcntl
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import threading
from pathlib import Path

import pytest
from make import until
from toy_project import write_toy
from user_project import BIN

from pipeline.core.locks import stages_at_work
from pipeline.core.places import PROJECT

SNAKEMAKE, QUENCH = [sys.executable, "-m", "snakemake"], [sys.executable, "-m", "pipeline.cli", "run"]
SECONDS = 300  # beside other tests a start takes many


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The toy, whose training lasts until it is stopped."""
    monkeypatch.setenv("PATH", f"{BIN}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    root = write_toy(tmp_path / "toy")
    (root / "step").touch()
    return root


class Terminal:
    """A command in the foreground of a terminal of its own."""

    def __init__(self, command: list[str], root: Path) -> None:
        self.keys, inside = pty.openpty()
        self.text = ""
        self.process = subprocess.Popen(
            command,
            cwd=root,
            stdin=inside,
            stdout=inside,
            stderr=inside,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(inside)
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self) -> None:
        try:
            while part := os.read(self.keys, 2**16):
                self.text += part.decode(errors="replace")
        except OSError:  # everything in it has ended
            pass

    def press(self, key: bytes) -> None:
        os.write(self.keys, key)

    def end(self) -> tuple[int, list[str]]:
        """Wait for the command; its exit code and the lines in the terminal."""
        code = self.process.wait(SECONDS)
        self.reader.join(SECONDS)
        os.close(self.keys)
        return code, [line.strip() for line in shown(self.text) if line.strip()]


def shown(text: str) -> list[str]:
    """The lines that a terminal shows in the end, of a text that moves up over lines and erases them."""
    lines = [""]
    row = 0
    for part in re.findall(r"\x1b\[[\d;?]*[A-Za-z]|\r\n|\n|\r|[^\x1b\r\n]+", text):
        if part in ("\n", "\r\n"):
            row += 1
            lines += [""] * (row == len(lines))
        elif up := re.fullmatch(r"\x1b\[(\d*)A", part):
            row = max(row - int(up[1] or 1), 0)
        elif part == "\x1b[2K":
            lines[row] = ""
        elif not part.startswith(("\x1b", "\r")):
            lines[row] += part
    return lines


def trains(root: Path) -> bool:
    """Return True if the toy's training is in its step."""
    log = root / "logs/train.log"
    return log.exists() and "train: step 1" in log.read_text()


@pytest.mark.parametrize(
    ("command", "last"),
    [
        pytest.param(SNAKEMAKE, "train: stopped by SIGINT: checkpoint-1 is complete", marks=pytest.mark.slow),
        (QUENCH, "quench: stopped by SIGINT: the same command goes on"),
    ],
    ids=["snakemake", "quench"],
)
def test_ctrl_c_in_a_terminal(toy: Path, command: list[str], last: str) -> None:
    terminal = Terminal([*command, "train", "-c1"], toy)
    until(lambda: trains(toy), SECONDS)
    terminal.press(b"\x03")
    code, lines = terminal.end()
    sentence = "train: stopped by SIGINT: checkpoint-1 is complete"
    assert sentence in lines
    # Under Snakemake the run view's own line may come before or after that of the stage's log.
    assert last in lines[-2:], lines
    assert sentence in (toy / "logs/train.log").read_text().splitlines()
    assert code == 128 + signal.SIGINT
    assert stages_at_work(toy) == {}


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)], ids=lambda one: one.name
)
def test_a_signal_to_quench_run_alone_reaches_its_stage_and_no_other(
    toy: Path, number: signal.Signals
) -> None:
    run = subprocess.Popen(
        [*QUENCH, "train", "-c1"],
        cwd=toy,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    until(lambda: trains(toy), SECONDS)
    (toy / "hold").touch()
    by_hand = subprocess.Popen([sys.executable, "run.py", "report"], cwd=toy)
    until(lambda: "report" in stages_at_work(toy), SECONDS)
    run.send_signal(number)
    output, _ = run.communicate(timeout=SECONDS)
    sentence = f"train: stopped by {number.name}: checkpoint-1 is complete"
    lines = output.strip().splitlines()
    assert sentence in lines
    assert lines[-1] == f"quench: stopped by {number.name}: the same command goes on"
    assert sentence in (toy / "logs/train.log").read_text().splitlines()
    assert run.returncode == 128 + number
    assert by_hand.poll() is None and stages_at_work(toy).keys() == {"report"}
    by_hand.kill()
    by_hand.wait()
