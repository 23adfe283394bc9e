"""The files that are read, and the reading and cleaning of each of their lines."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.config.sections import Curate
from pipeline.core.jsonl import BadLine, dump_line
from pipeline.core.progress import progress
from pipeline.core.publish import need_disk
from pipeline.core.special_files import need_plain_files, unreadable
from pipeline.intake.files.containers import raw_lines
from pipeline.intake.files.files import document_style, files_below, opened, raw_files, refusal, size
from pipeline.stages.curate.account import CurationStats
from pipeline.stages.curate.clean import Block, Cleaner, file_entry
from pipeline.stages.curate.comparing.decide import FACT, hash_of
from pipeline.stages.curate.inputs import check_globs, cleaner_arguments
from pipeline.stages.curate.spool import Rows, Spool, batches
from pipeline.stages.curate.workers import Workers

DISK_FACTOR = 4  # multiple of the raw bytes: clean rows, features, outputs.
BLOCK_BYTES = 1 << 20  # raw bytes that a worker gets at a time
BLOCK_LINES = 4096  # raw lines that a worker gets at a time
CLEANED = "cleaned"  # the folder of this phase, with these files
ROWS = "rows.jsonl"
FACTS = "facts"
REJECTS = "rejects.jsonl"
CHANGES = "changes.jsonl"


@dataclass(frozen=True)
class Plan:
    """The files in data/raw, by their names: the SHA-256 of those that are read, and why each of the others
    is not; the bytes of all.
    """

    files: dict[str, str]
    refused: dict[str, BadLine]
    bytes_read: int


def raw_folder(root: Path) -> Path:
    """Return data/raw.

    In a sub-project it is a link, and the user's own folder is returned: sentences name that.
    """
    raw = root / "data/raw"
    return raw.resolve() if raw.is_symlink() else raw


def make_plan(root: Path, settings: Curate) -> Plan:
    """Check the inputs of the stage, and return the files to read.

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
    bytes_read = sum(size(path) for _, path in files if path.is_file())
    need_disk(root / "data", DISK_FACTOR * bytes_read)
    cleaner_arguments(root, settings)
    refused = {}
    for name, path in files:
        why = refusal(path, document_style(name, settings.documents))
        if why:
            refused[name] = why
    read = {name: _sha256(path) for name, path in files if name not in refused}
    return Plan(read, refused, bytes_read)


def _sha256(path: Path) -> str:
    """Return the file's SHA-256. Raises `DataError` for a bad disk."""
    with opened(path) as file:
        try:
            return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            unreadable(path, error)


def clean(root: Path, settings: Curate, work: Path, plan: Plan, pool: Workers) -> CurationStats:
    """Read and clean every row, and return the statistics. `pool` has a `Cleaner` in each process."""
    folder = work / CLEANED
    folder.mkdir()
    paths = dict(files_below(raw_folder(root)))
    numbers = {name: number for number, name in enumerate(plan.files)}
    stats = CurationStats.of(plan.files, plan.refused)
    bytes_left = {name: size(paths[name]) for name in plan.files}

    def stream() -> Iterator[Block]:
        for name in plan.files:
            lines = raw_lines(
                paths[name],
                name,
                max_line_bytes=settings.max_line_bytes,
                notes=stats.files[name].notes,
                style=document_style(name, settings.documents),
            )
            for batch in batches(lines, lambda line: len(line.raw), BLOCK_BYTES, BLOCK_LINES):
                yield Block(name, paths[name], batch)

    with (
        progress("curate: reading and cleaning", sum(bytes_left.values())) as advance,
        (folder / REJECTS).open("wb", buffering=1 << 20) as rejects,
        (folder / CHANGES).open("wb", buffering=1 << 20) as changes,
        (folder / FACTS).open("wb") as facts,
    ):
        rejects.writelines(dump_line(file_entry(name, why)) for name, why in plan.refused.items())
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
    return stats


def clean_rows(work: Path) -> Rows:
    """Return the rows that `clean` wrote."""
    return Rows([work / CLEANED / ROWS])


def clean_facts(work: Path) -> NDArray:
    """Return the `FACT` of each clean row."""
    return np.fromfile(work / CLEANED / FACTS, FACT)
