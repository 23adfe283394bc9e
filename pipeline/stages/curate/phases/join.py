"""What rows share, of a range of keys: pairs to unite, requests with several answers, runs of words."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.config.sections import Curate
from pipeline.stages.curate.account import SHOWN
from pipeline.stages.curate.comparing.contamination import DOCUMENTS
from pipeline.stages.curate.comparing.duplicates import Edges, joined
from pipeline.stages.curate.comparing.row_parts import key_of, request_and_answer
from pipeline.stages.curate.comparing.sketched import PRINTS, Sketched
from pipeline.stages.curate.comparing.spill import Keys, Spill, Stored, groups_of, pieces
from pipeline.stages.curate.phases.sample import read_first
from pipeline.stages.curate.phases.work import Work, write
from pipeline.stages.curate.spool import Rows

ANSWERS = "answers.json"
EDGES = ("same.a", "same.b", "related.a", "related.b")  # files of row numbers
READ_EDGES = 1 << 20  # at a time
ANSWERS_COMPARED = 16  # rows of one request


def join(settings: Curate, work: Work, shard: int) -> None:
    """Join the keys of all shards that are this one's (from 0) to join."""
    rows = work.rows()
    sketched, first, mine = (
        Sketched(work.each("sketch"), rows.bases),
        read_first(work.made("sample")),
        work.first_bytes(shard),
    )
    with work.making("join", shard) as folder:
        files = [(folder / name).open("wb") for name in EDGES]
        for same, related in joined(sketched, first, settings.near_threshold, mine):
            for file, column in zip(files, (*same, *related), strict=True):
                file.write(np.ascontiguousarray(column, np.int32).data)
        for file in files:
            file.close()
        count, shown = several_answers(sketched.groups("asking", mine), first, rows, SHOWN)
        write(folder / ANSWERS, {"count": count, "shown": shown})
        # of the fingerprints most are of one row alone, and of no use to anybody
        shared = Spill(folder, PRINTS)
        every = [*sketched.stored(PRINTS), Stored(work.made("sample"), DOCUMENTS)]
        for keys, owners in groups_of(every, 2, mine):
            shared.add(keys, owners)
        shared.finish()


def read_edges(folder: Path) -> Iterator[Edges]:
    """The pairs that `join` found."""
    files = [(folder / name).open("rb") for name in EDGES]
    while len((columns := [np.fromfile(file, np.int32, READ_EDGES) for file in files])[0]) or len(columns[2]):
        yield (columns[0], columns[1]), (columns[2], columns[3])
    for file in files:
        file.close()


def several_answers(
    asking: Iterable[tuple[Keys, NDArray[np.uint32]]], first: NDArray[np.int32], rows: Rows, most: int
) -> tuple[int, list[list[int]]]:
    """How many requests have different answers, and the rows of the first `most` of them, one for each
    answer. `asking` has the rows that make the same request, `first` of every row the first with its content.
    """
    count, shown = 0, list[list[int]]()
    for keys, asked in asking:
        for own in pieces(first[asked], keys):
            different = np.unique(own)
            if len(different) == 1:  # exact duplicates of each other: nothing has to be read
                continue
            answers = {
                key_of([request_and_answer(rows.row(row))[1]]): row
                for row in different[:ANSWERS_COMPARED].tolist()
            }
            if len(answers) > 1:
                count += 1
                shown.append(sorted(answers.values()))
        shown = sorted(shown)[:most]
    return count, shown
