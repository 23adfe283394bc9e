"""The interface to a program's export, which is recognized by its beginning and whose records become rows.

A record is the unit of the file's container: a line of JSONL, an element of an array, or the one object of a
file. A row is an object in one of the formats of `pipeline.intake.rows.formats`, mostly `messages`. One
record may give several rows (branches of a conversation), and many records one row (a session that is written
line by line).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from pipeline.core.jsonl import BadLine
from pipeline.intake.exports.view import View
from pipeline.intake.wire.draft import Turn

HEAD_RECORDS = 20  # records by which a file is recognized
# Bytes of one record: a whole conversation, of which a row keeps less, or the one object of a file.
MAX_RECORD_BYTES = 64 << 20


class Record(NamedTuple):
    """A JSON value of a file, or the reason why it can't be read."""

    number: int  # number from 1
    offset: int | None  # bytes from the start of the unpacked file
    value: Any | BadLine

    def view(self) -> View:
        """Return the object; an empty one for any other value. Raises the `BadLine` of one that can't be
        read.
        """
        if isinstance(self.value, BadLine):
            raise self.value
        return View(self.value)

    def object(self, why: str) -> View:
        """Return the object. Raises `BadLine`, which says `why` for any other value."""
        view = self.view()
        if not isinstance(self.value, dict):
            raise BadLine("not_object", why)
        return view


class Conversation(NamedTuple):
    """A row of an export, or the reason why its records give none."""

    number: int  # number of the record at which it begins
    offset: int | None
    row: dict[str, Any] | BadLine


@dataclass(frozen=True)
class Head:
    """Beginning of a file: its layout and its first records, without those that can't be read."""

    layout: str  # "lines", "array", "object" or "stream"
    values: tuple[Any, ...]

    def objects(self) -> list[View]:
        """Return the records that are objects."""
        return [View(value) for value in self.values if isinstance(value, dict)]


# Counts of what was left out or decided, as name → number. They are written to reports/data.json.
Notes = Counter[str]


def nothing_beside(name: str) -> list[Any]:
    """Return the records next to a file without other files of its export: none."""
    return []


@dataclass(frozen=True)
class Records:
    """Records of an export. `beside` returns those of another file of it, by the file's name.

    Examples are thumbs in ChatGPT's message_feedback.json, or people in Slack's users.json. If there is no
    such file, it returns none.
    """

    each: Iterable[Record]
    beside: Callable[[str], list[Any]] = nothing_beside

    def __iter__(self) -> Iterator[Record]:
        return iter(self.each)


@dataclass(frozen=True)
class Export:
    """Export of one program.

    `read` yields a row, or a `BadLine` with the error, for every conversation in the file. It counts content
    that is left out on purpose in the notes. One conversation is in memory. In an archive, the files in one
    folder are one sequence of records if `joins_folder`. A file with a record longer than a row is tried as
    well if its first bytes contain all of `large_keys`. If `has_rows`, its records also have the keys of
    rows. In any other export these keys show that the file is not an export.
    """

    name: str
    is_head: Callable[[Head], bool]
    read: Callable[[Records, Notes], Iterator[Conversation]]
    joins_folder: bool = False
    large_keys: tuple[bytes, ...] = ()
    has_rows: bool = False


def conversation_rows(turns: list[Turn], notes: Notes) -> Iterator[dict[str, Any]]:
    """Yield the row of a conversation, or count it if it has no turn."""
    if turns:
        yield {"messages": turns}
    else:
        notes["empty_conversations"] += 1


class Alone:
    """Messages that are records themselves: all of them are one conversation, if each can be read."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.begin: tuple[int, int | None] = (1, 0)
        self.hole: BadLine | None = None  # reason why one of them is rejected

    def add(self, number: int, offset: int | None, turns: list[Turn]) -> None:
        """Add the turns of a record."""
        if not self.turns:
            self.begin = (number, offset)
        self.turns += turns

    def conversation(
        self, notes: Notes, settle: Callable[[list[Turn], Notes], list[Turn]] = lambda turns, notes: turns
    ) -> Iterator[Conversation]:
        """Yield the conversation if there is one. `settle` returns the turns that are kept of it."""
        if self.turns and self.hole is not None:
            why = "a message of this conversation is rejected, and the rest is not read either"
            yield Conversation(*self.begin, BadLine(self.hole.code, why))
            return
        kept = settle(self.turns, notes)
        if kept:
            yield Conversation(*self.begin, {"messages": kept})


def any_record(is_record: Callable[[View], Any]) -> Callable[[Head], bool]:
    """Return the `is_head` of an export that one of its records is enough to recognize."""

    def is_head(head: Head) -> bool:
        return any(map(is_record, head.objects()))

    return is_head


def each_record(
    rows_of: Callable[[View, Notes], Iterable[dict[str, Any]]],
) -> Callable[[Iterable[Record], Notes], Iterator[Conversation]]:
    """Return the `read` of an export in which each record is a conversation.

    `rows_of` returns the rows of a record. It may raise `BadLine`, which then replaces the record.
    """

    def read(records: Iterable[Record], notes: Notes) -> Iterator[Conversation]:
        for record in records:
            try:
                value = record.object("not a JSON object, as this export's conversations are")
                for row in rows_of(value, notes):
                    yield Conversation(record.number, record.offset, row)
            except BadLine as why:
                yield Conversation(record.number, record.offset, why)

    return read
