"""Curation against other tools' MinHash at scale: rows a second, and which rows each of them loses.

    python benchmarks/other_curators.py [--rows 200000] [--datatrove-python PATH] [--data-juicer-python PATH]
                                        [--dir DIR]

Runs `python -m pipeline curate` as a user does (strict reading, cleaning, redaction, duplicates, leaks,
split, account), and on the same texts the MinHash of datatrove (its four steps, with its defaults) and of
Data-Juicer (`dj-process`, words in fives, else its defaults), each with a process a core, one after the
other. Each PATH is a Python of an environment of its own, for they need other versions of what this project
needs: `pip install "datatrove[processing,io]" spacy`; `pip install py-data-juicer aiohttp`.

Two inputs: generated chats whose near-duplicates are known (benchmarks/chats.py), and 2,000 sums, which
differ in nothing but their numbers, so each is a row of its own.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from benchmarks.chats import read_truth, write_project
from benchmarks.curate import OUR_THRESHOLD, THEIR_THRESHOLD, curate, seconds, set_threshold

SUMS = 2000
Tool = Callable[[Path, int], np.ndarray]  # a project's folder, its rows → which of them are kept
DATATROVE = """
import json, sys
from pathlib import Path
from datatrove.executor.local import LocalPipelineExecutor
from datatrove.pipeline.dedup import MinhashDedupBuckets, MinhashDedupCluster
from datatrove.pipeline.dedup import MinhashDedupFilter, MinhashDedupSignature
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers.jsonl import JsonlWriter

folder, cores = Path(sys.argv[1]), int(sys.argv[2])
write = JsonlWriter(str(folder / "kept"), compression=None)
read = lambda: JsonlReader(str(folder / "texts"), doc_progress=False)
steps = [
    ([read(), MinhashDedupSignature(str(folder / "signatures"))], cores),
    ([MinhashDedupBuckets(str(folder / "signatures"), str(folder / "buckets"))], 14),
    ([MinhashDedupCluster(str(folder / "buckets"), str(folder / "remove"))], 1),
    ([read(), MinhashDedupFilter(str(folder / "remove")), write], cores),
]
if __name__ == "__main__":
    for number, (pipeline, tasks) in enumerate(steps):
        logs = str(folder / f"logs{number}")
        LocalPipelineExecutor(pipeline, tasks=tasks, workers=cores, logging_dir=logs).run()
"""
DATA_JUICER = """
project_name: compared
dataset_path: {texts}
export_path: {kept}
np: {cores}
open_tracer: false
process:
  - document_minhash_deduplicator:
      tokenization: space
      window_size: 5
"""


def quench(threshold: float, root: Path, rows: int) -> np.ndarray:
    """The whole stage; rows are known by their numbers."""
    set_threshold(root, threshold)
    seconds(curate(root), 0)
    kept = np.zeros(rows, np.bool_)
    for split in ("train", "val", "test"):
        with (root / f"data/final/{split}.jsonl").open(encoding="utf-8") as lines:
            for line in lines:
                kept[int(json.loads(line)["source"].rpartition(":")[2].partition("#")[0]) - 1] = True
    return kept


def datatrove(python: Path, root: Path, rows: int) -> np.ndarray:
    """Its four steps on this machine."""
    script, cores = root / "steps.py", str(len(os.sched_getaffinity(0)))
    script.write_text(DATATROVE, encoding="utf-8")
    run(root, [str(python), str(script), str(root), cores])
    return kept_rows(sorted((root / "kept").rglob("*.jsonl")), rows)


def data_juicer(python: Path, root: Path, rows: int) -> np.ndarray:
    """What its command line does."""
    config, kept = root / "juicer.yaml", root / "juicer" / "kept.jsonl"
    cores = len(os.sched_getaffinity(0))
    config.write_text(DATA_JUICER.format(texts=root / "texts", kept=kept, cores=cores), encoding="utf-8")
    run(root, [str(python.with_name("dj-process")), "--config", str(config)])
    return kept_rows([kept], rows)


def run(root: Path, command: list[str]) -> None:
    """Run another tool's command; its output goes to a file."""
    with (root / "tool.log").open("wb") as log:
        home = {"HOME": str(root / "home"), "HF_HUB_OFFLINE": "1"}  # no cache of a run before
        done = subprocess.run(command, cwd=root, stdout=log, stderr=log, env=os.environ | home, check=False)
    if done.returncode:
        said = (root / "tool.log").read_text(encoding="utf-8", errors="replace")
        raise SystemExit(f"{command[0]}: exit status {done.returncode}\n{said[-2000:]}")


