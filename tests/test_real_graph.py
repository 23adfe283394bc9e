"""The real Snakefile and dvc.yaml on the tiny model: either tool goes on where the other stopped, and both
make the same adapter.
"""

import json
import re
from pathlib import Path

import pytest
from user_project import clone, nothing_to_do, run

from pipeline.core.hashing import tree_hash


def rows(root: Path) -> tuple[int, int]:
    """How many curate read and kept."""
    report = json.loads((root / "reports/data.json").read_text())
    return report["rows_read"], report["rows_kept"]


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_each_tool_goes_on_where_the_other_stopped(tiny_qwen2: Path, tmp_path: Path) -> None:
    """One chain, in turns. By Snakemake alone it runs in `make demo`, whose CI then asks DVC."""
    root = clone(tiny_qwen2, tmp_path / "project")
    adapter = root / "models/adapter"

    log = run(root, "dvc", "repro", "preprocess")
    assert all(f"Running stage '{stage}'" in log for stage in ("base", "curate", "preprocess"))
    log = run(root, "snakemake", "train")
    assert not (root / "models/merged").exists()
    trained = tree_hash(adapter)
    log = run(root, "dvc", "repro")
    assert "Running stage 'merge'" in log and "Running stage 'train'" not in log
    assert nothing_to_do(run(root, "snakemake", "-n"))
    assert "up to date" in run(root, "dvc", "status")
    changed = {line[3:] for line in run(root, "git", "status", "--porcelain").splitlines()}
    assert changed <= {"dvc.lock", "data/raw.dvc"}
    run(root, "dvc", "repro", "--force", "--single-item", "train")
    assert tree_hash(adapter) == trained  # by either tool

    # a new raw file without a new training row: curate and the report run, everything between comes back from
    # the cache
    (root / "data/raw/more.jsonl").write_bytes((root / "data/raw/chats.jsonl").read_bytes())
    log = run(root, "snakemake")
    assert rows(root) == (80, 40)
    spared = set(re.findall(r"^(\w+): nothing it depends on", log, re.MULTILINE))
    assert spared >= {"preprocess", "train", "merge", "convert", "parity"}, log
    assert "up to date" in run(root, "dvc", "status")
    assert tree_hash(adapter) == trained

    # and with new training rows it trains again
    chats = (root / "data/raw/chats.jsonl").read_text()
    (root / "data/raw/more.jsonl").write_text(chats.replace("plus", "and then").replace("Antwort", "réponse"))
    log = run(root, "snakemake", "train")
    assert rows(root) == (80, 80)
    assert tree_hash(adapter) != trained
