"""Each line of a shard, read and cleaned: rows and what is known of them, rejects, changes."""

from collections.abc import Iterator
from pathlib import Path

from pipeline.config.sections import Curate
from pipeline.core.progress import progress
from pipeline.stages.curate.account import CurationStats
from pipeline.stages.curate.clean import Block, Cleaner, blocks
from pipeline.stages.curate.phases.plan import Plan, raw_folder
from pipeline.stages.curate.phases.work import ROWS, Work, write
from pipeline.stages.curate.reading.containers import raw_lines
from pipeline.stages.curate.reading.files import files_below, size
from pipeline.stages.curate.spool import Spool
from pipeline.stages.curate.workers import Workers

BLOCK_BYTES = 1 << 20  # raw bytes that a worker gets at a time
FACTS, REJECTS, CHANGES, STATS = "facts", "rejects.jsonl", "changes.jsonl", "stats.json"


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
        write(folder / STATS, stats.as_json())
