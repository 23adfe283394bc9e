"""The real Snakefile and dvc.yaml on the tiny model: either tool goes on where the other stopped, and both
make the same adapter.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tiny

from pipeline.core.hashing import tree_hash
from pipeline.llamacpp.tools import DEFAULT_HOME

PROJECT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
ENVIRONMENT = {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}


def run(root: Path, *command: str) -> str:
    home = os.environ.get("LLAMA_CPP_HOME") or str(DEFAULT_HOME)
    environment = os.environ | ENVIRONMENT | {"LLAMA_CPP_HOME": home}
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout + done.stderr


def clone(tiny_qwen2: Path, root: Path) -> Path:
    """This working tree's tracked files in a repository of their own, with a tiny recipe and forty chats."""
    for name in run(PROJECT, "git", "ls-files", "-z").split("\0"):
        if name and (PROJECT / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(PROJECT / name, root / name)
    params = tiny.tiny_params(tiny_qwen2)
    params["quantize"]["levels"], params["evaluate"]["models"] = (
        ["Q4_K_M"],
        ["F16", "Q4_K_M"],
    )  # more of them are more of the same
    tiny.write_project(root, params)
    run(root, "git", "init", "--quiet")
    run(root, "dvc", "add", "--quiet", "data/raw")
    run(root, "git", "add", "--all")
    run(root, "git", "commit", "--quiet", "--message", "start")
    return root


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_each_tool_goes_on_where_the_other_stopped(tiny_qwen2: Path, tmp_path: Path) -> None:
    """One chain, in turns. By Snakemake alone it runs in `make demo`, whose CI then asks DVC."""
    root = clone(tiny_qwen2, tmp_path / "project")
    adapter = root / "models/adapter"

    log = run(root, "dvc", "repro", "preprocess")
    assert all(f"Running stage '{stage}'" in log for stage in ("base", "curate", "preprocess"))
    log = run(root, "snakemake", "train")
    assert "1 of 1 steps" in log and not (root / "models/merged").exists()
    trained = tree_hash(adapter)
    log = run(root, "dvc", "repro")
    assert "Running stage 'merge'" in log and "Running stage 'train'" not in log
    assert "Nothing to be done" in run(root, "snakemake", "-n")
    assert "up to date" in run(root, "dvc", "status")
    changed = {line[3:] for line in run(root, "git", "status", "--porcelain").splitlines()}
    assert changed <= {"dvc.lock", "data/raw.dvc"}
    run(root, "dvc", "repro", "--force", "--single-item", "train")
    assert tree_hash(adapter) == trained  # by either tool

    # a new raw file without a new training row: curate and the report run, everything between comes back from
    # the cache
    (root / "data/raw/more.jsonl").write_bytes((root / "data/raw/chats.jsonl").read_bytes())
    log = run(root, "snakemake")
    assert "80 rows read, 40 kept" in log
    for stage in ("preprocess", "train", "merge", "convert", "parity"):
        assert f"{stage}: nothing it depends on has changed: its outputs are back from DVC's cache" in log, (
            stage
        )
    assert "up to date" in run(root, "dvc", "status")
    assert tree_hash(adapter) == trained

    # and with new training rows it trains again
    rows = (
        (root / "data/raw/chats.jsonl")
        .read_text()
        .replace("plus", "and then also")
        .replace("Antwort", "réponse")
    )
    (root / "data/raw/more.jsonl").write_text(rows)
    log = run(root, "snakemake", "train")
    assert "80 rows read, 80 kept" in log
    assert "train: nothing it depends on" not in log
    assert tree_hash(adapter) != trained
