"""JSON files that are one object and hold several rows.

In a table by columns each column is a list of cells or an object of cells by their index, as
`pandas.DataFrame.to_json` and `dict(dataset)` write them; there is more than one, or the name of the only one
is a key of some format. In a file of rows by their ids all values are rows with the same keys, or lists of
turns.
"""

import re
from collections.abc import Iterable
from typing import Any

import orjson

from pipeline.core.jsonl import BadLine, parse_line
from pipeline.intake.exports.textgen import is_history
from pipeline.intake.exports.view import View
from pipeline.intake.rows.formats import FORMAT_KEYS, LIST_KEYS, TURN_KEYS, group_of
from pipeline.intake.rows.letter_case import KNOWN, known_names

# In a row the values of these keys are lists of objects. In a table by columns their cells are such lists.
LISTS = LIST_KEYS | TURN_KEYS


def table_rows(text: bytes) -> list[bytes] | None:
    """Return each row of a table by columns, or of rows by their ids, as a JSON object; None if the text is
    anything else.
    """
    try:
        value = parse_line(text)
    except BadLine:  # The error occurs again, and is reported, when the text is read as a row.
        return None
    if _are_rows_by_id(value):
        return [orjson.dumps(row if isinstance(row, dict) else {"messages": row}) for row in value.values()]
    columns = None if is_history(View(value)) else _columns(value)
    if columns is None:
        return None
    cells = zip(*columns.values(), strict=True)
    return [orjson.dumps(dict(zip(columns, row, strict=True))) for row in cells]


def _are_rows_by_id(value: dict[str, Any]) -> bool:
    """Return True if no key is one of a format, and the values are rows of one format, or lists of turns.

    Two texts may be a question and its answer, unless their keys are numbered.
    """
    first = next(iter(value.values()), None)
    if len(value) < 2 or not KNOWN.isdisjoint(known_names(list(value))):
        return False
    if isinstance(first, list):
        return all(map(_are_turns, value.values()))
    if not isinstance(first, dict):
        return False
    group = group_of(FORMAT_KEYS.intersection(known_names(list(first))))
    if group is None:
        return False
    if len(value) == 2 and group[1] == "text" and not all(re.search(r"\d", key) for key in value):
        return False
    return all(isinstance(row, dict) and row.keys() == first.keys() for row in value.values())


def _are_turns(value: Any) -> bool:
    is_list = isinstance(value, list) and bool(value)
    return is_list and all(
        isinstance(turn, dict)
        and any(turn.keys() >= keys for keys in ({"role", "content"}, {"from", "value"}))
        for turn in value
    )


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
