"""What is read of the rows themselves while they are compared: their features, answers to one request,
leaks.
"""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.stages.curate.comparing.contamination import Leak
from pipeline.stages.curate.comparing.features import Features, features
from pipeline.stages.curate.comparing.row_parts import key_of, request_and_answer
from pipeline.stages.curate.comparing.spill import Keys, pieces
from pipeline.stages.curate.spool import Rows, read_rows_at

ANSWERS_COMPARED = 16  # rows of one request
EXCERPT = 300  # characters of a shared span that the statistics show


def part_features(_: Any, part: tuple[int, int], path: Path, **settings: Any) -> Features:
    """The features of one part (offset, size) of the spool at `path` (in a worker)."""
    return features(read_rows_at(path, *part), **settings)


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


def describe(leak: Leak, rows: Rows, ngram: int) -> dict[str, Any]:
    """What the rejects say of a leak: `detail` and `spans`."""
    where = f"{leak.file} line {leak.line}" if leak.other is None else f"test row {rows.source(leak.other)}"
    return {
        "detail": f"shares a run of {ngram} words or more with {where}",
        "spans": [
            asdict(span) | {"text": span.text[:EXCERPT] + ("…" if len(span.text) > EXCERPT else "")}
            for span in leak.spans
        ],
    }
