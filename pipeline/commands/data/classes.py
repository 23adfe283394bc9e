"""Columns of few different values next to a text: the label of a classification, or a message's speaker.

A label is what the text is answered with, whatever its name. A speaker shows that each row is one message of
a chat, and no mapping puts the rows of a conversation together.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pipeline.commands.data.columns import FEW_OF, MOST, Column, turn_keys
from pipeline.intake.rows.markup import is_rendered
from pipeline.intake.rows.turns import ROLES

TIMES_AS_MANY = 2  # a text has at least as many times the different values of a class
FEW_SPEAKERS = 3
TURNS_SEEN = 6  # rows from which two values that alternate are speakers
MOST_TEXTS = 3  # texts that are labelled together
LONG_MESSAGE = 200  # characters of a text that has an author, but is no message


@dataclass(frozen=True)
class Labelled:
    """A mapping of texts to their label. It is certain if there are enough rows, and a name supports it."""

    label: Column
    user: str
    is_named: bool
    is_certain: bool


def classes_of(columns: Sequence[Column], texts: Sequence[Column], rows: int) -> list[Column]:
    """Return the columns that classify the texts: their values are short and repeated, unlike a text's.

    Of a few rows the name decides too, since their labels need not be repeated.
    """
    few = [
        column
        for column in columns
        if len(column.stated) >= MOST * rows
        and (column.is_few or (rows < FEW_OF and column.is_short and column.speaks_of("label")))
    ]
    diverse = max((column.different for column in texts if column not in few), default=0)
    return [
        column
        for column in few
        if diverse and (column.speaks_of("label") or diverse >= TIMES_AS_MANY * column.different)
    ]


def labelled(classes: Sequence[Column], texts: Sequence[Column], rows: int) -> Iterator[Labelled]:
    """Yield the ways to answer texts with a class, the likeliest first. There is none if a text is an answer
    itself. Several texts are labelled only by a class whose name supports it.
    """
    if not texts or any(column.speaks_of("answer") and not column.speaks_of("question") for column in texts):
        return
    classes = sorted(classes, key=lambda column: column.is_number)
    named = [column for column in classes if column.speaks_of("label") or column.speaks_of("answer")]
    others = [column for column in classes if column not in named and not is_name(column)]
    if len(texts) > 1:
        together = "\n\n".join(f"{{{column.path}}}" for column in texts[:MOST_TEXTS])
        longest = max(texts, key=lambda column: column.length)
        for label in named:
            yield Labelled(label, together, True, False)
            yield Labelled(label, longest.path, True, False)
        return
    for label in named:
        is_certain = rows >= FEW_OF and label.is_few and len(named) == 1
        yield Labelled(label, texts[0].path, True, is_certain)
    for label in others:
        if not label.speaks_of("no text"):
            yield Labelled(label, texts[0].path, False, False)


def values_of(label: Column) -> dict[str, int]:
    """Return the values of a label as the rows write them, each with its count, the commonest first."""
    return dict(Counter(label.stated).most_common())


def message_doubt(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> str:
    """Return the reason why no mapping is guessed for rows that may be messages of a chat; "" for other rows.

    Rows with a label, an answer or an entire chat are no messages, whoever wrote them.
    """
    if any(column.lists and turn_keys(column.lists) for column in columns):
        return ""
    present = [column for column in columns if 2 * len(column.stated) >= len(rows)]
    speaker = next((column for column in present if _is_speaker(column, len(rows))), None)
    texts = [
        column
        for column in present
        if column.is_text and not column.is_few and column is not speaker and not is_name(column)
    ]
    if speaker is None or len(texts) != 1 or not (speaker.is_number or texts[0].length < LONG_MESSAGE):
        return ""
    is_labelled = any(column.speaks_of("label") and column.is_few for column in present)
    if is_labelled or texts[0].speaks_of("answer") or is_rendered(texts[0].texts[0]):
        return ""
    return (
        f"each row may be one message of a chat ({speaker.path} says who speaks, {texts[0].path} what): put "
        "the turns of a conversation into one row of messages"
    )


def is_name(column: Column) -> bool:
    """Return True for a column of people's names, which nobody says."""
    return column.is_short and (column.speaks_of("speaker") or "name" in column.words)


def _is_speaker(column: Column, rows: int) -> bool:
    """Return True for a column of few values that are names or sides of speakers, or that take turns."""
    if not column.is_short or column.different < 2 or column.speaks_of("label"):
        return False
    if column.is_number:
        return column.speaks_of("side") and column.different == 2
    if column.speaks_of("speaker"):
        return column.different <= max(FEW_SPEAKERS, rows // 2)
    if column.speaks_of("name"):
        return column.is_few
    values = [value.strip().lower() for value in column.stated]
    if set(values) <= ROLES.keys():
        return True
    takes_turns = column.different == 2 and all(one != other for one, other in pairwise(values))
    return takes_turns and rows >= TURNS_SEEN and not column.speaks_of("no text")
