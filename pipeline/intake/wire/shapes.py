"""Checks of the type of a JSON value. One of another type raises `BadRow` with its place."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pipeline.chat.rows import BadRow
from pipeline.core.jsonl import CONTAINERS, MAX_DEPTH, is_deeper_than

T = TypeVar("T")
KINDS = {  # names of the types in JSON
    dict: "an object",
    list: "a list",
    str: "text",
    bool: "true or false",
    int: "a number",
    float: "a number",
    type(None): "null or missing",
}


def need(wanted: type[T], value: Any, where: str, code: str) -> T:
    """Return `value` if it is an object (or a list). Raises `BadRow` with `code` if it is not."""
    if not isinstance(value, wanted):
        raise BadRow(code, f"{where} is {KINDS[type(value)]}, not {KINDS[wanted]}")
    return value


def need_flat(value: Any, where: str) -> None:
    """Raise `BadRow` for a value that is nested deeper than a row may be, as JSON text in a row can be."""
    if type(value) in CONTAINERS and is_deeper_than(value, MAX_DEPTH):
        raise BadRow("too_deep", f"{where} is nested more than {MAX_DEPTH} deep")


def without_nulls(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object without its keys that are null. Tables have these for keys of other rows."""
    return {key: item for key, item in value.items() if item is not None}
