"""Columns that belong together, found by names that count up: the choices of a question (`opa`, `opb` …), and
turns that are objects below numbered keys (`turn_1`, `turn_2` …). A mapping of one of them would lose the
others.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pipeline.commands.data.columns import Column
from pipeline.intake.rows.choices import series_in

Rows = Sequence[Mapping[str, Any]]
LABELS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
MOST_CHOICES = 10
SHOWN = 3  # names of a series that are shown


class Choices(NamedTuple):
    """Columns of a question's choices, the column with the right one, and the labels of the choices as that
    column writes them.
    """

    keys: tuple[str, ...]
    answer: str
    labels: tuple[str, ...]


def choices_of(rows: Rows, columns: Sequence[Column]) -> Choices | None:
    """Return the choices in the rows and the only column that names the right one in every row. Returns None
    if there is no such column, or if it may count from 0 or from 1.
    """
    keys = _texts_in_series(columns)
    if not keys or len(keys) > MOST_CHOICES:
        return None
    choices = []
    for column in columns:
        values = [row[column.path] for row in rows if row.get(column.path) is not None]
        if column.path in keys or not values:
            continue
        labels = _labels(values, keys) or _quoted(column.path, rows, keys)
        if labels:
            choices.append(Choices(keys, column.path, labels))
    return choices[0] if len(choices) == 1 else None


def _texts_in_series(columns: Sequence[Column]) -> tuple[str, ...]:
    return series_in([column.path for column in columns if column.texts and not column.lists])


def _labels(values: Sequence[Any], keys: Sequence[str]) -> tuple[str, ...]:
    """Return the choices' labels as the values write them, if these are letters or numbers of choices."""
    if any(isinstance(value, bool) or not isinstance(value, str | int) for value in values):
        return ()
    stated = {str(value).strip() for value in values}
    count = len(keys)
    for letters in (LABELS[:count], LABELS[:count].lower()):
        if stated <= set(letters):
            return tuple(letters)
    from_0 = [str(number) for number in range(count)]
    from_1 = [str(number) for number in range(1, count + 1)]
    if "0" in stated and stated <= set(from_0):
        return tuple(from_0)
    if str(count) in stated and stated <= set(from_1):
        return tuple(from_1)
    return ()


def _quoted(path: str, rows: Rows, keys: Sequence[str]) -> tuple[str, ...]:
    """Return letters for the choices if the column repeats the right choice literally."""
    for row in rows:
        if row.get(path) not in [row.get(key) for key in keys]:
            return ()
    return tuple(LABELS[: len(keys)])


def doubt(rows: Rows, columns: Sequence[Column]) -> str:
    """Return the reason why no mapping is guessed for rows with columns in a series.

    Returns "" if there are none.
    """
    for above, names in _objects_in_series(rows):
        where = f"{above} has" if above else "they have"
        return (
            f"{where} {_shown(names)}, and no mapping makes a list of numbered keys: write a list of turns, "
            "or use curate.transform"
        )
    keys = _texts_in_series(columns)
    if keys and choices_of(rows, columns) is None:
        return (
            f"{_shown(keys)} may be choices, and it is not sure which key names the right one: map them in "
            "curate.fields"
        )
    return ""


def _objects_in_series(rows: Rows) -> Iterator[tuple[str, list[str]]]:
    """Yield each key ("" for the row) with objects below numbered keys, and these keys."""
    names_by_key: dict[str, dict[str, None]] = {}
    for row in rows:
        for above, value in [("", row), *row.items()]:
            if isinstance(value, dict):
                names_by_key.setdefault(above, {}).update(dict.fromkeys(_numbered_objects(value)))
    for above, names in names_by_key.items():
        if len(names) > 1 or (names and above):
            yield above, list(names)


def _numbered_objects(value: Mapping[str, Any]) -> list[str]:
    return [key for key, item in value.items() if isinstance(item, dict) and key[-1:].isdigit()]


def _shown(names: Sequence[str]) -> str:
    more = " …" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
