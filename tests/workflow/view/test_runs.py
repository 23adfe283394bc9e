"""Runs of the toy project with each view: on a terminal, without one, as JSON, dry, stopped, and killed."""

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import jsonschema
import pytest
from make import ended
from toy_project import write_toy

from pipeline.core.hashing import tree_hash
from pipeline.core.places import PROJECT

SECONDS = 300  # on a busy machine
SNAKEMAKE = [str(Path(sys.executable).parent / "snakemake")]
QUENCH = [sys.executable, "-m", "pipeline.cli"]
FAILS = 'def merge() -> None:\n    raise QuenchError("Q-TOY-001", "merge is out of order")\n'


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    return write_toy(tmp_path / "toy project #1")


def environment(**more: str) -> dict[str, str]:
    """The environment of a terminal: none that asks for plain lines."""
    kept = {name: value for name, value in os.environ.items() if name not in ("CI", "NO_COLOR")}
    return kept | {"PYTHONPATH": str(PROJECT), "TERM": "xterm"} | more


def run(command: list[str], root: Path, **more: str) -> "subprocess.CompletedProcess[str]":
    return ended(command, cwd=root, env=environment(**more), timeout=SECONDS)


class Terminal:
    """A command on a terminal of 100 × 30."""

    def __init__(self, command: list[str], root: Path, more: Mapping[str, str] | None = None) -> None:
        self.pid, self.end = pty.fork()
        if self.pid == 0:
            os.chdir(root)
            os.execvpe(command[0], command, environment(**more or {}))  # noqa: S606
        fcntl.ioctl(self.end, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.text = ""

    def read(self, until: str = "") -> str:
        """What is written up to this pattern, or the end."""
        deadline = time.monotonic() + SECONDS
        while not until or not re.search(until, self.text):
            assert time.monotonic() < deadline, self.text[-2000:]
            try:
                piece = os.read(self.end, 1 << 16)
            except OSError:  # The other end is closed.
                break
            if not piece:
                break
            self.text += piece.decode("utf-8", errors="replace")
        return self.text

    def code(self) -> int:
        """The exit code."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_plain_lines_name_every_stage_and_nothing_of_snakemake_s(toy: Path) -> None:
    done = run(SNAKEMAKE, toy)
    assert done.returncode == 0, done.stderr
    for words in ("train: started, 3 of 7", "train: done after", "7 of 7 jobs are done", "status --open"):
        assert words in done.stderr, done.stderr
    assert not re.search("Building DAG|Select jobs|Execute|jobid|Complete log|Elapsed|steps", done.stderr)
    again = run(SNAKEMAKE, toy)
    assert "Nothing to be done" in again.stderr and "jobs are done" not in again.stderr


def test_json_is_a_line_an_event_and_the_same_bytes_are_made(toy: Path, tmp_path: Path) -> None:
    assert run(SNAKEMAKE, toy).returncode == 0
    other = write_toy(tmp_path / "other")
    done = run([*QUENCH, "run", "--json"], other)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    schema = json.loads((PROJECT / "docs/run-events.schema.json").read_text(encoding="utf-8"))
    for line in lines:
        jsonschema.validate(line, schema)
    assert lines[0]["event"] == "plan" and lines[-1]["event"] == "end" and lines[-1]["done"] == 7
    assert {line["job"] for line in lines if line["event"] == "finished"} >= {"quantize@Q4_K_M", "report"}
    for folder in ("models", "data", "reports"):
        assert tree_hash(toy / folder) == tree_hash(other / folder)

    (other / "train.txt").write_text("another code, to the same bytes\n")
    again = run([*QUENCH, "run", "--json"], other)
    how = {line["job"]: line["how"] for line in map(json.loads, again.stdout.splitlines()) if "how" in line}
    assert how["train"] == "ran" and how["merge"] == how["report"] == "restored"


def test_a_terminal_shows_a_table_and_what_to_do_next(toy: Path) -> None:
    terminal = Terminal([*QUENCH, "run"], toy)
    text = terminal.read()
    assert terminal.code() == 0, text
    assert re.search("[▶>] curate", text) and re.search("[✓*] train  0:", text)
    assert "7 of 7 jobs are done" in text and "quench status --open" in text
    assert "\x1b[?25l" not in text  # a killed run would leave the terminal without a cursor


def test_no_color_makes_plain_lines_on_a_terminal(toy: Path) -> None:
    terminal = Terminal(SNAKEMAKE, toy, {"NO_COLOR": "1"})
    text = terminal.read()
    assert terminal.code() == 0 and "train: started, 3 of 7" in text and "\x1b[" not in text


def test_a_stage_that_dies_is_named_with_its_last_lines_and_its_log(toy: Path) -> None:
    script = toy / "run.py"
    script.write_text(re.sub(r"def merge\(\) -> None:\n", FAILS, script.read_text()))
    terminal = Terminal([*QUENCH, "run"], toy)
    text = terminal.read()
    exit_code = terminal.code()
    assert re.search(r"merge failed after .*logs/merge\.log", text) and "merge is out of order" in text
    assert "CalledProcessError" not in text and "jobs are done" not in text
    plain = run([*QUENCH, "run"], toy)
    assert exit_code == plain.returncode != 0 and "merge failed after" in plain.stderr


def test_ctrl_c_stops_the_stage_and_the_same_command_goes_on(toy: Path) -> None:
    (toy / "step").touch()
    terminal = Terminal([*QUENCH, "run"], toy)
    terminal.read(r"train: step 1")
    os.write(terminal.end, b"\x03")
    text = terminal.read()
    assert terminal.code() == 130
    assert "saves its work" in text and "checkpoint-1 is complete" in text and "Traceback" not in text
    (toy / "step").unlink()
    assert run([*QUENCH, "run"], toy).returncode == 0


@pytest.mark.slow
def test_a_terminal_that_vanishes_stops_no_run(toy: Path) -> None:
    (toy / "step").touch()
    terminal = Terminal(["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *SNAKEMAKE], toy)
    terminal.read(r"train: step 1")
    os.close(terminal.end)
    time.sleep(1)
    (toy / "step").unlink()
    assert terminal.code() == 0
    assert "Nothing to be done" in run(SNAKEMAKE, toy).stderr


@pytest.mark.slow
@pytest.mark.parametrize("after", [0.5, 2.0, 4.0, 6.0, 9.0])
def test_a_killed_view_costs_no_byte(after: float, toy: Path, tmp_path: Path) -> None:
    terminal = Terminal([*QUENCH, "run"], toy)
    with suppress(ProcessLookupError):
        time.sleep(after)
        os.kill(terminal.pid, signal.SIGKILL)
    terminal.code()
    os.close(terminal.end)
    assert run([*QUENCH, "run"], toy).returncode == 0
    whole = write_toy(tmp_path / "whole")
    assert run(SNAKEMAKE, whole).returncode == 0
    for folder in ("models", "data/final", "reports"):
        assert tree_hash(toy / folder) == tree_hash(whole / folder)


def test_a_dry_run_says_why_also_for_other_settings_and_writes_nothing(toy: Path) -> None:
    assert run(SNAKEMAKE, toy).returncode == 0
    before = (toy / "params.yaml").read_bytes(), (toy / "dvc.lock").read_bytes()
    done = run([*QUENCH, "run", "train.r=5", "-n"], toy)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^train +1 .*train\.r: 16 → 5$", done.stdout, re.M), done.stdout
    assert re.search(r"^report +1 .*after quantize", done.stdout, re.M) and "up to date: base" in done.stdout
    assert ((toy / "params.yaml").read_bytes(), (toy / "dvc.lock").read_bytes()) == before

    upto = run([*QUENCH, "run", "train", "train.r=5", "-n", "--json"], toy)
    assert [stage["stage"] for stage in json.loads(upto.stdout)["stages"]] == ["train"]
    same = run([*QUENCH, "run", "train.r=16", "-n"], toy)
    assert "Nothing to be done" in same.stdout
    (toy / "params.yaml").write_text((toy / "params.yaml").read_text().replace("  r: 16", "  r: 5"))
    edited = run([*QUENCH, "run", "-n"], toy)
    assert re.search(r"^train +1 .*train\.r: 16 → 5$", edited.stdout, re.M), edited.stdout
