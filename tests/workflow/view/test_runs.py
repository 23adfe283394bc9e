"""Runs of the toy project with each view: on a terminal, without one, as JSON, dry, stopped, and killed."""

import fcntl
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import jsonschema
import pytest
from forked import SERVER, Forked
from make import ended
from toy_project import write_toy

from pipeline.core.hashing import tree_hash
from pipeline.core.places import PROJECT

SECONDS = 300  # on a busy machine
SNAKEMAKE = [str(Path(sys.executable).parent / "snakemake")]
QUENCH = [sys.executable, "-m", "pipeline.cli"]
FAILS = 'def report() -> None:\n    raise QuenchError("Q-TOY-001", "report is out of order")\n'
FOLDERS = ("models", "data/final", "reports")


@pytest.fixture(scope="module")
def forked() -> Iterator[Forked]:
    """Forks of it are the stages of most runs here."""
    forked = Forked()
    yield forked
    forked.close()


@pytest.fixture(scope="module")
def built(forked: Forked, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished toy project. Read only."""
    root = write_toy(tmp_path_factory.mktemp("built") / "toy")
    done = run(SNAKEMAKE, root, **{SERVER: forked.socket})
    assert done.returncode == 0, done.stderr
    return root


@pytest.fixture
def toy(built: Path, forked: Forked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished toy project of the test's own."""
    monkeypatch.setenv(SERVER, forked.socket)
    return Path(shutil.copytree(built, tmp_path / "toy project #1", symlinks=True))


def change(root: Path, before: str = "max_task_drop: 10.0", after: str = "max_task_drop: 8.0") -> None:
    """Change a setting, by default one of the last stage."""
    file = root / "params.yaml"
    assert before in file.read_text()
    file.write_text(file.read_text().replace(before, after))


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
        """Read up to this pattern, or to the end, and return all text so far."""
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
    change(toy)
    done = run(SNAKEMAKE, toy)
    assert done.returncode == 0, done.stderr
    for words in (
        *("report: started, 1 of 1", "report: done after", "1 of 1 jobs are done", "status --open"),
        *("up to date: base, curate, train, merge, quantize", "report.gate.max_task_drop: 10.0 → 8.0"),
    ):
        assert words in done.stderr, done.stderr
    assert not re.search("Building DAG|Select jobs|Execute|jobid|Complete log|Elapsed|steps", done.stderr)


def test_json_is_a_line_an_event_and_the_same_bytes_are_made(toy: Path, built: Path) -> None:
    (toy / "train.txt").write_text("another code, to the same bytes\n")
    done = run([*QUENCH, "run", "--json"], toy)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    schema = json.loads((PROJECT / "docs/run-events.schema.json").read_text(encoding="utf-8"))
    for line in lines:
        jsonschema.validate(line, schema)
    assert lines[0]["event"] == "plan" and lines[0]["stages"][0]["why"] == "train.txt changed"
    assert lines[-1]["event"] == "end" and (lines[-1]["done"], lines[-1]["restored"]) == (5, 4)
    how = {line["job"]: line["how"] for line in lines if "how" in line}
    assert how["train"] == "ran" and how["quantize@Q4_K_M"] == how["report"] == "restored"
    for folder in FOLDERS:
        assert tree_hash(toy / folder) == tree_hash(built / folder)


def test_a_terminal_shows_a_table_and_what_to_do_next(toy: Path) -> None:
    change(toy)
    terminal = Terminal([*QUENCH, "run"], toy)
    text = terminal.read()
    assert terminal.code() == 0, text
    assert re.search("[·.] report .*10.0 → 8.0", text) and re.search("[✓*] report  0:", text)
    assert "[00:0" not in text  # no bar of DVC's
    assert "1 of 1 jobs are done" in text and "quench status --open" in text
    assert "\x1b[?25l" not in text  # a killed run would leave the terminal without a cursor


def test_no_color_makes_plain_lines_on_a_terminal(toy: Path) -> None:
    terminal = Terminal(SNAKEMAKE, toy, {"NO_COLOR": "1"})
    text = terminal.read()
    assert terminal.code() == 0 and "Nothing to be done" in text
    assert "\x1b" not in text


def test_a_stage_that_dies_is_named_with_its_last_lines_and_its_log(
    toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SERVER)
    script = toy / "run.py"
    script.write_text(re.sub(r"def report\(\) -> None:\n", FAILS, script.read_text()))
    change(toy)
    terminal = Terminal([*QUENCH, "run"], toy)
    text = terminal.read()
    assert terminal.code() == 1
    assert re.search(r"report failed after .*logs/report\.log", text) and "report is out of order" in text
    assert "CalledProcessError" not in text and "jobs are done" not in text


def test_ctrl_c_stops_the_stage_which_saves_its_work(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SERVER)
    (toy / "step").touch()
    (toy / "train.txt").write_text("another code\n")
    terminal = Terminal([*QUENCH, "run"], toy)
    terminal.read(r"train: step 1")
    os.write(terminal.end, b"\x03")
    text = terminal.read()
    assert terminal.code() == 130
    assert "saves its work" in text and "checkpoint-1 is complete" in text and "Traceback" not in text


@pytest.mark.slow
def test_a_terminal_that_vanishes_stops_no_run(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SERVER)
    (toy / "step").touch()
    (toy / "train.txt").write_text("another code\n")
    terminal = Terminal(["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *SNAKEMAKE], toy)
    terminal.read(r"train: step 1")
    os.close(terminal.end)
    time.sleep(1)
    (toy / "step").unlink()
    assert terminal.code() == 0
    assert "Nothing to be done" in run(SNAKEMAKE, toy).stderr


@pytest.mark.slow
@pytest.mark.parametrize("after", [0.5, 4.0, 9.0])
def test_a_killed_view_costs_no_byte(after: float, toy: Path, built: Path) -> None:
    (toy / "train.txt").write_text("another code, to the same bytes\n")
    terminal = Terminal([*QUENCH, "run"], toy)
    time.sleep(after)
    os.kill(terminal.pid, signal.SIGKILL)
    terminal.code()
    os.close(terminal.end)
    assert run([*QUENCH, "run"], toy).returncode == 0
    for folder in FOLDERS:
        assert tree_hash(toy / folder) == tree_hash(built / folder)


def test_a_dry_run_says_why_also_for_other_settings_and_writes_nothing(toy: Path) -> None:
    before = (toy / "params.yaml").read_bytes(), (toy / "dvc.lock").read_bytes()
    done = run([*QUENCH, "run", "train.r=5", "-n"], toy)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^train +1 .*train\.r: 16 → 5$", done.stdout, re.M), done.stdout
    assert re.search(r"^report +1 .*follows quantize", done.stdout, re.M)
    assert "up to date: base, curate" in done.stdout
    assert ((toy / "params.yaml").read_bytes(), (toy / "dvc.lock").read_bytes()) == before

    upto = run([*QUENCH, "run", "train", "train.r=5", "-n", "--json"], toy)
    assert [stage["stage"] for stage in json.loads(upto.stdout)["stages"]] == ["train"]
    level = run([*QUENCH, "run", "quantize@q5_k_m", "train.r=5", "-n", "--json"], toy)
    planned = {stage["stage"]: stage["jobs"] for stage in json.loads(level.stdout)["stages"]}
    assert planned == {"train": 1, "merge": 1, "quantize": 1}
    everything = run([*QUENCH, "run", "all", "train.r=5", "-n"], toy)
    assert everything.stdout == done.stdout
    unknown = run([*QUENCH, "run", "reports/other.html", "train.r=5", "-n"], toy)
    assert unknown.returncode == 2 and "Q-WORKFLOW-008" in unknown.stderr
    same = run([*QUENCH, "run", "train.r=16", "-n"], toy)
    assert "Nothing to be done" in same.stdout
    change(toy, "  r: 16", "  r: 5")
    edited = run([*QUENCH, "run", "-n"], toy)
    assert re.search(r"^train +1 .*train\.r: 16 → 5$", edited.stdout, re.M), edited.stdout
    assert re.search(r"^merge +1 +about ", edited.stdout, re.M), edited.stdout
