"""Training marks: the keys of a row, a turn or a part of one that determine if it is trained.

Known marks are read. Any other key about loss, training, weight or mask is refused by its name, because a row
that is read without it would teach what its author kept out.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from pipeline.chat.rows import BadRow

# The known marks, in words joined by `_`. If a mark of the first list is set, the turn is trained. If one of
# the second list is set, it is not. `mask` is not among them, because it is used with both meanings.
TRAINED = ("train", "training", "trainable", "weight", "loss", "loss_weight", "loss_mask")
SKIPPED = ("masked", "ignore", "ignored", "ignore_loss")
MEANINGS = dict.fromkeys(TRAINED, True) | dict.fromkeys(SKIPPED, False)
# True requests training of the turn, also of one that is never trained.
REQUESTS = ("train", "training", "trainable")
WORD = re.compile(r"CoT|[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
SPEAKS = re.compile(r"(no|un)?(loss(?!less|y)|train(?!s\b)|weight|mask|ignor)")
# 1 and 1.0 equal true.
SET = (True, "true", "1")
UNSET = (False, "false", "0")
KNOWN_KEYS = 4096


def words_in(name: str) -> list[str]:
    """Return the words of a name in small letters: `lossMask`, `loss-mask` and `LOSS_MASK` have two."""
    return [word.lower() for word in WORD.findall(name)]


@lru_cache(KNOWN_KEYS)
def mark_name(key: str) -> str | None:
    """Return the words of a key about loss, training, weight or mask, joined by `_`; None for other keys.

    `lossMask`, `loss-mask` and `LOSS_MASK` become `loss_mask`, and `isTrainable` becomes `trainable`.
    """
    words = words_in(key)
    if not any(map(SPEAKS.match, words)):
        return None
    return "_".join(words[1:] if words[0] == "is" else words)


def refuse_marks(value: Mapping[str, Any], where: str, but: tuple[str, ...] = ()) -> None:
    """Raise `BadRow` for any mark in an object in which none is read, except the keys `but`."""
    for key in value:
        if mark_name(key) and key not in but and not _is_missing(value[key]):
            raise _unread(key, where)


def is_trained(item: Mapping[str, Any], role: str, where: str) -> bool:
    """Return False if a mark keeps an assistant's turn out of training. Other turns are never trained.

    Raises `BadRow` for a mark that is not known, for two that contradict each other, and for one that
    requests training of a turn that is not the assistant's.
    """
    marks: dict[bool, str] = {}
    for key, value in item.items():
        name = mark_name(key)
        if name is None or _is_missing(value):
            continue
        wanted = _is_wanted(key, name, value, where)
        if role != "assistant" and name in REQUESTS and value is True:
            raise BadRow(
                "unsupported_field", f"{where}: {key} asks to train a turn that is not the assistant's"
            )
        marks[wanted] = key
    if len(marks) > 1:
        raise BadRow("unsupported_field", f"{where}: {marks[True]} and {marks[False]} contradict each other")
    return role != "assistant" or False not in marks


def marks_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the marks that a row has next to its turns."""
    if not any(map(mark_name, row)):  # The usual case, which takes a third of the time.
        return {}
    return {key: value for key, value in row.items() if mark_name(key) and not _is_missing(value)}


def check_row_mark(key: str, value: Any) -> None:
    """Raise `BadRow` if a mark on a whole row is not known, or keeps the row out of training."""
    name = mark_name(key) or key
    if not _is_wanted(key, name, value, "the row"):
        raise BadRow("nothing_to_train", f"{key} keeps the row out of training")


def _is_wanted(key: str, name: str, value: Any, where: str) -> bool:
    """Return True if a mark requests training."""
    if name not in MEANINGS:
        raise _unread(key, where)
    flag = value.strip().lower() if isinstance(value, str) else value
    if isinstance(flag, dict | list) or flag not in (*SET, *UNSET):
        raise BadRow("unsupported_field", f"{where}: {key} is neither 0 nor 1, and would be lost")
    return (flag in SET) == MEANINGS[name]


def _unread(key: str, where: str) -> BadRow:
    return BadRow(
        "unsupported_field",
        f"{where}: {key} speaks of what is trained and is not read: write train, true or false, on the "
        "assistant's turns, or take it out (of a row: set it to null in curate.fields)",
    )


def _is_missing(value: Any) -> bool:
    """Return True for null and for empty values."""
    return value is None or value in ("", [], {})
