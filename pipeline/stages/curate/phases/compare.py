"""Features that the clean rows have in common: boilerplate, exact duplicates and guarded texts, then runs of
words that rows share, and requests with several answers.
"""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.config.sections import Curate
from pipeline.core.progress import progress
from pipeline.stages.curate.comparing.contamination import DOCUMENTS, write_documents
from pipeline.stages.curate.comparing.duplicates import first_rows
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
from pipeline.stages.curate.phases.cleaning import clean_facts, clean_rows
from pipeline.stages.curate.samples import SHOWN
from pipeline.stages.curate.spool import Rows, read_rows_at, spread_evenly
from pipeline.stages.curate.workers import Workers

# The folders of these phases.
SAMPLED = "sampled"
SKETCHED = "sketched"
JOINED = "joined"
ANSWERS_COMPARED = 16  # rows of one request


class Sample(NamedTuple):
    """The boilerplate in a sample of all rows, the first row with the same content for every row, and the
    number of texts in each file of data/guard that training must not share words with.
    """

    boilerplate: Boilerplate
    first: NDArray[np.int32]
    guarded: dict[str, int]


class Answers(NamedTuple):
    """Number of requests with different answers, and the rows of the first few, one for each answer."""

    requests: int
    shown: list[list[int]]


def sample(root: Path, settings: Curate, work: Path) -> Sample:
    """Find the boilerplate in a sample of all rows, exact duplicates, guarded texts."""
    folder = work / SAMPLED
    folder.mkdir()
    rows = clean_rows(work)
    shown = (rows.row(index) for index in spread_evenly(np.arange(len(rows)), SAMPLE_ROWS))
    common = boilerplate(shown, folder)
    keys = Spill(folder, "exact")
    keys.add(clean_facts(work)["exact"], np.arange(len(rows), dtype=np.uint32))
    first = first_rows(keys.finish(), len(rows))
    files = {name: root / "data/guard" / name for name in settings.decontaminate}
    return Sample(common, first, write_documents(folder, files, common.grams))


def sketch(settings: Curate, work: Path, sampled: Sample, pool: Workers) -> None:
    """Compute the features of all rows in the workers."""
    folder = work / SKETCHED
    folder.mkdir()
    rows = clean_rows(work)
    [path] = rows.spools
    features = partial(
        part_features,
        path=path,
        boilerplate=sampled.boilerplate,
        threshold=settings.near_threshold,
        guarded=bool(settings.decontaminate),
    )
    with progress("curate: comparing", len(rows)) as advance:
        sketches = Sketches(folder)
        for batch in pool.map(features, rows.ranges()):
            sketches.add(batch)
            advance(len(batch.worth))
        sketches.finish()


def part_features(_: Any, part: tuple[int, int], path: Path, **settings: Any) -> Features:
    """Return the features of one part (offset, size) of the spool at `path` (in a worker)."""
    return features(read_rows_at(path, *part), **settings)


def join(work: Path, sampled: Sample) -> Answers:
    """Write the fingerprints that rows share, and return the requests with several answers."""
    folder = work / JOINED
    folder.mkdir()
    sketched = read_sketched(work)
    # Most fingerprints belong to only one row, and are of no use.
    shared = Spill(folder, PRINTS)
    for keys, owners in groups_of([sketched.stored(PRINTS), Spill(work / SAMPLED, DOCUMENTS)]):
        shared.add(keys, owners)
    shared.finish()
    return several_answers(sketched.groups("asking"), sampled.first, clean_rows(work))


def read_sketched(work: Path) -> Sketched:
    """Return the features that `sketch` wrote."""
    return Sketched(work / SKETCHED, len(clean_rows(work)))


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
