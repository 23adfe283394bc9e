"""Curation in one process and as jobs on shards: rows a second, memory of each job, bytes on disk, sameness.

    python benchmarks/curate_shards.py DIR [--rows 200000] [--shards 1 7] [--cores 1 2] [--seed 0]

writes generated chats (benchmarks/chats.py) to DIR and runs `python -m pipeline curate` on each number of
cores, then the jobs of `pipeline.stages.curate.shard` for each number of shards above 1, as many at a time as
the largest number of cores, with no Snakemake between them. The same command goes on where a stopped one was:
what is measured is in DIR/measured.jsonl. The memory of a job is its largest resident set, files that it has
mapped included; of a process that has workers, the largest of these.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.chats import SYSTEM, chats
from pipeline.commands.recipes import recipe_text
from pipeline.core.hardware import machine
from pipeline.workflow.shards import FOLDER, PHASES

PROJECT = Path(__file__).parents[1]
RAW = "data/raw/chats.jsonl"
OUTPUTS = (
    *(f"data/final/{split}.jsonl" for split in ("train", "val", "test")),
    *(f"data/{name}.jsonl" for name in ("rejects", "changes", "clusters")),
    "reports/data.json",
    "reports/data.html",
)


class Measured:
    """What has been measured, on disk as soon as it is known."""

    def __init__(self, root: Path) -> None:
        self.file = root / "measured.jsonl"
        lines = self.file.read_text(encoding="utf-8").splitlines() if self.file.exists() else []
        self.known: dict[str, dict[str, Any]] = {entry["what"]: entry for entry in map(json.loads, lines)}

    def add(self, what: str, **figures: Any) -> None:
        """Note the figures of one run or job."""
        self.known[what] = {"what": what, **figures}
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(self.known[what]) + "\n")


def write_project(root: Path, rows: int, seed: int) -> None:
    """The chats, a line each, and what curate needs besides; streamed."""
    raw, made = root / RAW, root / "rows.json"
    if raw.exists():
        if made.read_text(encoding="utf-8") != json.dumps([rows, seed]):
            raise SystemExit(f"{raw} has other rows: name another folder, or delete this one")
        return
    raw.parent.mkdir(parents=True, exist_ok=True)
    (root / "data/guard").mkdir(exist_ok=True)
    (root / "models").mkdir(exist_ok=True)
    (root / "params.yaml").write_text(recipe_text("demo"), encoding="utf-8")
    (root / "models/base.json").write_text(
        '{"added_tokens": ["<|im_start|>", "<|im_end|>"]}', encoding="utf-8"
    )
    dice = random.Random(seed + 1)  # noqa: S311
    aside = raw.with_name(".chats.jsonl.writing")
    with aside.open("w", encoding="utf-8") as file:
        for _, chat in chats(rows, seed):
            system = dice.choice(SYSTEM)
            turns = [{"role": "system", "content": system}] if system else []
            turns += [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(chat)]
            file.write(json.dumps({"messages": turns}) + "\n")
    made.write_text(json.dumps([rows, seed]), encoding="utf-8")
    aside.rename(raw)


def timed(root: Path, words: list[str], cores: int | None = None) -> dict[str, float]:
    """Wall and CPU seconds of a command, and its largest resident set."""
    bound = ["taskset", "-c", ",".join(map(str, sorted(os.sched_getaffinity(0))[:cores]))] if cores else []
    start = time.perf_counter()
    process = subprocess.Popen(
        [*bound, sys.executable, "-m", *words, "--root", str(root.resolve())],
        cwd=PROJECT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(
            f"{' '.join(words)}: exit status {process.returncode}; if the code has changed since the jobs "
            f"before, delete {root / FOLDER}"
        )
    return {"wall": wall, "cpu": used.ru_utime + used.ru_stime, "mib": used.ru_maxrss / 1024}


def fingerprint(root: Path) -> str:
    """SHA-256 over everything the stage writes."""
    found = hashlib.sha256()
    for name in OUTPUTS:
        with (root / name).open("rb") as file:
            found.update(hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def in_one_process(root: Path, cores: int, measured: Measured) -> None:
    """The stage as a user runs it, on so many cores."""
    what = f"one process, {cores} {'core' if cores == 1 else 'cores'}"
    if what not in measured.known:
        measured.add(what, **timed(root, ["pipeline", "curate"], cores), sha256=fingerprint(root))


def in_shards(root: Path, shards: int, cores: int, measured: Measured) -> None:
    """The stage as jobs, `cores` at a time."""
    what = f"{shards} shards, {cores} at a time"
    if what in measured.known:
        return

    def job(phase: str, item: str) -> None:
        name = f"{phase} {item}"
        if name not in measured.known or not (root / FOLDER / f"{phase}-{item}").is_dir():
            measured.add(name, **timed(root, ["pipeline.stages.curate.shard", phase, item]))

    wall = 0.0
    for phase, (scattered, _) in PHASES.items():
        items = [f"{n}-of-{shards}" for n in range(1, shards + 1)] if scattered else [f"of-{shards}"]
        with ThreadPoolExecutor(cores) as pool:
            list(pool.map(job, [phase] * len(items), items))
        wall += makespan([measured.known[f"{phase} {item}"]["wall"] for item in items], cores)
    disk = size_of(root / FOLDER)
    last = timed(root, ["pipeline", "curate", "--shards", str(shards)])
    measured.add(f"publish of {shards}", **last)
    measured.add(what, wall=wall + last["wall"], disk=disk, sha256=fingerprint(root))


def makespan(walls: list[float], cores: int) -> float:
    """Seconds that these jobs take, one after the other on so many cores; also where a run was stopped."""
    ends = [0.0] * cores
    for wall in walls:
        ends[ends.index(min(ends))] += wall
    return max(ends)


def lines(rows: int, shards: list[int], cores: list[int], measured: Measured) -> Iterator[str]:
    """The figures, as Markdown."""
    known = measured.known
    yield f"{machine()}; {rows:,} rows"
    yield "\n| run | rows/s | wall s |\n| --- | --- | --- |"
    runs = [name for name in known if name.startswith("one process") or name.endswith("at a time")]
    for name in runs:
        yield f"| {name} | {rows / known[name]['wall']:,.0f} | {known[name]['wall']:,.1f} |"
    for count in shards:
        yield f"\n| job of {count} shards | longest s | CPU s, all | MiB, most | rows/s of a job |"
        yield "| --- | --- | --- | --- | --- |"
        for phase in (*PHASES, "publish"):
            mine = [
                one
                for name, one in known.items()
                if name.startswith(f"{phase} ") and name.endswith(f"of-{count}")
            ]
            mine = mine or [known[f"{phase} of {count}"]]
            longest, most = (max(one[what] for one in mine) for what in ("wall", "mib"))
            cpu, speed = sum(one["cpu"] for one in mine), rows / len(mine) / longest
            yield f"| {phase} ({len(mine)}) | {longest:.1f} | {cpu:.1f} | {most:.0f} | {speed:,.0f} |"
        disk = known[f"{count} shards, {max(cores)} at a time"]["disk"]
        yield f"\nIntermediate files of {count} shards: {disk / rows:,.0f} bytes a row."
    same = {known[name]["sha256"] for name in runs}
    yield f"\nSame bytes: {'yes' if len(same) == 1 else 'NO'} ({len(runs)} runs)."


def main() -> None:
    """Measure what is not measured yet, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("root", type=Path, metavar="DIR")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 7])
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    write_project(options.root, options.rows, options.seed)
    measured, shards = Measured(options.root), [count for count in options.shards if count > 1]
    if len(shards) < len(options.shards):
        for cores in options.cores:
            in_one_process(options.root, cores, measured)
    for count in shards:
        in_shards(options.root, count, max(options.cores), measured)
        shutil.rmtree(options.root / FOLDER, ignore_errors=True)
    print("\n".join(lines(options.rows, shards, options.cores, measured)))


if __name__ == "__main__":
    main()
