"""What the clean rows of a shard are compared by, on disk."""

from functools import partial
from pathlib import Path
from typing import Any

from pipeline.config.sections import Curate
from pipeline.core.progress import progress
from pipeline.stages.curate.comparing.features import Features, features
from pipeline.stages.curate.comparing.sketched import Sketches
from pipeline.stages.curate.phases.sample import read_boilerplate
from pipeline.stages.curate.phases.work import Work
from pipeline.stages.curate.spool import read_rows_at
from pipeline.stages.curate.workers import Workers


def sketch(settings: Curate, work: Work, shard: int, pool: Workers) -> None:
    """Have the workers compute the features of this shard's rows (from 0)."""
    rows = work.rows()
    first, last = rows.bases[shard : shard + 2]
    features = partial(
        part_features,
        path=rows.spools[shard],
        boilerplate=read_boilerplate(work.made("sample")),
        threshold=settings.near_threshold,
        guarded=bool(settings.decontaminate),
    )
    with progress("curate: comparing", last - first) as advance, work.making("sketch", shard) as folder:
        sketches = Sketches(folder, first)
        for found in pool.map(features, rows.ranges(shard)):
            sketches.add(found)
            advance(len(found.worth))
        sketches.finish()


def part_features(_: Any, part: tuple[int, int], path: Path, **settings: Any) -> Features:
    """The features of one part (offset, size) of the spool at `path` (in a worker)."""
    return features(read_rows_at(path, *part), **settings)
