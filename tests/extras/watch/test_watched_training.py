"""A training that is watched, asked and left ends in the bytes of one that nobody watches."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from make import until
from train_runs import one_thread, result, run  # noqa: F401 (one_thread is a fixture)
from watched_runs import at_work

from pipeline.core.hashing import tree_hash
from pipeline.core.metrics_log import MetricsLog
from pipeline.core.places import PROJECT
from pipeline.stages.train import loop
from pipeline.stages.train.requests import CHECKPOINT, EVALUATION

SEED = 65
KILLS = 20


def test_what_is_asked_for_is_done_once_and_changes_nothing_else(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {"max_steps": 4, "eval_steps": 4, "save_steps": 4, "sample_rows": 1, "early_stopping_patience": 1}
    run(prepared, tmp_path / "alone", **few)
    stepped = loop.Trainer.stepped
    asked = tmp_path / "asked"

    def ask(trainer: Any, row: dict[str, float]) -> None:
        if trainer.step == 2:
            for name in (CHECKPOINT, EVALUATION):
                (asked / "checkpoints" / name).touch()
        stepped(trainer, row)

    monkeypatch.setattr(loop.Trainer, "stepped", ask)
    run(prepared, asked, **few)
    assert tree_hash(asked / "adapter") == tree_hash(tmp_path / "alone/adapter")
    rows = [row for row in MetricsLog(asked / "checkpoints/steps.jsonl").rows() if row["kind"] == "eval"]
    assert [(row["step"], row.get("asked")) for row in rows] == [(2, True), (4, None)]
    assert len(rows[0]["samples"]) == 1
    kept = {path.name for path in (asked / "checkpoints").iterdir()}
    assert {"checkpoint-2", "checkpoint-4"} <= kept and not {CHECKPOINT, EVALUATION} & kept


@pytest.mark.slow
def test_watchers_and_pages_killed_at_random_change_no_byte(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {"max_steps": 10, "eval_steps": 5, "save_steps": 5, "sample_rows": 1}
    run(prepared, tmp_path / "alone", **few)
    project = tmp_path / "project"
    seen = project / "models"
    seen.mkdir(parents=True)
    over = threading.Event()
    killed: list[int] = []
    words = [
        ["watch", "--plain", str(project)],
        ["status", "--live", "--root", str(project)],
    ]

    def watch() -> None:
        chance = random.Random(SEED)  # noqa: S311
        while not over.is_set() and len(killed) < KILLS:
            with subprocess.Popen(
                [sys.executable, "-m", "pipeline.cli", *words[len(killed) % 2]],
                env=os.environ | {"PYTHONPATH": str(PROJECT)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            ) as process:
                time.sleep(chance.uniform(0.1, 2.0))
                process.send_signal(signal.SIGKILL)
                killed.append(process.wait())

    stepped = loop.Trainer.stepped

    def as_long_as_kills_last(trainer: Any, row: dict[str, float]) -> None:
        until(lambda: len(killed) >= KILLS * trainer.step // few["max_steps"], seconds=120)
        stepped(trainer, row)

    monkeypatch.setattr(loop.Trainer, "stepped", as_long_as_kills_last)
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with at_work(project):
            run(prepared, seen, **few)
    finally:
        over.set()
        watcher.join()
    assert killed == [-signal.SIGKILL] * KILLS
    assert result(seen) == result(tmp_path / "alone")
