"""The rows of a program's export, between whose records rows of the user's own may stand."""

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import groupby
from typing import Any

import orjson

from pipeline.core.json_values import too_long_row
from pipeline.core.jsonl import BadLine
from pipeline.intake.exports.export import Export, Record, Records
from pipeline.intake.exports.pieces import cut_rows
from pipeline.intake.files.contents import RawRow
from pipeline.intake.rows.own_rows import Recognizer


def recognized_rows(
    export: Export, records: Records, max_bytes: int, notes: Counter[str]
) -> Iterator[RawRow]:
    """Yield the rows of a file that was detected as an export by its first records. The user's own rows and
    another program's conversations between its records are read as such.
    """
    beside = cache(records.beside)
    counted = {export}
    for reader, group in groupby(records.each, Recognizer(export)):
        if reader is None:
            yield from _own_rows(group, max_bytes)
            continue
        if reader not in counted:
            notes[f"export_{reader.name}"] += 1
            counted.add(reader)
        yield from exported_rows(reader, Records(group, beside), max_bytes, notes)


def _own_rows(records: Iterable[Record], max_bytes: int) -> Iterator[RawRow]:
    """Yield records that are the user's own rows as JSON bytes."""
    for number, offset, value in records:
        data = _row_bytes(value)
        is_long = isinstance(data, bytes) and len(data) > max_bytes
        yield number, offset, too_long_row(max_bytes) if is_long else data


def exported_rows(export: Export, records: Records, max_bytes: int, notes: Counter[str]) -> Iterator[RawRow]:
    """Yield the rows of a program's export as JSON bytes. Conversations longer than a row may be are cut."""
    for number, offset, row in export.read(records, notes):
        data = _row_bytes(row)
        if isinstance(data, bytes) and not isinstance(row, BadLine) and len(data) > max_bytes:
            for piece in cut_rows(row, max_bytes):
                notes["conversations_cut"] += isinstance(piece, dict)
                yield number, offset, _row_bytes(piece)
        else:
            yield number, offset, data


def _row_bytes(row: dict[str, Any] | BadLine) -> bytes | BadLine:
    if isinstance(row, BadLine):
        return row
    try:
        return orjson.dumps(row)
    except orjson.JSONEncodeError:  # orjson reads deeper nesting than it writes.
        return BadLine("too_deep", "the conversation is nested too deep")
