"""Features that the clean rows have in common. From a sample of all rows: boilerplate, exact duplicates and
guarded texts. From a shard: its rows' features. From a range of keys: pairs to unite and shared runs of
words.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.config.sections import Curate
from pipeline.core.progress import progress
from pipeline.stages.curate.comparing.contamination import DOCUMENTS, write_documents
from pipeline.stages.curate.comparing.decide import FACT
from pipeline.stages.curate.comparing.duplicates import Edges, first_rows, joined
from pipeline.stages.curate.comparing.features import (
    SAMPLE_ROWS,
    Boilerplate,
    Features,
    boilerplate,
    features,
)
from pipeline.stages.curate.comparing.row_parts import key_of, request_and_answer
from pipeline.stages.curate.comparing.sketched import PRINTS, Sketched, Sketches
from pipeline.stages.curate.comparing.spill import Keys, Spill, groups_of, pieces
from pipeline.stages.curate.phases.cleaning import FACTS
from pipeline.stages.curate.phases.mappings import check_fields
from pipeline.stages.curate.phases.unreadable import check_files
from pipeline.stages.curate.phases.work import Work, dump
from pipeline.stages.curate.samples import SHOWN
from pipeline.stages.curate.spool import Rows, read_rows_at, spread_evenly
from pipeline.stages.curate.workers import Workers

GUARDED = "guarded.json"
BOILERPLATE = "boilerplate.npz"
FIRST = "first.npy"  # first row with the same content, for every row
ANSWERS = "answers.json"
EDGES = ("same.a", "same.b", "related.a", "related.b")  # files of row numbers
READ_EDGES = 1 << 20  # edges read at a time
ANSWERS_COMPARED = 16  # rows of one request


class Answers(NamedTuple):
    """Number of requests with different answers, and the rows of the first few, one for each answer."""

    requests: int
    shown: list[list[int]]


def sample(root: Path, settings: Curate, work: Work) -> None:
    """Find the boilerplate in a sample of all rows, exact duplicates, guarded texts.

    Raises `DataError`, first of all for a file of which no row can be read, and `ConfigError` for a mapping
    that fits no row.
    """
    check_fields(root, settings, work)
    check_files(root, settings, work)
    rows = work.rows()
    with work.making("sample") as folder:
        shown = (rows.row(index) for index in spread_evenly(np.arange(len(rows)), SAMPLE_ROWS))
        common = boilerplate(shown, folder)
        np.savez(folder / BOILERPLATE, **vars(common))
        keys = Spill(folder, "exact")
        row = 0
        for shard in work.each("clean"):
            exact = read_facts(shard)["exact"]
            keys.add(exact, np.arange(row, row + len(exact), dtype=np.uint32))
            row += len(exact)
        np.save(folder / FIRST, first_rows(keys.finish(), row))
        files = {name: root / "data/guard" / name for name in settings.decontaminate}
        dump(folder / GUARDED, write_documents(folder, files, common.grams))


def read_facts(folder: Path) -> NDArray:
    """Return the `FACT`s of a shard's clean rows."""
    return np.fromfile(folder / FACTS, FACT)


def read_boilerplate(folder: Path) -> Boilerplate:
    """Return the boilerplate that `sample` found."""
    with np.load(folder / BOILERPLATE) as arrays:
        return Boilerplate(**arrays)


def sketch(settings: Curate, work: Work, shard: int, pool: Workers) -> None:
    """Compute the features of this shard's rows (from 0) in the workers."""
    rows = work.rows()
    first, last = rows.bases[shard : shard + 2]
    features = partial(
        part_features,
        path=rows.spools[shard],
        boilerplate=read_boilerplate(work.filled("sample")),
        threshold=settings.near_threshold,
        guarded=bool(settings.decontaminate),
    )
    with progress("curate: comparing", last - first) as advance, work.making("sketch", shard) as folder:
        sketches = Sketches(folder, first)
        for batch in pool.map(features, rows.ranges(shard)):
            sketches.add(batch)
            advance(len(batch.worth))
        sketches.finish()


def part_features(_: Any, part: tuple[int, int], path: Path, **settings: Any) -> Features:
    """Return the features of one part (offset, size) of the spool at `path` (in a worker)."""
    return features(read_rows_at(path, *part), **settings)


def join(settings: Curate, work: Work, shard: int) -> None:
    """Join the keys of all shards that belong to this one (from 0)."""
    rows = work.rows()
    first = np.load(work.filled("sample") / FIRST)
    sketched = Sketched(work.each("sketch"), rows.bases)
    # Keys are divided by their first byte.
    in_shard = range(256 * shard // work.shards, 256 * (shard + 1) // work.shards)
    with work.making("join", shard) as folder:
        files = [(folder / name).open("wb") for name in EDGES]
        for same, related in joined(sketched, first, settings.near_threshold, in_shard):
            for file, column in zip(files, (*same, *related), strict=True):
                file.write(np.ascontiguousarray(column, np.int32).data)
        for file in files:
            file.close()
        dump(folder / ANSWERS, several_answers(sketched.groups("asking", in_shard), first, rows))
        # Most fingerprints belong to only one row, and are of no use.
        shared = Spill(folder, PRINTS)
        print_spills = [*sketched.stored(PRINTS), Spill(work.filled("sample"), DOCUMENTS)]
        for keys, owners in groups_of(print_spills, 2, in_shard):
            shared.add(keys, owners)
        shared.finish()


def read_edges(folder: Path) -> Iterator[Edges]:
    """Yield the pairs that `join` found."""
    files = [(folder / name).open("rb") for name in EDGES]
    while True:
        columns = [np.fromfile(file, np.int32, READ_EDGES) for file in files]
        if not len(columns[0]) and not len(columns[2]):
            break
        yield (columns[0], columns[1]), (columns[2], columns[3])
    for file in files:
        file.close()


def several_answers(
    asking: Iterable[tuple[Keys, NDArray[np.uint32]]], first: NDArray[np.int32], rows: Rows
) -> Answers:
    """Return the requests with different answers, and the rows of the first `SHOWN`.

    `asking` has the rows that make the same request, `first` the first row with the same content for every
    row.
    """
    count = 0
    shown = list[list[int]]()
    for keys, request_rows in asking:
        for group in pieces(first[request_rows], keys):
            different = np.unique(group)
            if len(different) == 1:  # Exact duplicates of each other; nothing has to be read.
                continue
            answers = {
                key_of([request_and_answer(rows.row(row))[1]]): row
                for row in different[:ANSWERS_COMPARED].tolist()
            }
            if len(answers) > 1:
                count += 1
                shown.append(sorted(answers.values()))
        shown = sorted(shown)[:SHOWN]
    return Answers(count, shown)
