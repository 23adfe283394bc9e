"""The value of a table's cell, which is text: turns or tools in it are JSON, or Python's form of it."""

import re
from typing import Any

from pipeline.core.jsonl import BadLine, parse_value
from pipeline.intake.rows.formats import LIST_KEYS, TURN_KEYS
from pipeline.intake.rows.text_calls import python_objects

TURNS = re.compile(r"\s*\[\s*\{")


def cell_value(name: str, cell: str) -> Any:
    """Return a cell's string, or its JSON if the column is known for that. Raises `BadLine`."""
    if (name in LIST_KEYS and cell.lstrip().startswith(("[", "{"))) or (
        name in TURN_KEYS and TURNS.match(cell)
    ):
        try:
            return parse_value(cell.encode("utf-8"))
        except BadLine as error:
            try:
                return python_objects(cell)
            except ValueError:
                raise BadLine(error.code, f"column {name}: {error}: write it by json.dumps") from None
    return cell
