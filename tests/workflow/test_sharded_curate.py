"""Stage curate as Snakemake's jobs: killed, resumed, and nothing to do afterwards, with shards or without."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tokenizer_folders import smollm_folder
from user_project import BIN, nothing_to_do

from pipeline.core.places import PROJECT
from pipeline.workflow.cluster.shards import FOLDER
from pipeline.workflow.project import write_code

PAGE = (PROJECT / "docs/curation-at-scale.md").read_text(encoding="utf-8")
# the page's command, on fewer shards
[SHOWN] = re.findall(r"^snakemake (curate .*)$", PAGE, re.MULTILINE)
COMMAND = ["snakemake", *SHOWN.replace("=7", "=2").split()]
OUTPUTS = (
    *(f"data/final/{split}.jsonl" for split in ("train", "val", "test")),
    *(f"data/{name}.jsonl" for name in ("rejects", "changes", "clusters")),
    "reports/data.json",
    "reports/data.html",
)


def command(root: Path, *words: str) -> subprocess.Popen[str]:
    environment = os.environ | {
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(PROJECT),
    }
    return subprocess.Popen(
        words, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )


def run(root: Path, *words: str) -> str:
    started = command(root, *words)
    printed, _ = started.communicate(timeout=300)
    assert started.returncode == 0, printed[-3000:]
    return printed


def write_project(root: Path) -> Path:
    """The project's own Snakefile, a base that is there, and some chats that repeat each other."""
    for name in ("Snakefile", "params.yaml"):
        shutil.copy(PROJECT / name, root)
    for name in ("graphs", "profiles"):
        shutil.copytree(PROJECT / name, root / name)
    for name in ("raw", "guard"):
        (root / "data" / name).mkdir(parents=True)
    for name, first in (("a", 0), ("b", 40)):
        rows = [
            {"prompt": f"question {i % 60} of many", "completion": f"answer {i % 50 * 7919} mail{i}@firm.com"}
            for i in range(first, first + 80)
        ]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (root / f"data/raw/{name}.jsonl").write_text(f"{lines}broken\n", encoding="utf-8")
    write_code(root)  # before the base, which Snakemake would make again else
    (root / "models/base").mkdir(parents=True)
    smollm_folder(root / "models/base")
    (root / "models/base.json").write_text('{"added_tokens": []}', encoding="utf-8")
    return root


def outputs(root: Path) -> dict[str, bytes]:
    return {name: (root / name).read_bytes() for name in OUTPUTS}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_jobs_on_shards_that_are_killed_go_on_and_make_what_one_process_makes(tmp_path: Path) -> None:
    root = write_project(tmp_path)
    killed = command(root, *COMMAND)
    waiting = time.monotonic() + 200
    while not (root / FOLDER / "sample-of-2").is_dir():
        assert killed.poll() is None and time.monotonic() < waiting
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()  # its jobs have its output open, and end with it

    printed = run(root, *COMMAND)
    assert re.search(r"\b([6-9]) of \1 jobs are done", printed), printed  # of 12: what was done is used
    assert not (root / FOLDER).exists()
    made = outputs(root)
    assert nothing_to_do(run(root, *COMMAND, "-n"))
    assert nothing_to_do(run(root, "snakemake", "-n", "curate"))

    run(root, sys.executable, "-m", "pipeline", "curate")
    assert outputs(root) == made
