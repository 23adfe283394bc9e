"""`quench watch`: what it reads from a run's files alone, and what it asks of a training."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from make import quench, until
from training_logs import demo_run, eval_row, healthy_run, step_row
from watched_runs import ODD, append, at_work, rewarded, sampled, watched, write_run

from pipeline.core.checks import Check, counts_text
from pipeline.core.places import PROJECT
from pipeline.extras.watch import files
from pipeline.extras.watch.draw import FIRST, drawn
from pipeline.extras.watch.history import LOSS, Points
from pipeline.extras.watch.watched import STOP
from pipeline.stages.train.requests import CHECKPOINT, EVALUATION


def test_a_finished_run_is_told_in_lines_of_text(tmp_path: Path) -> None:
    root = write_run(tmp_path / ODD, sampled(demo_run()), finished=True)
    shown = quench("watch", root)
    assert shown.exit_code == 0, shown.output
    assert f"{root}: finished · step 50" in shown.stdout
    for words in ("Loss: ", "held out 0.081", "Learning rate: ", "Gradient norm: ", "Tokens/s: ", "Memory: "):
        assert words in shown.stdout, words
    assert "answer 1: 4 <b>of course</b>" in shown.stdout and "\x1b" not in shown.stdout
    assert "log: train: step 50 of 50" in shown.stdout


def test_checks_that_are_not_measured_did_not_fail() -> None:
    checks = [Check("", verdict, "") for verdict in ("pass", "not measured", "pass")]
    assert counts_text(checks) == "2 passed, 1 not measured"


def test_the_folder_of_the_checkpoints_is_the_same_run(tmp_path: Path) -> None:
    root = write_run(tmp_path, demo_run(), finished=True)
    assert "finished · step 50" in quench("watch", root / "models/checkpoints").stdout
    (root / "models/checkpoints").rename(root / "aside")
    assert "finished · step 50" in quench("watch", root / "aside").stdout


def test_a_run_whose_checkpoints_are_gone_is_read_from_its_report(tmp_path: Path) -> None:
    root = write_run(tmp_path, demo_run(), finished=True)
    (root / "reports").mkdir()
    (root / "models/checkpoints/steps.jsonl").rename(root / "reports/train.jsonl")
    (root / "models/checkpoints/run.json").unlink()
    assert "finished · step 50" in quench("watch", root).stdout


@pytest.mark.parametrize("place", [".", "nowhere"])
def test_where_no_training_is_there_is_one_sentence(tmp_path: Path, place: str) -> None:
    shown = quench("watch", tmp_path / place)
    assert shown.exit_code == 3 and "Q-WATCH-00" in shown.output and not shown.stdout


# --- files that grow, break and change ----------------------------------------------------------------------


def test_damaged_lines_are_counted_and_left_out(tmp_path: Path) -> None:
    root = write_run(tmp_path, demo_run()[:10])
    run = watched(root)
    with (root / "models/checkpoints/steps.jsonl").open("a") as journal:
        journal.write('{"kind": "st\n[1]\n{"step": "x", "kind": "step"}\n')
    append(root, step_row(11, 0.4))
    run.read_all()
    with run.history() as history:
        assert (history.step, history.damaged) == (11, 3)
        assert "3 lines of the steps can't be read" in " ".join(history.notes())


def test_a_run_that_begins_again_is_read_from_its_start(tmp_path: Path) -> None:
    root = write_run(tmp_path, demo_run())
    run = watched(root)
    write_run(root, demo_run()[:5])  # as a resume does: another file in its place
    run.read_all()
    with run.history() as history:
        assert history.step == 5 and history.series(LOSS)[0].steps == [1, 2, 3, 4, 5] and history.begun == 3


def test_of_a_long_log_only_the_end_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_run(tmp_path, healthy_run(3000, 2.0, 1.0))
    (root / "logs/train.log").write_text("a line\n" * 20_000 + "the end\n")
    monkeypatch.setitem(files.MOST, "journal", 50_000)
    run = watched(root)
    with run.history() as history:
        assert history.last_lines(1) == ["the end"]
        assert history.step == 3000 and 50 < len(history.series(LOSS)[0].steps) < 300
        assert history.damaged == 0 and "only the last are read" in " ".join(history.notes())


@pytest.mark.parametrize(
    ("settings", "row"),
    [({"a_key_of_another_version": 1}, {}), ({}, {"grad_norm": None})],
    ids=["key", "step"],
)
def test_a_run_of_another_version_has_curves_and_no_checks(
    tmp_path: Path, settings: dict[str, Any], row: dict[str, Any]
) -> None:
    rows = [step_row(step, 1.0) | row for step in range(1, 6)]
    run = watched(write_run(tmp_path, rows, **settings))
    with run.history() as history:
        assert len(history.series(LOSS)[0].values) == 5 and history.checks() == []
        assert "another version" in " ".join(history.notes())


def test_clocks_that_jump_change_nothing(tmp_path: Path) -> None:
    root = write_run(tmp_path, demo_run()[:20])
    for path, date in ((root / "logs/train.log", 1), (root / "models/checkpoints/steps.jsonl", 2**33)):
        os.utime(path, (date, date))
    with at_work(root):
        run = watched(root)
        with run.history() as history:
            assert history.state == "training" and history.planned and history.seconds_left is not None


def test_what_training_would_have_warned_of_is_shown_with_its_cause(tmp_path: Path) -> None:
    root = write_run(tmp_path, [*demo_run()[:20], step_row(21, 0.1, grad_norm=500.0)], max_steps=50)
    shown = quench("watch", root).stdout
    assert "warn: gradient alarm (step 21): gradient norm 500" in shown and "→ an odd row" in shown
    assert "no process trains here" in shown


def test_a_loss_that_is_no_number_is_a_failed_check_and_no_point(tmp_path: Path) -> None:
    run = watched(write_run(tmp_path, [*demo_run()[:3], step_row(4, float("nan"))]))
    with run.history() as history:
        assert history.series(LOSS)[0].steps == [1, 2, 3] and history.step == 4
        assert [check.name for check in history.checks() if check.verdict == "fail"] == ["finite loss"]


def test_the_reward_of_grpo_comes_first(tmp_path: Path) -> None:
    run = watched(write_run(tmp_path, rewarded(12), method="grpo"))
    with run.history() as history:
        first, *rest = history.curves()
        assert (first.title, history.newest(first)) == ("Reward", "1, held out 0.8")
        assert {"Entropy", "Loss", "Groups of equal rewards"} <= {curve.title for curve in rest}
        assert history.checks()


# --- drawings -----------------------------------------------------------------------------------------------


def test_a_spike_among_ten_thousand_steps_is_drawn() -> None:
    points = Points()
    for step in range(10_000):
        points.add(step, 100.0 if step == 5_000 else 1.0)
    cells, low, high = drawn([points], 30, 5)
    assert (low, high) == (1.0, 100.0)
    assert any(code != FIRST for code, _ in cells[0][13:17])
    assert all(code == FIRST for code, _ in cells[0][:12] + cells[0][18:])
    assert all(code != FIRST for code, _ in cells[-1])


@pytest.mark.parametrize("values", [[], [2.0], [3.0, 3.0]], ids=["none", "one", "level"])
def test_few_values_are_drawn_too(values: list[float]) -> None:
    points = Points()
    for step, value in enumerate(values):
        points.add(step, value)
    cells, _, _ = drawn([points, Points()], 10, 3)
    assert sum(code != FIRST for line in cells for code, _ in line) >= len(values[:1])


# --- requests -----------------------------------------------------------------------------------------------


def test_two_who_ask_leave_one_request(tmp_path: Path) -> None:
    root = write_run(tmp_path / ODD, demo_run()[:3])
    first, second = watched(root), watched(root)
    assert first.ask(CHECKPOINT) == "not running"
    with at_work(root):
        assert "a checkpoint is written" in first.ask(CHECKPOINT)
        assert second.ask(CHECKPOINT) == "already asked"
        assert "evaluated" in second.ask(EVALUATION)
    assert sorted(path.name for path in (root / "models/checkpoints").glob(".*")) == [CHECKPOINT, EVALUATION]


def test_a_folder_that_is_read_only_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_run(tmp_path, demo_run()[:3])

    def refuse(*given: Any, **named: Any) -> None:
        raise PermissionError(13, "Permission denied")

    with at_work(root):
        monkeypatch.setattr(Path, "touch", refuse)  # root may write everywhere
        assert "can't be written (Permission denied)" in watched(root).ask(CHECKPOINT)


def test_what_would_change_the_run_is_not_asked(tmp_path: Path) -> None:
    with at_work(root := write_run(tmp_path, rewarded(3), method="grpo")):
        assert "not done" in watched(root).ask(EVALUATION)
    with at_work(root := write_run(tmp_path / "two", [step_row(1, 1.0) | {"processes": 2}])):
        assert "several processes" in watched(root).ask(CHECKPOINT)
    assert list(tmp_path.rglob(".asked-*")) == []


def test_stopping_signals_the_training_and_nobody_else(tmp_path: Path) -> None:
    root = write_run(tmp_path, demo_run()[:3])
    code = "import sys, time; from pipeline.core.locks import *; from pathlib import Path\n"
    code += "held = take(lock_file('train', Path(sys.argv[1]))); time.sleep(60)"
    environment = os.environ | {"PYTHONPATH": str(PROJECT)}
    with subprocess.Popen([sys.executable, "-c", code, str(root)], env=environment) as process:
        try:
            until(lambda: files.pid_of(root) == process.pid, 60)
            assert "the training stops" in watched(root).ask(STOP)
            assert process.wait(30) == -signal.SIGTERM
        finally:
            process.kill()
    assert watched(root).ask(STOP) == "not running"
    (root / ".quench/train.lock").write_text(str(os.getpid()))  # the id is another process's by now
    assert files.pid_of(root) is None


def test_a_page_of_a_run_that_has_just_evaluated(tmp_path: Path) -> None:
    root = write_run(tmp_path, demo_run()[:20])
    run = watched(root)
    append(root, eval_row(20, 0.5) | {"asked": True})
    run.read_all()
    with run.history() as history:
        assert [(row.step, row.asked) for row in history.evaluations] == [(20, True)]
