"""Single values of a row as the canonical row has them: a thumb, an expected answer, a reward, a domain."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from pipeline.chat.rows import BadRow
from pipeline.stages.curate.reading.turns import kind

Value = Mapping[str, Any]
DOMAIN_CHARACTERS = 64
NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?")


def label_of(value: Value) -> bool | None:
    """The thumb that a row of no particular format has; words other than true and false are the names of
    classes.
    """
    if value.get("kto_tag") is not None:
        return thumb_of(value, "kto_tag")
    label = _lower(value.get("label"))
    if isinstance(label, bool) or label in ("true", "false"):
        return label in (True, "true")
    if label in (0, 1, -1, "0", "1", "-1"):  # trained as a good answer, a thumb down would do harm
        raise BadRow(
            "unsupported_field",
            "label is a thumb or the number of a class: write true or false for a thumb, else take it out",
        )
    return None


def thumb_of(value: Value, field: str) -> bool:
    """The field's thumb, true or false, as text or a number too."""
    label = _lower(value[field])
    if label not in (True, False, "true", "false", "1", "0"):  # True == 1 == 1.0
        raise BadRow("bad_shape", f"{field} is neither true nor false")
    return label in (True, "true", "1")


def _lower(label: Any) -> Any:
    return label.strip().lower() if isinstance(label, str) else label


def answer_of(value: Any) -> str:
    """What a checker of answers expects, as text."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BadRow("content_not_text", f"answer is {kind(value)}, neither text nor a number")
    return value if isinstance(value, str) else json.dumps(value)


def number_of(value: Any, field: str) -> float:
    """A finite number, also as text (tables have nothing but text)."""
    digits = str(value)
    number = float(digits) if NUMBER.fullmatch(digits) else math.nan
    if not math.isfinite(number):
        raise BadRow("bad_shape", f"{field} is no finite number")
    return number


def domain_of(value: Value, default: str) -> str:
    """The domain that the row names, or the default."""
    for key in ("domain", "category"):
        name = value.get(key)
        if (
            isinstance(name, str)
            and (name := name.strip())
            and len(name) <= DOMAIN_CHARACTERS
            and name.isprintable()
        ):
            return name
    return default
