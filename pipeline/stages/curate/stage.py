"""Turn whatever lies in data/raw into a clean, deduplicated, leak-free, redacted training set, and account
for every line.

Reads `data/raw/**`, `data/guard/**` (names to redact, texts to keep out of training), `models/base.json` and
`models/base/` (the tokenizer's control tokens, the template). Writes `data/final/{train,val,test}.jsonl`,
`data/rejects.jsonl`, `data/changes.jsonl`, `data/clusters.jsonl`, `reports/data.json` and
`reports/data.html`.

    python -m pipeline curate
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from pipeline.config.methods import kinds_sentences
from pipeline.config.params import Params
from pipeline.config.sections import Curate
from pipeline.core.hardware import usable_cores
from pipeline.core.jsonl import dump_line
from pipeline.core.progress import progress
from pipeline.core.publish import need_disk, publishing, scratch_folder, write_json, write_text
from pipeline.core.special_files import need_plain_files
from pipeline.core.wording import pairs_sentence, plural
from pipeline.stages.curate.checks import check_not_empty, check_stats
from pipeline.stages.curate.clean import Block, Cleaner, blocks
from pipeline.stages.curate.comparing.splits import SPLITS
from pipeline.stages.curate.inputs import check_globs, cleaner_arguments
from pipeline.stages.curate.page import render_data_page
from pipeline.stages.curate.reading.containers import READ, raw_files, raw_lines, refusal, sha256, size
from pipeline.stages.curate.selection import select_and_write
from pipeline.stages.curate.spool import Spool
from pipeline.stages.curate.stats import CurationStats
from pipeline.stages.curate.workers import Workers, workers

BLOCK_BYTES = 1 << 20  # raw bytes that a worker gets at a time
ALONE_BYTES = 2 << 20  # below that, starting workers takes longer than the work
DISK_FACTOR = 4  # of the raw bytes: clean rows, features, outputs
FILES_NAMED = 5  # of those that are not read, on the terminal


def curate(root: Path, settings: Curate, processes: int | None = None) -> dict[str, Any]:
    """Run the stage below `root`, publish its outputs, and give the statistics (what `reports/data.json`
    holds).

    Streams: memory grows by some 60 bytes a row. `processes`: workers, by default one a core; the outputs are
    the same bytes
    with any number. Raises `DataError` if no row can be used or a wanted split is empty, `ConfigError` for a
    glob that no file matches; then nothing is published.
    """
    data = root / "data"
    raw = data / "raw"
    if raw.is_symlink():  # a sub-project's: sentences name the user's own folder
        raw = raw.resolve()
    need_plain_files(data / "raw", data / "guard", recorded=(root / ".dvc").is_dir())
    files = raw_files(raw)
    for key, globs in (
        ("curate.formats", settings.formats),
        ("curate.source_weights", settings.source_weights),
    ):
        check_globs(key, globs, [name for name, _ in files])
    total_bytes = sum(size(path) for _, path in files if path.is_file())
    need_disk(data, DISK_FACTOR * total_bytes)
    arguments = cleaner_arguments(root, settings)
    with ExitStack() as stack:
        final, *lists = (
            stack.enter_context(publishing(data / name))
            for name in ("final", "rejects.jsonl", "changes.jsonl", "clusters.jsonl")
        )
        final.mkdir()
        work = stack.enter_context(scratch_folder(data / ".curating"))
        pool = stack.enter_context(
            workers(
                processes or (usable_cores() if total_bytes > ALONE_BYTES else 1) or 1, Cleaner, *arguments
            )
        )
        with (
            lists[0].open("wb", buffering=1 << 20) as rejects,
            lists[1].open("wb", buffering=1 << 20) as changes,
        ):
            spool, stats = Spool(work / "rows.jsonl"), CurationStats()
            with progress("curate: reading and cleaning", total_bytes) as advance:
                read_and_clean(files, settings, pool, stats, spool, rejects, changes, advance)
            counts, samples = select_and_write(
                root, settings, pool, stats, spool, work, final, rejects, lists[2]
            )
        check_stats(counts, final, lists[0])
        check_not_empty(counts, stats.samples, raw, settings)
        page = render_data_page(counts, samples)
    write_json(root / "reports/data.json", counts)
    write_text(root / "reports/data.html", page)
    return counts


def read_and_clean(
    files: Sequence[tuple[str, Path]],
    settings: Curate,
    pool: Workers,
    stats: CurationStats,
    spool: Spool,
    rejects: IO[bytes],
    changes: IO[bytes],
    advance: Callable[[int], None],
) -> None:
    """Every line of every file: clean rows to the spool, the others to `rejects`, and what the rules changed
    to `changes`.
    """
    stats.files_found = len(files)
    refused = {name: why for name, path in files if (why := refusal(path))}
    for name, why in refused.items():
        rejects.write(dump_line(stats.refuse(name, why)))
    readable = [(name, path) for name, path in files if name not in refused]

    def stream() -> Iterator[Block]:
        for name, path in readable:
            notes = stats.open_file(name, sha256(path))
            yield from blocks(
                name, raw_lines(path, name, max_line_bytes=settings.max_line_bytes, notes=notes), BLOCK_BYTES
            )

    left = {name: size(path) for name, path in readable}  # bytes; a packed file has more when it is read
    for done in pool.map(Cleaner.block, stream()):
        spool.append(done.rows)
        rejects.writelines(done.rejects)
        changes.writelines(done.changes)
        stats.add(done)
        step = min(done.size, left[done.file])
        left[done.file] -= step
        advance(step)
    advance(sum(left.values()))
    spool.finish()


def file_sentences(counts: dict[str, Any]) -> list[str]:
    """The files that were not read and those without a row, a sentence each that names the first ones."""
    unread, empty = (
        [*counts["files_unread"]],
        [name for name, file in counts["files"].items() if not file["rows"]],
    )
    found = []
    if unread:
        found.append(
            f"{plural(counts['files_found'], 'file')}, of which {plural(len(unread), 'was', 'were')} not "
            f"read: {_first(unread)} (only {READ} are)"
        )
    if empty:
        found.append(f"{plural(len(empty), 'file holds', 'files hold')} no row: {_first(empty)}")
    return found


def _first(names: list[str]) -> str:
    return ", ".join(names[:FILES_NAMED]) + (", …" if len(names) > FILES_NAMED else "")


def main(params: Params, root: Path) -> None:
    """Run the stage on the data below `root` and say what became of the rows."""
    counts = curate(root, params.curate)
    splits = ", ".join(f"{split} {counts['splits'][split]}" for split in SPLITS)
    lost = counts["rows_rejected"] + counts["rows_dropped"]
    parts = f", {counts['parts_added']:,} more by splitting" if counts["parts_added"] else ""
    print(
        f"curate: {plural(counts['rows_read'], 'row')} read{parts}, {counts['rows_kept']:,} kept "
        f"({splits}), {lost:,} rejected"
    )
    paired = [pairs_sentence(counts["pairs"])] if "pairs" in counts else []
    told = [*file_sentences(counts), *kinds_sentences(counts["untrained"], counts["scored"]), *paired]
    for sentence in told:
        print(f"curate: {sentence}")
    if lost or counts["files_rejected"]:
        print(f"curate: why, and where: {root / 'data/rejects.jsonl'} (reasons in docs/data-formats.md)")
    print(f"curate: the full statistics: {root / 'reports/data.html'}")
