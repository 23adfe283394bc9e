"""Several processes train as one alone does, bit for bit; whichever of them dies or gets a signal, all end,
and the same command, with as many processes or others, goes on to the same bytes.

Ranks are forked from a server that has the libraries loaded and told who they are by the environment, as
torchrun and srun do; `--processes` itself is started once.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from conftest import run_stages
from deaths import Death, arm, copy, rows_for, same_as
from killed import FORKED, on_one_core, written_to
from tiny import tiny_gguf, tiny_params, write_project

from pipeline.config.params import load_params
from pipeline.core.jsonl import write_rows
from pipeline.stages.preprocess.stage import main as preprocess
from pipeline.stages.train.checkpoints import checkpoints_in, defect, step_of

CHANGES = {
    "num_train_epochs": 2.0,
    "max_steps": -1,
    "save_steps": 2,
    "eval_steps": 2,
    "lora_dropout": 0.1,
    "gradient_accumulation_steps": 5,  # no multiple of the processes, and 14 rows are none of it
    "sample_rows": 1,
}


def run(root: Path, count: int, deaths: dict[int, Death] | None = None, *, slurm: bool = False) -> list[int]:
    """Train by `count` processes, of which some die; their exit codes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [
        FORKED.Process(target=be_rank, args=(root, number, count, port, (deaths or {}).get(number), slurm))
        for number in range(count)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(240)
        assert rank.exitcode is not None, "still running"
    return [rank.exitcode or 0 for rank in ranks]


def be_rank(root: Path, number: int, count: int, port: int, death: Death | None, slurm: bool) -> None:
    """The child: `python -m pipeline train` as one of several."""
    from pipeline.__main__ import main

    on_one_core()
    written_to(root / f"out-{number}.log")
    names = dict.fromkeys(("SLURM_PROCID", "SLURM_LOCALID"), number)
    names |= {"SLURM_STEP_NUM_TASKS": count, "SLURM_STEP_TASKS_PER_NODE": count, "SLURM_JOB_ID": 1}
    if not slurm:
        names = dict.fromkeys(("RANK", "LOCAL_RANK"), number)
        names |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), count)
    if count > 1:
        os.environ.update({name: str(value) for name, value in names.items()})
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    if death is not None:
        arm(death)
    sys.exit(main(["train", "--root", str(root)]))


def changed(folder: Path, **keys: Any) -> Path:
    """The project with other keys in section train."""
    params = yaml.safe_load((folder / "params.yaml").read_text())
    params["train"] |= keys
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    return folder


def log(root: Path, number: int = 0) -> str:
    return (root / f"out-{number}.log").read_text()


@pytest.fixture(scope="module")
def project(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny project of two epochs, whose steps have 5, 5 and 4 micro-batches."""
    folder = tmp_path_factory.mktemp("several") / "project"
    shutil.copytree(prepared, folder)
    return changed(folder, **CHANGES)


@pytest.fixture(scope="module")
def alone(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same project after a run of one process."""
    folder = copy(project, tmp_path_factory.mktemp("alone"))
    assert run(folder, 1) == [0], log(folder)[-2000:]
    return folder


@pytest.mark.slow
def test_two_processes_train_as_one(project: Path, alone: Path, tmp_path: Path) -> None:
    root = copy(project, tmp_path)
    assert run(root, 2) == [0, 0], log(root)[-2000:] + log(root, 1)[-2000:]
    same_as(alone, root)
    assert not log(root, 1)


@pytest.mark.slow
@pytest.mark.parametrize("died", [0, pytest.param(1, id="one that follows")])
def test_one_of_two_is_killed(died: int, project: Path, alone: Path, tmp_path: Path) -> None:
    root = copy(project, tmp_path)
    codes = run(root, 2, {died: Death("step", 17)})  # in the first step of the second pass
    assert codes[died] == -signal.SIGKILL
    assert codes[1 - died] == 6
    assert "Q-TRAIN-037" in log(root, 1 - died)
    # rank 0 saves the newest step if it lives
    assert step_of(checkpoints_in(root / "models/checkpoints")[-1]) == (2 if died == 0 else 3)
    again = 2 if died == 0 else 1
    assert run(root, again) == [0] * again, log(root)[-2000:]
    same_as(alone, root)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("told", "death", "done"),
    [
        pytest.param(1, Death("signal", 3), 1, id="one that follows"),
        pytest.param(0, Death("evaluation", 2), 4, id="rank 0 evaluates"),
        pytest.param(1, Death("evaluation", 2), 4, id="the other evaluates"),
    ],
)
def test_a_signal_to_one_stops_all(
    told: int, death: Death, done: int, project: Path, alone: Path, tmp_path: Path
) -> None:
    root = copy(project, tmp_path)
    assert run(root, 2, {told: death}, slurm=True) == [128 + signal.SIGTERM] * 2, log(root) + log(root, 1)
    newest = checkpoints_in(root / "models/checkpoints")[-1]
    assert (step_of(newest), defect(newest)) == (done, None)
    assert run(root, 2, slurm=True) == [0, 0]
    same_as(alone, root)


