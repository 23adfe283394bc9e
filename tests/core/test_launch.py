"""Our own launcher: how it reacts when its processes end, with stand-ins for `python -m pipeline`."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from pipeline.__main__ import main
from pipeline.core import launch as launcher
from pipeline.core.errors import ConfigError, DataError, MachineError, QuenchError, Stopped
from pipeline.core.launch import exit_code, launch

CARDS = "CUDA_VISIBLE_DEVICES"

STAND_IN = """
import os, signal, sys, time
rank, end, late = int(os.environ["RANK"]), lambda: os.kill(os.getpid(), signal.SIGKILL), time.sleep
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
exec(sys.argv[1 + rank])
"""
TERM, KILL = -signal.SIGTERM, -signal.SIGKILL
TOLD = 128 + signal.SIGTERM


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Launch two processes, each of which runs its line of Python; the exit code."""
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline/__init__.py").touch()
    (tmp_path / "pipeline/__main__.py").write_text(STAND_IN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv(CARDS, raising=False)
    monkeypatch.setattr(launcher, "GRACE_SECONDS", 0.5)
    return lambda *lines: launch(lines, len(lines))


@pytest.mark.parametrize("other", ["sys.exit(6)", "late(60)", "end()"])
def test_where_the_first_has_done_its_work_all_is_well(other: str, started: Any) -> None:
    assert started("late(0.2)", other) == 0


@pytest.mark.parametrize("first", ["late(0.3); sys.exit(6)", "sys.exit(6)", "late(60)"])
def test_the_reason_counts_not_who_notices(first: str, started: Any) -> None:
    assert started(first, "late(0.15); sys.exit(3)") == 3


@pytest.mark.parametrize(
    ("lines", "killed"),
    [
        (("late(60)", "end()"), 1),  # it loads the model, and hears of nothing
        (("signal.signal(15, signal.SIG_DFL); late(60)", "end()"), 1),
        (("end()", "late(0.1); sys.exit(6)"), 0),
    ],
)
def test_one_that_was_killed_is_named(lines: tuple[str, str], killed: int, started: Any) -> None:
    with pytest.raises(MachineError) as error:
        started(*lines)
    assert error.value.id == "Q-TRAIN-037"
    assert f"process {killed} of 2" in error.value.sentence
    assert "SIGKILL" in error.value.sentence


@pytest.mark.parametrize(
    ("ended", "heard", "code"),
    [
        ({0: 6, 1: TOLD}, [], 6),  # a full disk, and ours to one that loads
        ({0: 6, 1: -signal.SIGABRT}, [], 6),
        ({1: KILL, 0: 2}, [], 2),
        ({1: TERM, 0: TOLD}, [signal.SIGTERM], TOLD),
        ({1: KILL, 0: TOLD}, [signal.SIGTERM], TOLD),
        ({0: 1, 1: TERM}, [], 1),
        ({1: 0, 0: 0}, [], 0),
    ],
)
def test_the_exit_code(ended: dict[int, int], heard: list[int], code: int) -> None:
    assert exit_code(ended, heard) == code


def test_a_signal_that_came_before_they_were_prepared_is_no_accident() -> None:
    with pytest.raises(Stopped) as stopped:
        exit_code({0: TERM, 1: TERM}, [signal.SIGTERM])
    assert stopped.value.exit_code == TOLD
    with pytest.raises(MachineError):
        exit_code({0: TERM, 1: TERM}, [])


def test_fewer_cards_than_processes_are_refused(started: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CARDS, "0")
    with pytest.raises(ConfigError) as error:
        started("", "")
    assert error.value.id == "Q-TRAIN-036"
    monkeypatch.setenv(CARDS, "")  # no GPU
    assert started("", "") == 0


@pytest.mark.parametrize(
    ("number", "launched", "error", "said", "left"),
    [
        (0, True, MachineError("Q-TRAIN-037", "gone"), True, True),
        (1, True, MachineError("Q-TRAIN-037", "gone"), False, False),
        (1, False, MachineError("Q-TRAIN-037", "gone"), True, False),
        (1, True, DataError("Q-TRAIN-004", "torn"), True, False),
    ],
)
def test_who_says_why_it_ended(
    number: int,
    launched: bool,
    error: QuenchError,
    said: bool,
    left: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: Any) -> None:
        raise error

    names = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), "2")
    names |= dict.fromkeys(("RANK", "LOCAL_RANK"), str(number))
    names |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", CARDS: "", "GLOO_SOCKET_IFNAME": "lo"}
    names |= {"TORCH_CPP_LOG_LEVEL": "ERROR"}
    for name, value in (
        names | {"QUENCH_REMOTE": "1"} | ({"QUENCH_LAUNCHED": "1"} if launched else {})
    ).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("pipeline.stages.train.worker.run_rank", fail)
    (tmp_path / ".dvc").mkdir()
    assert main(["train", "--root", str(tmp_path)]) == error.exit_code
    assert (error.id in capsys.readouterr().err) == said
    receipt = tmp_path / ".quench/finished/train.json"
    assert receipt.is_file() == left
    if left:
        assert error.id in json.loads(receipt.read_text())["error"]
