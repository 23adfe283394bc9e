"""The plan of the lines that each shard reads, and the reading and cleaning of each line.

The raw files, one after the other, are divided into runs of equal bytes. A file of JSON lines is cut at the
start of a line. Any other file (an array, a table, a packed file) belongs to one shard. The plan also
contains values that need a look at whole files: their hashes, and the number of lines before each cut.
"""

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pipeline.config.sections import Curate
from pipeline.core.jsonl import dump_line
from pipeline.core.progress import progress
from pipeline.core.publish import need_disk
from pipeline.core.special_files import need_plain_files, unreadable
from pipeline.intake.files.containers import is_cut_anywhere, raw_lines
from pipeline.intake.files.contents import Part
from pipeline.intake.files.files import document_style, files_below, opened, raw_files, refusal, size
from pipeline.stages.curate.account import CurationStats
from pipeline.stages.curate.clean import Block, Cleaner, file_entry
from pipeline.stages.curate.comparing.decide import FACT, hash_of
from pipeline.stages.curate.inputs import check_globs, cleaner_arguments
from pipeline.stages.curate.phases.work import ROWS, Work, dump, load
from pipeline.stages.curate.spool import Spool, batches
from pipeline.stages.curate.workers import Workers

DISK_FACTOR = 4  # multiple of the raw bytes: clean rows, features, outputs.
BLOCK = 1 << 20  # bytes read at a time
BLOCK_BYTES = 1 << 20  # raw bytes that a worker gets at a time
BLOCK_LINES = 4096  # raw lines that a worker gets at a time
PLAN = "plan.json"
FACTS = "facts"
REJECTS = "rejects.jsonl"
CHANGES = "changes.jsonl"
STATS = "stats.json"


# file names of each shard, and the part of the file (None: the entire file)
Shards = list[list[tuple[str, Part | None]]]


class Cut(NamedTuple):
    """Byte of a file at which a line starts, and the number of lines before it."""

    at: int
    lines: int


@dataclass(frozen=True)
class Plan:
    """The files, and the parts of them that each shard reads."""

    files: dict[str, str]  # name below data/raw → SHA-256, of the files that are read
    refused: dict[str, tuple[str, str]]  # reason and description of the error for each of the other files
    bytes_read: int
    shards: Shards


def raw_folder(root: Path) -> Path:
    """Return data/raw.

    In a sub-project it is a link, and the user's own folder is returned: sentences name that.
    """
    raw = root / "data/raw"
    return raw.resolve() if raw.is_symlink() else raw


def make_plan(root: Path, settings: Curate, work: Work, threads: int = 1) -> Plan:
    """Check the inputs of the stage, and plan its shards.

    Raises `DataError` for bad files, `ConfigError` for a glob that no file matches, `MachineError` if the
    disk is too small.
    """
    need_plain_files(root / "data/raw", root / "data/guard", recorded=(root / ".dvc").is_dir())
    files = raw_files(raw_folder(root), settings.documents)
    for key, globs in (
        ("curate.formats", settings.formats),
        ("curate.documents", settings.documents),
        ("curate.fields", settings.fields),
        ("curate.transform", settings.transform),
        ("curate.source_weights", settings.source_weights),
    ):
        check_globs(key, globs, [name for name, _ in files])
    sizes = {name: size(path) for name, path in files if path.is_file()}
    need_disk(root / "data", DISK_FACTOR * sum(sizes.values()))
    cleaner_arguments(root, settings)
    refused = {}
    for name, path in files:
        why = refusal(path, document_style(name, settings.documents))
        if why:
            refused[name] = why
    paths = {name: path for name, path in files if name not in refused}
    targets = _targets(paths, sizes, settings.max_line_bytes, work.shards)
    with ThreadPoolExecutor(threads) as pool:
        looked = dict(
            zip(paths, pool.map(lambda name: _look(paths[name], targets[name]), paths), strict=True)
        )
    plan = Plan(
        {name: sha256 for name, (sha256, _) in looked.items()},
        {name: (why.code, str(why)) for name, why in refused.items()},
        sum(sizes.values()),
        _shards(sizes, {name: cuts for name, (_, cuts) in looked.items()}, work.shards),
    )
    with work.making("plan") as folder:
        dump(folder / PLAN, plan)
        (folder / REJECTS).write_bytes(
            b"".join(dump_line(file_entry(name, why)) for name, why in refused.items())
        )
    return plan


