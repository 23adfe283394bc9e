"""Places of rows in data/raw, as sentences name them: the lines of the first few rows, and how many more."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from pipeline.core.text import listed

NAMED = 5  # rows whose places a sentence names
MOST = 100  # rows whose places are kept
TABLES = frozenset((".csv", ".tsv", ".xlsx"))


def has_records(name: str) -> bool:
    """Return True for a table: names stand above its records, and a cell may have several lines."""
    return not TABLES.isdisjoint(suffix.lower() for suffix in Path(name).suffixes)


def places(first: Sequence[str], rows: int, *, with_files: bool = True) -> str:
    """Return the places of the first rows (FILE:LINE each), and the number of the others among `rows`:
    a.jsonl lines 2, 7 and 4 more. A sentence on one file, which names it already, is `with_files=False`.
    """
    first = first[:NAMED]
    shown = list[str]()
    for file, sources in groupby(first, key=lambda source: source.rpartition(":")[0]):
        numbers = [source.rpartition(":")[2] for source in sources]
        unit = "record" if has_records(file) else "line"
        units = unit if len(numbers) == 1 else f"{unit}s"
        numbers[0] = f"{file} {units} {numbers[0]}" if with_files else f"{units} {numbers[0]}"
        shown += numbers
    if rows > len(first):
        shown.append(f"{rows - len(first):,} more")
    return listed(shown)
