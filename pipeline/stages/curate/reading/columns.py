"""Tables by columns: a JSON file that is one object of columns. Each column is a list of cells or an object
of cells by their index, as `pandas.DataFrame.to_json` and `dict(dataset)` write them.

There is more than one column, or the name of the only one is a key of some format.
"""

from collections.abc import Iterable
from typing import Any

import orjson

from pipeline.core.jsonl import BadLine, parse_line
from pipeline.stages.curate.reading.formats import LIST_KEYS, TURN_KEYS
from pipeline.stages.curate.reading.letter_case import KNOWN, known_names

# In a row the values of these keys are lists of objects. In a table by columns their cells are such lists.
LISTS = LIST_KEYS | TURN_KEYS


def table_rows(text: bytes) -> list[bytes] | None:
    """Return each row of a table by columns as a JSON object; None if the text is anything else."""
    try:
        columns = _columns(parse_line(text))
    except BadLine:  # The error occurs again, and is reported, when the text is read as a row.
        return None
    if columns is None:
        return None
    cells = zip(*columns.values(), strict=True)
    return [orjson.dumps(dict(zip(columns, row, strict=True))) for row in cells]


def _columns(value: dict[str, Any]) -> dict[str, list[Any]] | None:
    """Return the cells of each column, if all columns have cells at the same indices; None otherwise."""
    names = known_names(list(value))
    if KNOWN.isdisjoint(names) and len(names) == 1:
        return None
    places = {tuple(_places(column)) for column in value.values()}
    if len(places) != 1 or not all(places):
        return None
    columns = {
        name: list(column.values()) if isinstance(column, dict) else column
        for name, column in zip(names, value.values(), strict=True)
    }
    in_objects = {name for name, cells in columns.items() if dict in map(type, cells)}
    is_row = in_objects == columns.keys() or not LISTS.isdisjoint(in_objects)
    return None if is_row else columns


def _places(column: Any) -> Iterable[str]:
    """Return each cell's index; nothing if the column is no list and no object with numbers as keys."""
    if isinstance(column, list):
        return map(str, range(len(column)))
    if isinstance(column, dict) and all(map(str.isdigit, column)):
        return column
    return ()
