"""The values of a row's fields: text, a list, a number, a thumb, an answer, a domain; also in the textual
form of tables. Invalid values raise `BadRow` with the field's name, never with the text itself.
"""

import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pipeline.chat.rows import BadRow
from pipeline.core.jsonl import BadLine, parse_value
from pipeline.intake.rows.marks import refuse_marks
from pipeline.intake.rows.text_calls import python_objects
from pipeline.intake.wire.shapes import KINDS, need

Value = Mapping[str, Any]
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
DOMAIN_CHARACTERS = 64
UNREAD = "would be lost: write it into the row's turns, or set it to null in curate.fields"


def text(value: Any, where: str) -> str:
    """Return a turn's text. For a list, the text parts are joined by newlines (as llama-server does)."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(_part(part, f"{where}: part {number}") for number, part in enumerate(value, start=1))
    raise BadRow("content_not_text", f"{where} is {KINDS[type(value)]}, not text")


def one_text(value: Any, where: str) -> str:
    """Return the text of a row's field.

    There a list of several texts is not one text in parts, but several for one place. It raises `BadRow`.
    """
    if isinstance(value, str):  # The usual case.
        return value
    if isinstance(value, list) and len(value) != 1 and dict not in map(type, value):
        raise BadRow(
            "bad_shape", f"{where} is a list of {len(value)}, and one text is needed: write a row for each"
        )
    return text(value, where)


def _part(part: Any, where: str) -> str:
    if isinstance(part, dict):
        refuse_marks(part, where)
    words = part.get("text") if isinstance(part, dict) and part.get("type") in ("text", None) else part
    if not isinstance(words, str):
        raise BadRow("content_not_text", f"{where} is not text")
    return words


def items(value: Any, where: str) -> list[Any]:
    """Return `value` if it is a list, the list in its text as JSON or a Python literal (tables contain only
    text), or the objects of a list by columns.
    """
    if isinstance(value, str):
        try:
            value = from_json(value, where, "bad_shape", "a list, nor one as strict JSON")
        except BadRow:
            with suppress(ValueError):
                return list(python_objects(value))
            raise
    if is_by_columns(value):
        lengths = set(map(len, value.values()))
        if len(lengths) > 1:
            raise BadRow("bad_shape", f"{where} is an object of lists, and these are not equally long")
        return [dict(zip(value, cells, strict=True)) for cells in zip(*value.values(), strict=True)]
    return need(list, value, where, "bad_shape")


def is_by_columns(value: Any) -> bool:
    """Return True for a list of objects by columns, `{"role": […], "content": […]}`, as a `Sequence` of
    datasets stores it.
    """
    return (
        isinstance(value, dict) and bool(value) and all(isinstance(cells, list) for cells in value.values())
    )


def is_blank(value: Any) -> bool:
    """Return True for a field without content: null, empty, or spaces, as in tables."""
    if isinstance(value, str):
        return not value.strip()
    return not value and not isinstance(value, int | float)  # 0 and false are content.


def from_json(words: str, where: str, code: str, wanted: str = "strict JSON") -> Any:
    """Return the value of `words` as strict JSON.

    Raises `BadRow` with `code`, which reports that they are not `wanted`.
    """
    try:
        return parse_value(words.encode("utf-8", "surrogatepass"))
    except BadLine as error:
        raise BadRow(code, f"{where} is not {wanted} ({error.code})") from None


def number_of(value: Any, field: str) -> float:
    """Return a finite number, also from text (tables contain only text)."""
    digits = str(value).strip()
    number = float(digits) if NUMBER.fullmatch(digits) else math.nan
    if not math.isfinite(number):
        raise BadRow("bad_shape", f"{field} is not a finite number")
    return number


def label_of(value: Value) -> bool | None:
    """Return the thumb of a row of no particular format.

    Words other than true and false are names of classes.
    """
    if value.get("kto_tag") is not None:
        return thumb_of(value, "kto_tag")
    label = _lower(value.get("label"))
    if isinstance(label, bool) or label in ("true", "false"):
        return label in (True, "true")
    if label in (0, 1, -1, "0", "1", "-1"):  # Trained as a good answer, a thumb down would do harm.
        raise BadRow(
            "unsupported_field",
            "label is a thumb or the number of a class: write true or false for a thumb, else take it out",
        )
    return None


def thumb_of(value: Value, field: str) -> bool:
    """Return the field's thumb, true or false, also from text or a number."""
    label = _lower(value[field])
    if label not in (True, False, "true", "false", "1", "0"):  # True == 1 == 1.0
        raise BadRow("bad_shape", f"{field} is neither true nor false")
    return label in (True, "true", "1")


def _lower(label: Any) -> Any:
    return label.strip().lower() if isinstance(label, str) else label


def accepted_answers(value: Any, where: str) -> list[str]:
    """Return the different answers of a field: one, or those of a list, each of which is accepted.

    Numbers, true and false become text. A list of content parts is one answer.
    """
    if isinstance(value, str):  # The usual case.
        return [value]
    if not isinstance(value, list) or dict in map(type, value):
        return [answer_text(value, where)]
    if not value:
        raise BadRow("bad_shape", f"{where} is an empty list")
    return list(dict.fromkeys(answer_text(answer, f"{where}: {n}") for n, answer in enumerate(value, 1)))


def answer_text(value: Any, where: str) -> str:
    """Return an answer as text, also from a number, true or false."""
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    return one_text(value, where)


def domain_of(value: Value, default: str) -> str:
    """Return the domain that the row names, or the default."""
    named = [value.get(key) for key in ("domain", "category")]
    names = [name.strip() for name in named if isinstance(name, str)]
    fit = (name for name in names if 0 < len(name) <= DOMAIN_CHARACTERS and name.isprintable())
    return next(fit, default)


def filled(value: Value) -> set[str]:
    """Return the keys that are not null."""
    return {key for key, item in value.items() if item is not None}
