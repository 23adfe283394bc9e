"""Reasons why no mapping is guessed for rows that fit no format: each guess would lose a part of what belongs
together.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.commands.data import series
from pipeline.commands.data.classes import message_doubt
from pipeline.commands.data.columns import Column, are_values, turn_keys
from pipeline.core.text import listed, one_line
from pipeline.intake.rows.unread import ANSWER_KEYS

KEYS_SHOWN = 4
KEY_SHOWN = 40  # characters of a key


def doubt(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column], *, is_one_object: bool) -> str:
    """Return the first reason, as the second half of a sentence; "" if there is none.

    `is_one_object` is True if the file is nothing but the only one of `rows`.
    """
    return (
        (_by_ids(rows[0]) if is_one_object else "")
        or series.doubt(rows, columns)
        or message_doubt(rows, columns)
        or _several_answers(columns)
    )


def _by_ids(only: Mapping[str, Any]) -> str:
    """Return the reason for a file's only row whose values are all alike: objects of the same keys, or lists
    of objects, below their ids; or answers, below their questions.
    """
    values = list(only.values())
    if are_values(list(only)) and all(isinstance(value, str) for value in values):
        return (
            "the file is one object, and its keys seem to be questions: write each as a line "
            "(`jq -c 'to_entries[] | {question: .key, answer: .value}' FILE`)"
        )
    are_lists = len(values) > 1 and all(map(_is_list_of_objects, values))
    are_objects = all(isinstance(value, dict) and value for value in values)
    items = [value[0] if are_lists else value for value in values]
    if not items or not (are_lists or are_objects) or any(item.keys() != items[0].keys() for item in items):
        return ""
    if are_lists:
        keys = turn_keys(values)
        if keys and keys.role:
            return (
                "the file is one object of chats: write each as a line (`jq -c '.[] | {messages: .}' FILE`)"
            )
        return "the file is one object of lists: write what is in them as lines (`jq -c '.[][]' FILE`)"
    names = [one_line(key, KEY_SHOWN) for key in items[0]]
    more = [f"{len(names) - KEYS_SHOWN} more"] if len(names) > KEYS_SHOWN else []
    return (
        f"the file is one object, and its values have {listed([*names[:KEYS_SHOWN], *more])}: if these are "
        "the rows, write its values as lines (`jq -c '.[]' FILE`)"
    )


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _several_answers(columns: Sequence[Column]) -> str:
    """Return the reason for lists of several objects in the place of an answer."""
    for column in columns:
        if column.path not in ANSWER_KEYS or not column.lists or turn_keys(column.lists):
            continue
        if max(map(len, column.lists)) > 1:
            return (
                f"{column.path} holds several objects, of which a mapping takes one: write the answer alone"
            )
    return ""
