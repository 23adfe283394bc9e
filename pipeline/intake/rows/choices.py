"""The choices of a question in columns of their own.

The names of the columns are a series: `A`, `B`, `C`, or `opa`, `opb`, `opc`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

ENDING = re.compile(r"(?P<stem>.*?)_?(?P<ending>[A-Za-z]|\d+)", re.DOTALL)
FIRST = ("a", "A", "0", "1")  # endings with which a series begins
FEW = 3  # columns of a series, at least
# Beginnings of the names of choices, in small letters. Other columns may be a series too (`tag1`, `tag2`).
STEMS = ("", "op", "opt", "option", "choice", "ending", "answer", "ans", "candidate", "alternative")
KNOWN_ROWS = 1024  # sets of keys whose choices are cached
MOST_CHARACTERS = 1000  # characters of all keys of a row that is searched


def choices_among(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names that are the choices of a question; none if there are too few."""
    return _among(names) if sum(map(len, names)) <= MOST_CHARACTERS else ()


@lru_cache(KNOWN_ROWS)
def _among(names: tuple[str, ...]) -> tuple[str, ...]:
    series = series_in(names)
    return series if _are_choices(series) else ()


def _are_choices(series: Sequence[str]) -> bool:
    """Return True if a series has names of choices. Names of digits only do not count."""
    first = ENDING.fullmatch(series[0]) if series else None
    if first is None or first["stem"].lower().rstrip("_ ") not in STEMS:
        return False
    return bool(first["stem"]) or not first["ending"].isdigit()


def series_in(names: Sequence[str]) -> tuple[str, ...]:
    """Return the first series among the names that has names of choices, otherwise the first of all; none if
    there are too few names.

    The names of a series differ by a letter or a number that increases.
    """
    all_series = list(_all_series(names))
    return next(filter(_are_choices, all_series), all_series[0] if all_series else ())


def _all_series(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the series among names. Leading zeros of a number are ignored (`option_01`)."""
    stems: dict[str, dict[str, str]] = {}
    for name in names:
        match = ENDING.fullmatch(name)
        if match:
            ending = match["ending"].lstrip("0") or "0"
            stems.setdefault(match["stem"], {})[ending] = name
    for endings in stems.values():
        for first in FIRST:
            series = tuple(_counted(endings, first))
            if len(series) >= FEW:
                yield series
                break


def _counted(endings: Mapping[str, str], first: str) -> Iterator[str]:
    """Yield the names with successive endings, beginning with `first`."""
    ending = first
    while ending in endings:
        yield endings[ending]
        ending = str(int(ending) + 1) if ending.isdigit() else chr(ord(ending) + 1)