def kept_rows(files: list[Path], rows: int) -> np.ndarray:
    """Which rows stand in another tool's output, by their ids."""
    kept = np.zeros(rows, np.bool_)
    for file in files:
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                kept[int(json.loads(line)["id"])] = True
    return kept


def write_texts(root: Path) -> None:
    """The project's chats as plain texts with their row's number, in a file a core: datatrove reads by
    file.
    """
    (root / "texts").mkdir()
    with ExitStack() as stack:
        chats = stack.enter_context((root / "data/raw/chats.jsonl").open(encoding="utf-8"))
        names = [f"texts/{number}.jsonl" for number in range(len(os.sched_getaffinity(0)))]
        files = [stack.enter_context((root / name).open("w", encoding="utf-8")) for name in names]
        for number, line in enumerate(chats):
            text = "\n".join(turn["content"] for turn in json.loads(line)["messages"])
            files[number % len(files)].write(json.dumps({"id": str(number), "text": text}) + "\n")


def sums() -> Iterator[dict[str, object]]:
    """Chats that differ in nothing but numbers."""
    for number in range(SUMS):
        a, b = 1000 + number, 7 * number + 13
        asked = f"A shelf holds {a} books, and {b} are put beside them. How many are there?"
        answer = f"There are {a} books and {b} more, so the shelf holds {a + b} books."
        yield {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]}


def main() -> None:
    """Print a table, a line for each tool."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--datatrove-python", type=Path)
    parser.add_argument("--data-juicer-python", type=Path)
    parser.add_argument("--dir", type=Path, help="where to work; by default a temporary folder")
    options = parser.parse_args()
    ours = {
        f"quench, threshold {threshold}": partial(quench, threshold)
        for threshold in (OUR_THRESHOLD, THEIR_THRESHOLD)
    }
    tools: dict[str, Tool | None] = {**ours, "datatrove": None, "Data-Juicer": None}
    if python := options.datatrove_python:
        tools["datatrove"] = lambda root, rows: datatrove(python.absolute(), root, rows)
    if other := options.data_juicer_python:
        tools["Data-Juicer"] = lambda root, rows: data_juicer(other.absolute(), root, rows)
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        known, alike = Path(folder) / "known", Path(folder) / "sums"
        write_project(known, options.rows)
        write_project(alike, 0)
        with (alike / "data/raw/chats.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(chat) + "\n" for chat in sums())
        for root in (known, alike):
            write_texts(root)
        truth = read_truth(known)
        originals = len(np.unique(truth))
        print("| | rows/s | copies removed | originals lost | sums kept |\n| --- | --- | --- | --- | --- |")
        for name, tool in tools.items():
            if tool is None:
                print(f"| {name} | not measured | | | |", flush=True)
                continue
            start = time.perf_counter()
            kept = tool(known, options.rows)
            speed = options.rows / (time.perf_counter() - start)
            left = len(np.unique(truth[kept]))  # clusters of which a row is left
            removed = 1 - (kept.sum() - left) / (options.rows - originals)
            print(
                f"| {name} | {speed:,.0f} | {removed:.1%} | {originals - left:,} of {originals:,} | "
                f"{tool(alike, SUMS).sum():,} of {SUMS:,} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
