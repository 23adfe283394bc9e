"""A training run that dies, anywhere, resumes from its newest complete checkpoint and ends in the same bytes.

SIGKILL is sent by the process to itself at a place drawn from a seed: after a micro-step of any epoch, or
inside a save, at one of the save's own file operations or after some milliseconds.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from deaths import Death, arm, copy, rows_for, same_as
from killed import FORKED, SECONDS, on_one_core, written_to

from pipeline.config.params import load_params
from pipeline.core.hashing import tree_hash
from pipeline.core.jsonl import write_rows
from pipeline.stages.preprocess.stage import main as preprocess
from pipeline.stages.train.checkpoints import MARKER, checkpoints_in, defect, read_notes, step_of

EPOCHS, ACCUMULATION, SAVE_STEPS, EVAL_STEPS = 3, 2, 2, 3
# the first QUICK (one of every kind among them) are in every run of the tests, those up to OFTEN in CI, all
# in `pytest -m slow`
KILLS, OFTEN, QUICK = 50, 10, 2
CHANGES = {
    "num_train_epochs": float(EPOCHS),
    "max_steps": -1,
    "save_steps": SAVE_STEPS,
    "eval_steps": EVAL_STEPS,
    "lora_dropout": 0.1,
    "gradient_accumulation_steps": ACCUMULATION,
    "sample_rows": 1,
}
# how long an answer is: a random model can learn from that
LENGTH = "def length(reference, answer, row):\n    return len(answer) % 10 / 10\n"
GRPO = {
    "rewards": {"python:length.py:length": 1.0},
    "group_size": 4,
    "max_new_tokens": 8,
    "rollouts": "in-process",
    "steps_per_round": 2,
}


def planned(seed: int, micro_steps: int) -> Death:
    """Death number `seed` of a run of `micro_steps`: 3 in 5 after a micro-step, 2 in 5 inside a save."""
    drawn = random.Random(seed)  # noqa: S311
    saves = micro_steps // ACCUMULATION // SAVE_STEPS
    match seed % 5:
        case 1:
            return Death("save", drawn.randint(1, saves), event=drawn.randint(1, 40))
        case 3:
            return Death("delay", drawn.randint(1, saves), delay=drawn.uniform(0, 0.04))
        case _:
            return Death("step", drawn.randint(1, micro_steps))


def run(
    root: Path, death: Death | None = None, dictated: tuple[float, ...] = (), words: tuple[str, ...] = ()
) -> int:
    """Train in a process of its own; its exit code (-9: killed). `dictated` are the held-out losses, step by
    step; `words` options.
    """
    child = FORKED.Process(target=train_and_die, args=(root, death, dictated, words))
    child.start()
    child.join(SECONDS)
    assert child.exitcode is not None, "still running"
    return child.exitcode


def train_and_die(
    root: Path, death: Death | None, dictated: tuple[float, ...], words: tuple[str, ...]
) -> None:
    """The child: `python -m pipeline train`, dying where it is told to."""
    from pipeline.__main__ import main

    on_one_core()
    written_to(root / "out.log")
    if dictated:
        from pipeline.stages.train.loop import Trainer

        Trainer.held_out_metrics = lambda self: {"eval_loss": dictated[self.step - 1]}
    if death is not None:
        arm(death)
    sys.exit(main(["train", "--root", str(root), *words]))


@pytest.fixture(scope="module")
def project(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny project of three epochs with dropout and accumulation, ready to train."""
    folder = tmp_path_factory.mktemp("resume") / "project"
    shutil.copytree(prepared, folder)
    params = yaml.safe_load((folder / "params.yaml").read_text())
    params["train"] |= CHANGES
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    return folder


