"""Compares the clean rows with each other and with the user's guarded texts: features in workers, decisions
here.
"""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.config.sections import Curate
from pipeline.stages.curate.comparing.contamination import Leak, Overlaps
from pipeline.stages.curate.comparing.duplicates import Clusters, Index
from pipeline.stages.curate.comparing.features import SAMPLE_ROWS, Features, boilerplate, features
from pipeline.stages.curate.comparing.poison import request_and_answer
from pipeline.stages.curate.comparing.row_parts import key_of
from pipeline.stages.curate.comparing.spill import pieces
from pipeline.stages.curate.spool import Spool, read_rows_at, spread_evenly
from pipeline.stages.curate.workers import Workers

ANSWERS_COMPARED = 16  # rows of one request
EXCERPT = 300  # characters of a shared span that the statistics show


def part_features(_: Any, part: tuple[int, int], path: Path, **settings: Any) -> Features:
    """The features of one part (offset, size) of the spool at `path` (in a worker)."""
    return features(read_rows_at(path, *part), **settings)


class Comparison:
    """The features of all rows of a spool, on disk below `folder`."""

    def __init__(self, spool: Spool, settings: Curate, folder: Path) -> None:
        self.spool, self.settings = spool, settings
        sample = (spool.row(index) for index in spread_evenly(np.arange(len(spool)), SAMPLE_ROWS))
        self.boilerplate = boilerplate(sample, folder, ngram=settings.ngram)
        self.index = Index(folder, settings.near_threshold)
        self.overlaps = Overlaps(folder, settings.ngram, self.boilerplate.grams)

    def read(self, pool: Workers, advance: Callable[[int], None]) -> None:
        """Have the workers compute every row's features; `advance` gets the number of rows."""
        work = partial(
            part_features,
            path=self.spool.path,
            boilerplate=self.boilerplate,
            threshold=self.settings.near_threshold,
            ngram=self.settings.ngram,
            guarded=bool(self.settings.decontaminate),
        )
        for found in pool.map(work, self.spool.ranges()):
            self.index.add(found)
            self.overlaps.add(found.fingerprints, len(found.exact))
            advance(len(found.exact))

    def guard(self, folder: Path) -> dict[str, int]:
        """Add the files that training must not overlap with; how many texts of each are long enough to be
        found.
        """
        return {name: self.overlaps.add_file(folder / name, name) for name in self.settings.decontaminate}

    def several_answers(self, clusters: Clusters, most: int) -> tuple[int, list[list[int]]]:
        """How many requests have different answers, and the rows of the first `most` of them, one for each
        answer.
        """
        count, shown = 0, list[list[int]]()
        for keys, rows in self.index.asking.groups():
            for own in pieces(clusters.first[rows], keys):
                different = np.unique(own)
                if len(different) == 1:  # exact duplicates of each other: nothing has to be read
                    continue
                answers = {
                    key_of([request_and_answer(self.spool.row(row))[1]]): row
                    for row in different[:ANSWERS_COMPARED].tolist()
                }
                if len(answers) > 1:
                    count += 1
                    shown.append(sorted(answers.values()))
            shown = sorted(shown)[:most]
        return count, shown

    def describe(self, leak: Leak) -> dict[str, Any]:
        """What the rejects say of a leak: `detail` and `spans`."""
        where = (
            f"{leak.file} line {leak.line}"
            if leak.other is None
            else f"test row {self.spool.source(leak.other)}"
        )
        return {
            "detail": f"shares a run of {self.settings.ngram} words or more with {where}",
            "spans": [
                asdict(span) | {"text": span.text[:EXCERPT] + ("…" if len(span.text) > EXCERPT else "")}
                for span in leak.spans
            ],
        }
