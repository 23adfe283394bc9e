"""A training run that is killed with SIGKILL goes on from its newest whole checkpoint and ends in the same bytes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import yaml

from pipeline.hashing import tree_hash
from pipeline.training.checkpoints import MARKER

COMMAND = [sys.executable, "-m", "pipeline", "train", "--root"]


def project(prepared: Path, folder: Path) -> Path:
    shutil.copytree(prepared, folder)
    params = yaml.safe_load((folder / "params.yaml").read_text())
    params["train"] |= {"max_steps": 6, "save_steps": 2, "lora_dropout": 0.1, "gradient_accumulation_steps": 2}
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    return folder


def test_killed_after_a_checkpoint(prepared: Path, tmp_path: Path) -> None:
    whole = project(prepared, tmp_path / "whole")
    subprocess.run([*COMMAND, str(whole)], check=True)

    killed = project(prepared, tmp_path / "killed")
    process = subprocess.Popen([*COMMAND, str(killed)], start_new_session=True)
    marker = killed / "models/checkpoints/checkpoint-2" / MARKER
    end = time.monotonic() + 300
    while not marker.exists():
        assert process.poll() is None, "training ended before its first checkpoint"
        assert time.monotonic() < end
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (killed / "models/adapter").exists()

    again = subprocess.run([*COMMAND, str(killed)], check=True, capture_output=True, text=True)
    assert "going on from" in again.stderr
    assert json.loads((killed / "reports/train.json").read_text())["resumed_from"].startswith("checkpoint-")
    assert tree_hash(killed / "models/adapter") == tree_hash(whole / "models/adapter")
    assert (killed / "reports/train.csv").read_bytes() == (whole / "reports/train.csv").read_bytes()
