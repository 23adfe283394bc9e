"""Curation end to end against text-dedup's MinHash alone: speed, F1, memory and sameness, on generated chats
whose truth is known.

    python benchmarks/curate.py [--rows 100000] [--big 1000000] [--text-dedup-python PATH] [--dir DIR]

Runs `python -m pipeline curate` as a user does (strict reading, cleaning, redaction, duplicates, leaks,
split, account) and `python -m text_dedup.minhash` (0.4.0, its defaults, a process per core) on the same
texts, one after the other. PATH is a Python that has text-dedup (`pip install text-dedup==0.4.0` in an
environment of its own: it pins old packages). `--big 0` leaves the large run out. Peak memory is the sum of
the proportional set sizes of all processes, sampled ten times a second in a run of its own.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import psutil

from benchmarks.chats import pairwise_f1, read_truth, write_project

OUTPUTS = (
    "data/final/train.jsonl",
    "data/final/val.jsonl",
    "data/final/test.jsonl",
    "data/rejects.jsonl",
    "data/clusters.jsonl",
    "data/changes.jsonl",
)
SAMPLING = 0.1  # seconds
THEIR_THRESHOLD, OUR_THRESHOLD = 0.7, 0.8  # both defaults
LABELS = """
import pickle, sys
found = pickle.load(open(sys.argv[1], "rb"))
print(*(found.find(row) for row in range(int(sys.argv[2]))))
"""  # text-dedup's own union-find, in its own Python


def curate(root: Path, cores: int | None = None) -> subprocess.Popen[str]:
    """The stage, started; `cores`: on so many."""
    command = [sys.executable, "-m", "pipeline", "curate", "--root", str(root)]
    bound = ["taskset", "-c", ",".join(map(str, sorted(os.sched_getaffinity(0))[:cores]))] if cores else []
    return subprocess.Popen([*bound, *command], cwd=Path(__file__).parents[1], stdout=subprocess.DEVNULL)


def seconds(process: subprocess.Popen[str], start: float) -> float:
    """Wall time from `start` to its end, which has to be a good one."""
    if process.wait() != 0:
        raise SystemExit(f"{process.args}: exit status {process.returncode}")
    return time.perf_counter() - start


def peak_memory(process: subprocess.Popen[str]) -> int:
    """Most bytes (PSS) that the process and all below it ever had together."""
    peak = 0
    while process.poll() is None:
        peak = max(peak, sum(map(_pss, _family(process.pid))))
        time.sleep(SAMPLING)
    seconds(process, 0)
    return peak


def _family(pid: int) -> list[psutil.Process]:
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _pss(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return 0


def our_labels(root: Path, rows: int) -> np.ndarray:
    """The cluster of every row, from data/clusters.jsonl."""
    found = np.arange(rows)
    with (root / "data/clusters.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            members = [
                int(source.rpartition(":")[2].partition("#")[0]) - 1 for source in json.loads(line)["rows"]
            ]
            found[members] = min(members)
    return found


def text_dedup(python: Path, root: Path, rows: int) -> tuple[float, np.ndarray]:
    """(seconds, the cluster of every row)."""
    cores = str(len(os.sched_getaffinity(0)))
    options = [
        "--path",
        "json",
        "--data_files",
        "texts.jsonl",
        "--split",
        "train",
        "--column",
        "text",
        "--cache_dir",
        "cache",
        "--output",
        "deduplicated",
        "--debug",
        "--num_proc",
        cores,
    ]
    command, quiet = [str(python), "-m", "text_dedup.minhash", *options], subprocess.DEVNULL
    start = time.perf_counter()
    took = seconds(
        subprocess.Popen(
            command, cwd=root, stdout=quiet, stderr=quiet, text=True, env=os.environ | {"HF_HUB_OFFLINE": "1"}
        ),
        start,
    )
    command = [str(python), "-c", LABELS, "deduplicated/uf.pkl", str(rows)]
    printed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    for name in ("cache", "deduplicated"):
        shutil.rmtree(root / name)
    return took, np.array(printed.stdout.split(), np.int64)


def set_threshold(root: Path, threshold: float) -> None:
    """Have the project take rows of at least this Jaccard similarity for duplicates."""
    params = root / "params.yaml"
    params.write_text(
        re.sub(
            r"(?m)^  near_threshold: .*$",
            f"  near_threshold: {threshold}",
            params.read_text(encoding="utf-8"),
        ),
        encoding="utf-8",
    )


def fingerprint(root: Path) -> dict[str, str]:
    """SHA-256 of everything the stage writes."""
    return {name: hashlib.sha256((root / name).read_bytes()).hexdigest() for name in OUTPUTS}


def main() -> None:
    """Print the figures, theirs and ours."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--big", type=int, default=1_000_000)
    parser.add_argument("--text-dedup-python", type=Path)
    parser.add_argument("--dir", type=Path, help="where to work; by default a temporary folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        root, rows = Path(folder) / "small", options.rows
        write_project(root, rows)
        truth = read_truth(root)
        ours = {}
        for threshold in (THEIR_THRESHOLD, OUR_THRESHOLD):
            set_threshold(root, threshold)
            took = seconds(curate(root), time.perf_counter())
            ours[threshold] = took, pairwise_f1(truth, our_labels(root, rows))
            print(
                f"curate, threshold {threshold}     {rows / took:10.0f} documents/s   F1 "
                f"{ours[threshold][1]:.4f}",
                flush=True,
            )
        written = fingerprint(root)
        if options.text_dedup_python:
            theirs, labels = text_dedup(options.text_dedup_python.absolute(), root, rows)
            f1 = pairwise_f1(truth, labels)
            print(f"text-dedup, threshold {THEIR_THRESHOLD} {rows / theirs:10.0f} documents/s   F1 {f1:.4f}")
            for threshold, (took, our_f1) in ours.items():
                print(
                    f"ours at {threshold} / theirs      {theirs / took:10.2f}               F1 "
                    f"{our_f1 / f1:.3f}",
                    flush=True,
                )
        else:
            print("text-dedup's MinHash      not measured (--text-dedup-python)")
        peak = peak_memory(curate(root))
        print(f"peak memory, {rows} rows   {peak >> 20} MiB", flush=True)
        seconds(curate(root, cores=1), 0)
        print(f"same bytes with 1 worker  {'yes' if fingerprint(root) == written else 'NO'}", flush=True)
        if options.big:
            shutil.rmtree(root)
            write_project(root, options.big)
            start, process = time.perf_counter(), curate(root)
            big = peak_memory(process)
            speed = options.big / (time.perf_counter() - start)
            print(
                f"peak memory, {options.big} rows  {big >> 20} MiB   {big / peak:.2f} times that of {rows}  "
                f" {speed:.0f} documents/s"
            )


if __name__ == "__main__":
    main()
