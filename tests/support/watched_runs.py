"""Run folders as a training leaves them, for what watches it."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from training_logs import Row, demo_run, eval_row, step_row

from pipeline.config.params import load_params
from pipeline.core.locks import lock_file, take
from pipeline.core.metrics_log import write_rows
from pipeline.core.places import PROJECT
from pipeline.extras.watch.source import LocalRun
from pipeline.extras.watch.watched import Watched

SAMPLE = {"prompt": "What is [red]2 plus 2?\x1b[2J", "answer": "4 <b>of course</b>", "reference": "4"}
# A project's name that a shell, a URL or a markup language would take for something else.
ODD = "my #1 [bold]project"


def settings(**changes: Any) -> dict[str, Any]:
    """The settings of training in a run's record."""
    return load_params(PROJECT / "recipes/demo.yaml").training.model_dump(mode="json") | changes


def write_run(root: Path, rows: Iterable[Row], *, finished: bool = False, **changes: Any) -> Path:
    """Write the journal and the record of a run into the project `root`; `root`."""
    checkpoints = root / "models/checkpoints"
    checkpoints.mkdir(parents=True, exist_ok=True)
    write_rows(checkpoints / "steps.jsonl", rows)
    record = {"record": {"settings": settings(**{"max_steps": 50} | changes)}, "finished": finished}
    (checkpoints / "run.json").write_text(json.dumps(record))
    manifest = root / "data/tokens/manifest.json"
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(json.dumps({"splits": {"train": {"packed_rows": 25}}}))
    (root / "logs").mkdir(exist_ok=True)
    (root / "logs/train.log").write_text("train: step 1 of 50\ntrain: step 50 of 50\n")
    return root


def sampled(rows: Iterable[Row]) -> list[Row]:
    """Rows with sample answers in their evaluations."""
    return [row | {"samples": [SAMPLE]} if row["kind"] == "eval" else row for row in rows]


def rewarded(steps: int) -> list[Row]:
    """Rows of GRPO, with its measures."""
    rows: list[Row] = []
    for step in range(1, steps + 1):
        measures = {
            "reward": step / steps,
            "entropy": 0.5,
            "zero_variance": 0.1,
            "gap": 0.01,
            "truncated": 0.0,
        }
        more = {"completion_tokens": 20.0, "clipped": 0.0, "capped": 0.0, "unknown": 0.0}
        rows.append(step_row(step, 0.01, learning_rate=2e-5) | {"measures": measures | more, "items": 8})
    return [*rows, eval_row(steps, -0.8) | {"measures": {"reward": 0.8}}]


def append(root: Path, *rows: Row) -> None:
    """Append rows to the journal, as the training does."""
    with (root / "models/checkpoints/steps.jsonl").open("a") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")


def at_work(root: Path) -> Any:
    """Make this process the one that trains in the project, as long as the file that is returned is open."""
    return take(lock_file("train", root))


def watched(root: Path) -> Watched:
    """Read the run in a project, and return what is known of it."""
    run = Watched(LocalRun(root))
    run.read_all()
    return run


__all__ = ["ODD", "append", "at_work", "demo_run", "rewarded", "sampled", "settings", "watched", "write_run"]
