"""What only a look at all clean rows tells: what is boilerplate among them, which repeat an earlier one; and
the texts of data/guard.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.config.sections import Curate
from pipeline.stages.curate.comparing.contamination import Documents
from pipeline.stages.curate.comparing.decide import FACT
from pipeline.stages.curate.comparing.duplicates import first_rows
from pipeline.stages.curate.comparing.features import SAMPLE_ROWS, Boilerplate, boilerplate
from pipeline.stages.curate.comparing.sketched import Labels
from pipeline.stages.curate.comparing.spill import Spill
from pipeline.stages.curate.phases.clean import FACTS
from pipeline.stages.curate.phases.work import Work, write
from pipeline.stages.curate.spool import spread_evenly

GUARDED, FIRST = "guarded.json", "first.npy"
COMMON = ("shingles", "grams", "requests", "template")  # arrays of `Boilerplate`


def sample(root: Path, settings: Curate, work: Work) -> None:
    """Find the boilerplate in a sample of all clean rows, exact duplicates, and the guarded texts. Raises
    `DataError` for a file of data/guard that can't be read.
    """
    rows = work.rows()
    with work.making("sample") as folder:
        shown = (rows.row(index) for index in spread_evenly(np.arange(len(rows)), SAMPLE_ROWS))
        common = boilerplate(shown, folder)
        for name in COMMON:
            np.save(folder / f"{name}.npy", getattr(common, name))
        keys, row = Spill(folder), 0
        for shard in work.each("clean"):
            exact = read_facts(shard)["exact"]
            keys.add(exact, np.arange(row, row + len(exact), dtype=np.uint32))
            row += len(exact)
        np.save(folder / FIRST, first_rows(keys, row))
        documents = Documents(folder)
        guarded = {
            name: documents.add_file(root / "data/guard" / name, name, common.grams)
            for name in settings.decontaminate
        }
        documents.finish()
        write(folder / GUARDED, guarded)


def read_facts(folder: Path) -> NDArray:
    """The `FACT`s of a shard's clean rows."""
    return np.fromfile(folder / FACTS, FACT)


def read_boilerplate(folder: Path) -> Boilerplate:
    """What `sample` found."""
    return Boilerplate(**{name: np.load(folder / f"{name}.npy") for name in COMMON})


def read_first(folder: Path) -> Labels:
    """Of every row the first one with the same content."""
    first: Labels = np.load(folder / FIRST)
    return first