@pytest.fixture(scope="module")
def unbroken(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same project after a run that nothing happened to."""
    folder = copy(project, tmp_path_factory.mktemp("unbroken"))
    assert run(folder) == 0
    return folder


def micro_steps(unbroken: Path) -> int:
    return ACCUMULATION * json.loads((unbroken / "reports/train.json").read_text())["steps"]


def deaths() -> Iterator[Any]:
    """The seeds, marked by how often they are drawn."""
    for seed in range(KILLS):
        marks = [
            *([pytest.mark.slow] if seed >= QUICK else []),
            *([pytest.mark.exhaustive] if seed >= OFTEN else []),
        ]
        yield pytest.param(seed, marks=marks)


@pytest.mark.slow
@pytest.mark.parametrize("seed", deaths())
def test_killed_anywhere(seed: int, project: Path, unbroken: Path, tmp_path: Path) -> None:
    root = copy(project, tmp_path)
    death = planned(seed, micro_steps(unbroken))
    assert run(root, death) == -signal.SIGKILL
    assert not (root / "models/adapter").exists()
    assert run(root) == 0, (root / "out.log").read_text()[-2000:]
    same_as(unbroken, root)


# of one trainer: ipo's only difference from dpo is its loss, simpo's from orpo too
METHODS = [
    "sft",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("dpo", "kto", "orpo", "grpo")),
    *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("ipo", "simpo")),
]


@pytest.mark.parametrize("method", METHODS)
def test_other_methods_survive_a_kill(method: str, project: Path, tmp_path: Path) -> None:
    params = yaml.safe_load((project / "params.yaml").read_text())
    params["train"] |= {"method": method, "num_train_epochs": 2.0}
    if method == "grpo":
        params["train"] |= {"lora_dropout": 0.0, "grpo": GRPO}
    params["preprocess"]["max_length"] = 256
    begun = copy(project, tmp_path / "begun")
    (begun / "params.yaml").write_text(yaml.safe_dump(params))
    for split in ("train", "val"):
        write_rows(begun / f"data/final/{split}.jsonl", rows_for(method))
    (begun / "data/evaluation").mkdir(exist_ok=True)
    (begun / "data/evaluation/length.py").write_text(LENGTH)
    preprocess(load_params(begun / "params.yaml"), begun)
    unbroken, root = copy(begun, tmp_path / "unbroken"), copy(begun, tmp_path / "killed")
    assert run(unbroken) == 0, (unbroken / "out.log").read_text()[-2000:]
    assert run(root, Death("step", 5)) == -signal.SIGKILL
    assert checkpoints_in(root / "models/checkpoints")
    assert run(root) == 0, (root / "out.log").read_text()[-2000:]
    same_as(unbroken, root)


@pytest.mark.slow
def test_killed_three_times(project: Path, unbroken: Path, tmp_path: Path) -> None:
    root = copy(project, tmp_path)
    for death in (Death("step", 9), Death("save", 2, event=6), Death("step", 3)):
        assert run(root, death) == -signal.SIGKILL
    assert run(root) == 0
    same_as(unbroken, root)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("death", "done"),
    [
        pytest.param(Death("signal", 12), 5, id="mid-step"),
        pytest.param(Death("signal", 15), 7, id="step's start"),
        pytest.param(Death("evaluated", 1), 3, id="just after an evaluation"),
        pytest.param(Death("evaluation", 2), 6, id="evaluating"),
    ],
)
def test_a_signal_leaves_a_whole_checkpoint(
    death: Death, done: int, project: Path, unbroken: Path, tmp_path: Path
) -> None:
    root = copy(project, tmp_path)
    started = time.monotonic()
    assert run(root, death) == 128 + signal.SIGTERM
    # loading included; the signal itself is heard after one micro-step
    assert time.monotonic() - started < 60
    newest = checkpoints_in(root / "models/checkpoints")[-1]
    assert step_of(newest) == done
    assert defect(newest) is None
    assert newest.name in (root / "out.log").read_text()
    assert run(root) == 0
    same_as(unbroken, root)


@pytest.mark.slow
def test_early_stopping_survives_a_kill(project: Path, tmp_path: Path) -> None:
    """Best at step 2, no better at 3 to 6, and far better later: patience counts through a kill, and the best
    adapter is published, which is no longer among the newest three.
    """
    losses, wholes = (3.0, 1.0, 2.0, 2.5, 2.2, 2.1, *[0.5] * 20), []
    for name, death in (("whole", None), ("killed", Death("step", 3 * ACCUMULATION + 1))):
        root = copy(project, tmp_path / name)
        params = yaml.safe_load((root / "params.yaml").read_text())
        params["train"] |= {
            "early_stopping_patience": 4,
            "eval_steps": 1,
            "save_steps": 1,
            "sample_rows": 0,
        }
        (root / "params.yaml").write_text(yaml.safe_dump(params))
        if death:
            assert run(root, death, losses) == -signal.SIGKILL
        assert run(root, None, losses) == 0, (root / "out.log").read_text()[-2000:]
        report = json.loads((root / "reports/train.json").read_text())
        assert (report["steps"], report["adapter_step"], report["eval_loss"]) == (6, 2, 1.0)
        wholes.append(tree_hash(root / "models/adapter"))
    assert wholes[0] == wholes[1]


@pytest.mark.slow
def test_a_chosen_checkpoint_is_gone_on_from(project: Path, unbroken: Path, tmp_path: Path) -> None:
    """The newer one is kept aside: if killed again, the same command resumes from the chosen one."""
    root = copy(project, tmp_path)
    assert run(root, Death("step", 4 * SAVE_STEPS + 1)) == -signal.SIGKILL
    chosen, newest = checkpoints_in(root / "models/checkpoints")
    assert len({read_notes(one)["run"] for one in (chosen, newest)} - {None}) == 1  # both say whose they are
    assert run(root, Death("step", 3), words=("--resume", str(chosen))) == -signal.SIGKILL
    assert checkpoints_in(root / "models/checkpoints") == [chosen]
    assert defect(root / "models/checkpoints/later" / newest.name) is None
    assert run(root) == 0, (root / "out.log").read_text()[-2000:]
    output = (root / "out.log").read_text()
    assert output.count(f"resuming from {chosen}") == 2
    assert json.loads((root / "reports/train.json").read_text())["resumed_from"] == chosen.name
    same_as(unbroken, root)


@pytest.mark.slow
def test_killed_for_real(project: Path, unbroken: Path, tmp_path: Path) -> None:
    """The same by `kill -9` from outside, once, on the command that users type."""
    import subprocess

    root = copy(project, tmp_path)
    command = [sys.executable, "-m", "pipeline", "train", "--root", str(root)]
    process = subprocess.Popen(command, start_new_session=True, preexec_fn=on_one_core)
    marker = root / "models/checkpoints" / f"checkpoint-{SAVE_STEPS}" / MARKER
    end = time.monotonic() + 300
    while not marker.exists():
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(30) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):  # no orphan: nobody is left in its session
        os.killpg(process.pid, 0)
    process = subprocess.Popen(command, start_new_session=True, preexec_fn=on_one_core)
    newest = step_of(checkpoints_in(root / "models/checkpoints")[-1])
    while step_of(checkpoints_in(root / "models/checkpoints")[-1]) == newest:
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    again = subprocess.run(command, check=True, capture_output=True, text=True, preexec_fn=on_one_core)
    assert "resuming from" in again.stderr
    same_as(unbroken, root)
