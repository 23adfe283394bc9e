"""The choices of a question in columns of their own, by names that count on: `A`, `B`, `C`, or `opa`, `opb`,
`opc`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

ENDING = re.compile(r"(?P<stem>.*?)_?(?P<ending>[A-Za-z]|\d+)", re.DOTALL)
FIRST = ("a", "A", "0", "1")  # endings with which a series begins
FEW = 3  # columns of a series, at least
# what the names of choices begin with, in small letters; other columns may count on too (`tag1`, `tag2`)
STEMS = ("", "op", "opt", "option", "choice", "ending", "answer", "ans", "candidate", "alternative")
# sets of keys of which the choices are remembered, and characters of the keys of a row that is looked at
KNOWN_ROWS, MOST_CHARACTERS = 1024, 1000


def choices_among(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names that are those of a question's choices; none if there are too few."""
    return _among(names) if sum(map(len, names)) <= MOST_CHARACTERS else ()


@lru_cache(KNOWN_ROWS)
def _among(names: tuple[str, ...]) -> tuple[str, ...]:
    series = series_in(names)
    if not series:
        return ()
    first = ENDING.fullmatch(series[0])
    is_one = first is not None and first["stem"].lower().rstrip("_ ") in STEMS
    is_number = first is not None and not first["stem"] and first["ending"].isdigit()
    return series if is_one and not is_number else ()


def series_in(names: Sequence[str]) -> tuple[str, ...]:
    """Return the first names that differ by a letter or a number that counts on; none if they are few."""
    stems: dict[str, dict[str, str]] = {}
    for name in names:
        found = ENDING.fullmatch(name)
        if found:
            stems.setdefault(found["stem"], {})[found["ending"]] = name
    for endings in stems.values():
        for first in FIRST:
            series = list(_counted(endings, first))
            if len(series) >= FEW:
                return tuple(series)
    return ()


def _counted(endings: Mapping[str, str], first: str) -> Iterator[str]:
    """Yield the names with the endings from `first` on."""
    ending = first
    while ending in endings:
        yield endings[ending]
        ending = str(int(ending) + 1) if ending.isdigit() else chr(ord(ending) + 1)
