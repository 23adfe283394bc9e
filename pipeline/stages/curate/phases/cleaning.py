"""Which lines each shard reads, and each line read and cleaned.

The raw files, one after the other, are shared out in runs of equal bytes. A file of JSON lines is cut at a
line's start; any other (an array, a table, a packed file) is one shard's. The plan also has what only a look
at whole files tells: their hashes, and how many lines lie before each cut.
"""

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from pipeline.config.sections import Curate
from pipeline.core.jsonl import BadLine
from pipeline.core.progress import progress
from pipeline.core.publish import need_disk
from pipeline.core.special_files import need_plain_files, unreadable
from pipeline.stages.curate.account import CurationStats
from pipeline.stages.curate.clean import Block, Cleaner, blocks
from pipeline.stages.curate.inputs import check_globs, cleaner_arguments
from pipeline.stages.curate.phases.work import ROWS, Work, dump, load
from pipeline.stages.curate.reading.containers import Part, is_cut_anywhere, raw_lines
from pipeline.stages.curate.reading.files import files_below, opened, raw_files, refusal, size
from pipeline.stages.curate.spool import Spool
from pipeline.stages.curate.workers import Workers

DISK_FACTOR = 4  # of the raw bytes: clean rows, features, outputs
BLOCK = 1 << 20  # bytes read at a time
BLOCK_BYTES = 1 << 20  # raw bytes that a worker gets at a time
FACTS, REJECTS, CHANGES, STATS = "facts", "rejects.jsonl", "changes.jsonl", "stats.json"


@dataclass(frozen=True)
class Plan:
    """The files, and what each shard reads of which (None: all of it)."""

    files: dict[str, str]  # name below data/raw → SHA-256, of those that are read
    refused: dict[str, BadLine]  # and why others are not
    bytes_read: int
    shards: list[list[tuple[str, Part | None]]]


def raw_folder(root: Path) -> Path:
    """data/raw; of a sub-project, in which it is a link, the user's own folder: sentences name that."""
    raw = root / "data/raw"
    return raw.resolve() if raw.is_symlink() else raw


def make_plan(root: Path, settings: Curate, work: Work, threads: int = 1) -> None:
    """Check what the stage reads, and plan its shards. Raises `DataError`, `ConfigError` for a glob that no
    file matches, `MachineError` if the disk is too small.
    """
    need_plain_files(root / "data/raw", root / "data/guard", recorded=(root / ".dvc").is_dir())
    files = raw_files(raw_folder(root))
    for key, globs in (
        ("curate.formats", settings.formats),
        ("curate.source_weights", settings.source_weights),
    ):
        check_globs(key, globs, [name for name, _ in files])
    sizes = {name: size(path) for name, path in files if path.is_file()}
    need_disk(root / "data", DISK_FACTOR * sum(sizes.values()))
    cleaner_arguments(root, settings)
    refused = {name: [why.code, str(why)] for name, path in files if (why := refusal(path))}
    paths = {name: path for name, path in files if name not in refused}
    cuts = _cuts(paths, sizes, settings.max_line_bytes, work.shards)
    with ThreadPoolExecutor(threads) as pool:
        looked = pool.map(lambda name: _look(paths[name], cuts.get(name, [])), paths)
        known = dict(zip(paths, looked, strict=True))
    with work.making("plan") as folder:
        plan = {
            "files": {name: sha256 for name, (sha256, _) in known.items()},
            "refused": refused,
            "bytes": sum(sizes.values()),
            "shards": [
                [[name, part and [*part]] for name, part in shard]
                for shard in _shards(paths, sizes, {name: lines for name, (_, lines) in known.items()}, cuts)
            ]
            if paths
            else [[]] * work.shards,
        }
        dump(folder / "plan.json", plan)


def read_plan(work: Work) -> Plan:
    """What `make_plan` wrote."""
    plan: dict[str, Any] = load(work.made("plan") / "plan.json")
    return Plan(
        plan["files"],
        {name: BadLine(*why) for name, why in plan["refused"].items()},
        plan["bytes"],
        [[(name, Part(*part) if part else None) for name, part in shard] for shard in plan["shards"]],
    )