@pytest.mark.slow
def test_the_base_is_shared_out(project: Path, alone: Path, tmp_path: Path) -> None:
    """In each step one process has no work at the end and runs along; one is killed within a layer."""
    root = changed(copy(project, tmp_path), offload="shared")
    assert run(root, 2, {1: Death("step", 17)}) == [6, -signal.SIGKILL], log(root)[-2000:]
    assert "Q-TRAIN-037" in log(root)
    assert run(root, 2) == [0, 0], log(root)[-2000:] + log(root, 1)[-2000:]
    same_as(alone, root)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("told", "death"),
    [(1, Death("evaluation", 2)), (0, Death("logged", 2)), (0, Death("loaded", 1))],
    ids=["the other evaluates", "rank 0 is about to", "rank 0 has loaded"],
)
def test_a_signal_while_the_base_is_shared_out(
    told: int, death: Death, project: Path, alone: Path, tmp_path: Path
) -> None:
    """It waits until all have heard; one process alone goes on."""
    root = changed(copy(project, tmp_path), offload="shared")
    assert run(root, 2, {told: death}) == [128 + signal.SIGTERM] * 2, log(root) + log(root, 1)
    assert run(root, 1) == [2]
    assert "Q-TRAIN-040" in log(root)
    assert run(changed(root, offload="none"), 1) == [0], log(root)[-2000:]
    same_as(alone, root)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "offload"),
    [
        ("dpo", "shared"),
        *((method, "none") for method in ("dpo", "sft", "kto", "orpo")),
        *(pytest.param(method, "none", marks=pytest.mark.exhaustive) for method in ("ipo", "simpo")),
    ],
)
def test_other_methods(method: str, offload: str, project: Path, tmp_path: Path) -> None:
    """sft is of rows with rewards."""
    begun = changed(copy(project, tmp_path / "begun"), method=method, num_train_epochs=1.0)
    params = yaml.safe_load((begun / "params.yaml").read_text())
    params["preprocess"] |= {"max_length": 256, "packing": False}  # 12 rows: 5, 5 and 2
    (begun / "params.yaml").write_text(yaml.safe_dump(params))
    for split in ("train", "val"):
        write_rows(begun / f"data/final/{split}.jsonl", rows_for(method))
    preprocess(load_params(begun / "params.yaml"), begun)
    one, two = copy(begun, tmp_path / "one"), copy(begun, tmp_path / "two")
    assert run(one, 1) == [0], log(one)[-2000:]
    assert run(changed(two, offload=offload), 2) == [0, 0], log(two)[-2000:] + log(two, 1)[-2000:]
    same_as(one, two)


@pytest.mark.slow
def test_distilled_scales(tmp_path: Path) -> None:
    """Scales inside a GGUF: the rows' answers count in a tenth of the loss, and its blocks are shared out."""
    params = tiny_params(tiny_gguf(tmp_path / "source.gguf"))
    params["base"] |= {"quantization": "gguf", "level": "Q4_0"}
    params["preprocess"] |= {"max_length": 256}
    params["evaluate"] |= {"models": ["source", "base", "tuned"]}
    params["train"] |= CHANGES | {"method": "distill", "tuner": "scales", "num_train_epochs": 1.0}
    params["train"] |= {"sft_weight": 0.1, "learning_rate": 1.0e-2}
    begun = write_project(tmp_path / "begun", params)
    run_stages(begun, ("base", "curate", "preprocess"))
    one, two = copy(begun, tmp_path / "one"), copy(begun, tmp_path / "two")
    assert run(one, 1) == [0], log(one)[-2000:]
    assert run(changed(two, offload="shared"), 2) == [0, 0], log(two)[-2000:] + log(two, 1)[-2000:]
    same_as(one, two)
    before = [
        json.loads((root / "reports/train.json").read_text())["eval_loss_before"] for root in (one, two)
    ]
    assert before[0] == before[1] > 0


def test_what_processes_cannot_share_is_refused(project: Path, tmp_path: Path) -> None:
    """Before anything is loaded, by all."""
    root = changed(copy(project, tmp_path), gradient_accumulation_steps=1)
    codes = run(root, 2)
    assert codes == [2, 0], log(root, 1)  # the second hears that there is nothing to do
    assert "Q-TRAIN-040" in log(root)
    assert not checkpoints_in(root / "models/checkpoints")


@pytest.mark.slow
def test_the_command_itself(project: Path, alone: Path, tmp_path: Path) -> None:
    """`--processes 2`: a rank is killed by `kill -9`, then the launcher gets SIGTERM, then neither."""
    root = copy(project, tmp_path)
    command = [sys.executable, "-m", "pipeline", "train", "--root", str(root), "--processes", "2"]

    def start() -> "subprocess.Popen[str]":
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=on_one_core)

    def until_step(number: int, process: "subprocess.Popen[str]") -> None:
        end = time.monotonic() + 200
        journal = root / "models/checkpoints/steps.jsonl"
        while not journal.is_file() or journal.read_text().count('"kind": "step"') < number:
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < end
            time.sleep(0.005)

    process = start()
    until_step(1, process)
    ranks = psutil.Process(process.pid).children()
    assert len(ranks) == 2
    ranks[1].kill()
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 6, errors
    assert "Q-TRAIN-037" in errors
    assert not any(rank.is_running() for rank in ranks)
    process = start()
    until_step(3, process)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    subprocess.run(command, check=True, capture_output=True, preexec_fn=on_one_core)
    same_as(alone, root)