def read_plan(work: Work) -> Plan:
    """Return the plan that `make_plan` wrote."""
    return load(work.filled("plan") / PLAN, Plan)


def stats_of(work: Work, plan: Plan) -> CurationStats:
    """Return the statistics of all shards together."""
    stats = CurationStats.of(plan.files, plan.refused)
    for folder in work.each("clean"):
        stats.merge(load(folder / STATS, CurationStats))
    return stats


def _targets(
    paths: dict[str, Path], sizes: dict[str, int], max_line_bytes: int, shards: int
) -> dict[str, list[int]]:
    """Return {file: the bytes at which shards are to begin in it}, one for each shard but the first."""
    begins = [0, *accumulate(sizes[name] + 1 for name in paths)]  # + 1 so that an empty file is assigned too.
    even_cuts = [begins[-1] * shard // shards for shard in range(1, shards)]
    targets = {}
    for (name, path), begin, end in zip(paths.items(), begins, begins[1:], strict=False):
        inside = [target - begin for target in even_cuts if begin <= target < end]
        if inside and not is_cut_anywhere(path, name, max_line_bytes):
            inside = [0 if 2 * target < sizes[name] else sizes[name] for target in inside]
        targets[name] = inside
    return targets


def _look(path: Path, targets: Sequence[int]) -> tuple[str, list[Cut]]:
    """Return the file's SHA-256 and the first line that begins at or after each of the ordered `targets`.

    Raises `DataError` for a bad disk.
    """
    digest = hashlib.sha256()
    offset = 0
    lines = 0
    cuts = [Cut(0, 0) for target in targets if not target]
    with opened(path) as file:
        try:
            while block := file.read(BLOCK):
                digest.update(block)
                # A line starts after a newline.
                while len(cuts) < len(targets) and (
                    end := block.find(b"\n", max(targets[len(cuts)] - 1 - offset, 0)) + 1
                ):
                    cuts.append(Cut(offset + end, lines + block.count(b"\n", 0, end)))
                offset += len(block)
                lines += block.count(b"\n") if targets else 0
        except OSError as error:
            unreadable(path, error)
    return digest.hexdigest(), [*cuts, *[Cut(offset, lines)] * (len(targets) - len(cuts))]


def _shards(sizes: dict[str, int], cuts: dict[str, list[Cut]], number: int) -> Shards:
    """Return the parts that each of `number` shards reads, given the cuts of the files."""
    shards: Shards = [[]]
    for name, cuts_inside in cuts.items():
        begin = Cut(0, 0)
        end = sizes[name]
        for cut in cuts_inside:
            if cut.at > begin.at:
                part = None if cut.at == end and not begin.at else Part(begin.at, cut.at, begin.lines)
                shards[-1].append((name, part))
            shards.append([])
            begin = cut
        if begin.at < end or not end:
            shards[-1].append((name, Part(begin.at, end, begin.lines) if begin.at else None))
    return shards if cuts else [[] for _ in range(number)]


def clean(root: Path, settings: Curate, work: Work, plan: Plan, shard: int, pool: Workers) -> None:
    """Read and clean the parts that the plan gives this shard (from 0).

    `pool` has a `Cleaner` in each process.
    """
    paths = dict(files_below(raw_folder(root)))
    parts = plan.shards[shard]
    numbers = {name: number for number, name in enumerate(plan.files)}
    stats = CurationStats.of(plan.files, {})
    bytes_left = {name: part.stop - part.start if part else size(paths[name]) for name, part in parts}

    def stream() -> Iterator[Block]:
        for name, part in parts:
            notes = stats.files[name].notes
            lines = raw_lines(
                paths[name],
                name,
                max_line_bytes=settings.max_line_bytes,
                notes=notes,
                part=part,
                style=document_style(name, settings.documents),
            )
            for batch in batches(lines, lambda line: len(line.raw), BLOCK_BYTES, BLOCK_LINES):
                yield Block(name, paths[name], batch)

    with (
        progress("curate: reading and cleaning", sum(bytes_left.values())) as advance,
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
            stats.add(done)
            number = numbers[done.file]
            rows = [(number, hash_of(domain), *more) for domain, *more in done.facts]
            facts.write(np.array(rows, FACT).data)
            # Bytes; a compressed file yields more than its size.
            step = min(done.size, bytes_left[done.file])
            bytes_left[done.file] -= step
            advance(step)
        advance(sum(bytes_left.values()))
        spool.finish()
        dump(folder / STATS, stats)