def _cuts(
    paths: dict[str, Path], sizes: dict[str, int], max_line_bytes: int, shards: int
) -> dict[str, list[int]]:
    """{file: the bytes at which shards begin inside it or, as 0 and its size, at its ends}, one for each
    shard but the first.
    """
    found: dict[str, list[int]] = {}
    begins = [0, *accumulate(sizes[name] + 1 for name in paths)]  # so that an empty file is somebody's too
    for name, begin, end in zip(paths, begins, begins[1:], strict=False):
        targets = [begins[-1] * k // shards for k in range(1, shards)]
        inside = [target - begin for target in targets if begin <= target < end]
        if not inside:
            continue
        if is_cut_anywhere(paths[name], name, max_line_bytes):
            found[name] = [_line_start(paths[name], at) for at in inside]
        else:
            found[name] = [0 if 2 * at < sizes[name] else sizes[name] for at in inside]
    return found


def _line_start(path: Path, at: int) -> int:
    """Where the first line begins that does not begin before byte `at`."""
    if not at:
        return 0
    with opened(path) as file:
        at -= 1  # behind the break of a line is a line's start
        file.seek(at)
        while block := file.read(BLOCK):
            if (end := block.find(b"\n")) >= 0:
                return at + end + 1
            at += len(block)
    return at


def _look(path: Path, cuts: list[int]) -> tuple[str, dict[int, int]]:
    """The file's SHA-256, and how many lines begin before each cut. Raises `DataError` for a bad disk."""
    whole, lines, before = hashlib.sha256(), 0, {0: 0}
    with opened(path) as file:
        try:
            for begin, end in pairwise(sorted({0, *cuts})):
                while begin < end and (block := file.read(min(BLOCK, end - begin))):
                    whole.update(block)
                    lines += block.count(b"\n")
                    begin += len(block)
                before[end] = lines
            while block := file.read(BLOCK):
                whole.update(block)
        except OSError as error:
            unreadable(path, error)
    return whole.hexdigest(), before


def _shards(
    paths: dict[str, Path],
    sizes: dict[str, int],
    lines: dict[str, dict[int, int]],
    cuts: dict[str, list[int]],
) -> list[list[tuple[str, Part | None]]]:
    shards: list[list[tuple[str, Part | None]]] = [[]]
    for name in paths:
        begin, end = 0, sizes[name]
        for cut in cuts.get(name, []):
            if cut > begin:
                shards[-1].append(
                    (name, None if cut == end and not begin else Part(begin, cut, lines[name][begin]))
                )
            shards.append([])
            begin = cut
        if begin < end or not end:
            shards[-1].append((name, Part(begin, end, lines[name][begin]) if begin else None))
    return shards


def clean(root: Path, settings: Curate, work: Work, plan: Plan, shard: int, pool: Workers) -> None:
    """Read and clean what the plan gives this shard (from 0); `pool` has a `Cleaner` in each process."""
    paths = dict(files_below(raw_folder(root)))
    parts = plan.shards[shard]
    stats = CurationStats.of(plan.files, {})
    left = {name: part.stop - part.start if part else size(paths[name]) for name, part in parts}

    def stream() -> Iterator[Block]:
        for name, part in parts:
            notes = stats.files[name]["notes"]
            lines = raw_lines(
                paths[name], name, max_line_bytes=settings.max_line_bytes, notes=notes, part=part
            )
            yield from blocks(name, lines, BLOCK_BYTES)

    with (
        progress("curate: reading and cleaning", sum(left.values())) as advance,
        work.making("clean", shard) as folder,
        (folder / REJECTS).open("wb", buffering=1 << 20) as rejects,
        (folder / CHANGES).open("wb", buffering=1 << 20) as changes,
        (folder / FACTS).open("wb") as facts,
    ):
        spool = Spool(folder / ROWS)
        for done in pool.map(Cleaner.block, stream()):
            spool.append(done.rows)
            rejects.writelines(done.rejects)
            changes.writelines(done.changes)
            facts.write(stats.add(done).data)
            # bytes; a packed file has more when it is read
            step = min(done.size, left[done.file])
            left[done.file] -= step
            advance(step)
        advance(sum(left.values()))
        spool.finish()
        dump(folder / STATS, stats.as_json())
