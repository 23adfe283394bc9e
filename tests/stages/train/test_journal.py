"""pipeline.stages.train.journal: the events read back as TensorBoard reads them, and what a step costs."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from training_logs import eval_row, step_row

from pipeline.core.places import PROJECT
from pipeline.stages.train.journal import Board

SAMPLES = [{"prompt": "user\n2 + 3?", "reference": "5", "answer": "<b>6</b>\n# no heading"}]


def read(folder: Path) -> Any:
    """As EventAccumulator reads scalars."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    return accumulator


def shown(folder: Path) -> dict[str, list[int]]:
    """The steps of everything that TensorBoard's own pages show, texts among them."""
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), tensor_size_guidance=dict.fromkeys(("scalars", "text"), 0))
    accumulator.Reload()
    return {tag: [event.step for event in accumulator.Tensors(tag)] for tag in accumulator.Tags()["tensors"]}


def points(folder: Path) -> dict[str, list[tuple[int, float]]]:
    accumulator = read(folder)
    return {
        tag: [(event.step, round(event.value, 4)) for event in accumulator.Scalars(tag)]
        for tag in accumulator.Tags()["scalars"]
    }


def written(folder: Path, steps: range, purge_step: int | None, shift: float = 0.0) -> Board:
    """A board after these steps, with an evaluation at each even one; not closed, as after a kill."""
    board = Board(folder, purge_step)
    for step in steps:
        board.step(step_row(step, 2.0 - step / 10 + shift))
        if step % 2 == 0:
            board.evaluation(eval_row(step, 1.5 - step / 10 + shift) | {"samples": SAMPLES})
    return board


def test_every_curve_is_there_with_its_plain_name(tmp_path: Path) -> None:
    written(tmp_path, range(1, 4), None)
    found = points(tmp_path)
    curves = "loss learning_rate gradient_norm tokens_per_second trained_tokens memory_bytes eval_loss"
    assert set(found) == set(curves.split())
    assert found["loss"] == [(1, 1.9), (2, 1.8), (3, 1.7)]
    assert found["gradient_norm"] == [(step, 0.8) for step in (1, 2, 3)]
    assert found["eval_loss"] == [(2, 1.3)]
    (text,) = read(tmp_path).Tensors("sample_1/text_summary")
    assert (
        "\n    <b>6</b>\n    # no heading" in text.tensor_proto.string_val[0].decode()
    )  # indented: Markdown shows it as it is


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from test_journal import written
written(Path(sys.argv[1]), range(1, 300), None)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_killed_board_has_lost_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            KILLED,
            str(tmp_path),
            str(Path(__file__).parent),
            str(PROJECT / "tests/support"),
        ],
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert [step for step, _ in points(tmp_path)["loss"]] == list(range(1, 300))


@pytest.mark.parametrize("checkpoint", [0, 2, 4, 6])
def test_a_resumed_run_has_no_point_twice(tmp_path: Path, checkpoint: int) -> None:
    written(tmp_path, range(1, 7), None, shift=5.0)
    # event files are read in the order of their names: by second, then by a counter as text, where 10 comes
    # before 9; no resume is that quick
    time.sleep(1.01 - time.time() % 1)
    written(tmp_path, range(checkpoint + 1, 9), checkpoint + 1)
    found = points(tmp_path)
    shifts = [5.0 if step <= checkpoint else 0.0 for step in range(1, 9)]
    assert found["loss"] == [
        (step, round(2.0 - step / 10 + shift, 4)) for step, shift in enumerate(shifts, start=1)
    ]
    assert [step for step, _ in found["eval_loss"]] == [2, 4, 6, 8]
    steps = shown(tmp_path)
    assert steps["sample_1/text_summary"] == steps["eval_loss"] == [2, 4, 6, 8]
    assert steps["loss"] == list(range(1, 9))


@pytest.mark.parametrize(("device", "times"), [("cpu", 2), ("cuda", 0)])
def test_memory_is_trimmed_on_a_cpu_alone(device: str, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from pipeline.stages.train.loop import Trainer

    monkeypatch.setattr("pipeline.stages.train.loop.give_back_holes", trim := Mock())
    given = Mock(forwards=0, **{"device.type": device, "loss_over.return_value": (0.0, {})})
    for _ in range(4):
        Trainer.compute_loss(given, {}, 1)
    assert trim.call_count == times
