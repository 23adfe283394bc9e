"""Values of keys as they are typed on a command line, and those that a key can have."""

from types import NoneType
from typing import Any, Literal, get_args, get_origin


def typed(value: Any) -> str:
    """Return a value as it is typed. It is empty for a list, a mapping and a text with spaces, which a shell
    takes apart.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "null"
    if isinstance(value, list | dict) or " " in str(value):
        return ""
    return str(value)


def choices(name: str) -> list[str]:
    """Return the values that a key can have, if they are names, true and false, or null."""
    # Completion of other words does not need the schema, which takes 0.2 s to load.
    from pipeline.config.params import Params
    from pipeline.config.sections.values import keys_of

    field = next(field for place, field in keys_of(Params) if ".".join(place) == name)
    found: list[str] = []
    left = [field.annotation]
    while left:
        kind = left.pop(0)
        if get_origin(kind) is Literal:
            found += map(typed, get_args(kind))
        elif kind is bool:
            found += ["true", "false"]
        elif kind is NoneType:
            found.append("null")
        elif get_origin(kind) not in (list, dict, tuple):
            left += get_args(kind)
    return found
