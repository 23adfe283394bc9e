"""The real Snakefile and dvc.yaml on the tiny model: after either tool the other has nothing to do, and both make the same adapter."""

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
    tiny.write_project(root, tiny.tiny_params(tiny_qwen2))
    run(root, "git", "init", "--quiet")
    run(root, "dvc", "add", "--quiet", "data/raw")
    run(root, "git", "add", "--all")
    run(root, "git", "commit", "--quiet", "--message", "start")
    return root


@pytest.mark.slow
def test_either_tool_from_nothing_leaves_nothing_to_the_other(tiny_qwen2: Path, tmp_path: Path) -> None:
    one, two = clone(tiny_qwen2, tmp_path / "one"), clone(tiny_qwen2, tmp_path / "two")

    run(one, "snakemake", "train")
    assert not (one / "models/merged").exists()
    run(one, "snakemake")
    assert "up to date" in run(one, "dvc", "status")
    assert "Running stage" not in run(one, "dvc", "repro")
    assert "Nothing to be done" in run(one, "snakemake", "-n")
    changed = {line[3:] for line in run(one, "git", "status", "--porcelain").splitlines()}
    assert changed <= {"dvc.lock", "data/raw.dvc"}

    run(two, "dvc", "repro")
    assert "Nothing to be done" in run(two, "snakemake", "-n")
    assert tree_hash(two / "models/adapter") == tree_hash(one / "models/adapter")

    # a new raw file without a new training row: curate and the report run, everything between comes back from the cache
    (one / "data/raw/more.jsonl").write_bytes((one / "data/raw/chats.jsonl").read_bytes())
    said = run(one, "snakemake")
    assert "80 rows read, 40 kept" in said
    for stage in ("preprocess", "train", "merge", "convert", "parity"):
        assert f"{stage}: nothing it depends on has changed: its outputs are back from DVC's cache" in said, stage
    assert "up to date" in run(one, "dvc", "status")
    assert tree_hash(two / "models/adapter") == tree_hash(one / "models/adapter")

    # and with new training rows it trains anew
    rows = (one / "data/raw/chats.jsonl").read_text().replace("plus", "and then also").replace("Antwort", "réponse")
    (one / "data/raw/more.jsonl").write_text(rows)
    said = run(one, "snakemake", "train")
    assert "80 rows read, 80 kept" in said
    assert "train: nothing it depends on" not in said
    assert tree_hash(two / "models/adapter") != tree_hash(one / "models/adapter")
