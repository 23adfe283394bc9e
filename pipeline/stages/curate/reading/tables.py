"""The records of CSV and Parquet files as JSON objects, one column a key; null and empty cells are left
out.
"""

import csv
import math
import re
from collections import Counter
from collections.abc import Iterator
from datetime import date, time, timedelta
from decimal import Decimal
from io import BufferedReader
from typing import Any
from uuid import UUID

import orjson

from pipeline.core.jsonl import BYTE_ORDER_MARK, MAX_DEPTH, BadLine, parse_value
from pipeline.stages.curate.reading.unpack import growth_limit

# text there is of no use
JSON_COLUMNS = frozenset(("messages", "conversations", "history", "tools", "segments"))
TURN_COLUMNS = frozenset(("prompt", "completion", "chosen", "rejected"))  # text, or a list of turns
FAULTS = {  # the csv module's words, and ours
    "new-line character": "a line ends with CR alone: write LF or CRLF",
    "expected after": "something stands between a quote and the next comma",
    "unexpected end": "a quote is never closed",
}
TURNS = re.compile(r"\s*\[\s*\{")
NUMBER_COLUMNS = frozenset(("reward", "score"))
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)
SEPARATORS = {b";": "semicolons", b"\t": "tabs", b"|": "vertical bars"}
BATCH = 32  # rows of a Parquet file that are unpacked at a time
READ_AHEAD = 1 << 20  # bytes of each column

Record = tuple[int, None, bytes | BadLine]


def csv_rows(file: BufferedReader, max_bytes: int, notes: Counter[str]) -> Iterator[Record]:
    """(number from 1, None, a JSON object's bytes) of each record below the header.

    A record ends at a line break with an even number of quotes before it, so a bad record of one line leaves
    the others alone. Of one that is bad over several lines the quotes are in doubt: the rest of the file is
    not read.
    """
    csv.field_size_limit(max(csv.field_size_limit(), max_bytes))
    header: list[str] = []
    cells: list[str] = []
    records = _records(file, max_bytes)
    for number, (text, lines) in enumerate(records):
        row: bytes | BadLine
        in_doubt = False
        try:
            if text is None or len(text.rstrip(b"\r\n")) > max_bytes:
                raise BadLine("too_long", f"longer than {max_bytes} bytes")
            if not number:
                notes["bom"] += text.startswith(BYTE_ORDER_MARK)
                text = text.removeprefix(BYTE_ORDER_MARK)
            notes["crlf"] += text.endswith(b"\r\n")  # of records, not of the lines inside a cell
            if text.isspace():
                raise BadLine("blank", "nothing on this line")
            cells = _cells(text)
            row = orjson.dumps(_object(header, cells)) if number else b""
        except BadLine as error:
            row, in_doubt = error, lines > 1 and error.code in ("too_long", "not_csv")
        if not number:
            if why := _header_fault(text or b"", row if isinstance(row, BadLine) else None, cells):
                yield 1, None, BadLine("bad_header", f"the first line must name the columns: {why}")
                return
            header = cells
            continue
        yield number, None, row
        if in_doubt and next(records, None):
            yield (
                number + 1,
                None,
                BadLine("not_csv", "it can't be told where records begin: the rest of the file isn't read"),
            )
            return


def parquet_rows(file: BufferedReader, max_bytes: int) -> Iterator[Record]:
    """(number from 1, None, a JSON object's bytes) of each row. What JSON has no type for becomes text.

    Bytes that are no text become an object with their number, so that no format takes them for anything (or
    for nothing).
    """
    import pyarrow  # takes a while, and most have no use for it
    from pyarrow.parquet import ParquetFile

    number = unpacked_bytes = 0
    limit = growth_limit(file)
    try:
        table = ParquetFile(file, buffer_size=READ_AHEAD, pre_buffer=False)
        names = table.schema_arrow.names
        if len(set(names)) < len(names):
            raise BadLine("bad_header", "two columns have the same name")
        for batch in table.iter_batches(BATCH, use_threads=False):
            unpacked_bytes += batch.nbytes
            if unpacked_bytes > limit:
                raise BadLine("expands_too_much", f"unpacks to more than {limit >> 20} MiB: it isn't read on")
            for row in _batch_rows(batch, max_bytes):
                number += 1
                yield number, None, row
    except BadLine as error:
        yield number + 1, None, error
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        yield (
            number + 1,
            None,
            BadLine("broken_container", f"Arrow can't read this Parquet file on ({type(error).__name__})"),
        )


def _records(file: BufferedReader, max_bytes: int) -> Iterator[tuple[bytes | None, int]]:
    """(bytes or None if they are too many, lines) of each record."""
    parts: list[bytes] = []
    size = quotes = lines = 0
    while piece := file.readline(max_bytes + 1):
        parts.append(piece)
        size += len(piece)
        quotes += piece.count(b'"')
        lines += piece.endswith(b"\n")
        if size > max_bytes + 2:  # CR and LF
            parts.clear()
        if piece.endswith(b"\n") and quotes % 2 == 0:
            yield b"".join(parts) or None, lines
            parts.clear()
            size = quotes = lines = 0
    if size:
        yield b"".join(parts) or None, lines + 1


def _header_fault(text: bytes, error: BadLine | None, names: list[str]) -> str | None:
    """What is wrong with the first line, if anything; `error` is what its reader found."""
    separators = [name for byte, name in SEPARATORS.items() if byte in text and b"," not in text]
    if separators and (error is None or error.code == "not_csv"):
        return f"they look separated by {separators[0]}: write commas"
    if error:
        return str(error)
    if not all(names):
        return "one has no name"
    return "two have the same name" if len(set(names)) < len(names) else None


def _cells(record: bytes) -> list[str]:
    text = record.decode("utf-8", "replace").removesuffix("\n").removesuffix("\r")
    try:
        cells = next(csv.reader([text], strict=True))
        record.decode("utf-8")
    except csv.Error as error:
        raise BadLine(
            "not_csv",
            next((ours for theirs, ours in FAULTS.items() if theirs in str(error)), "its quotes don't match"),
        ) from None
    except UnicodeDecodeError as error:
        raise BadLine("not_utf8", f"byte {error.start} is not UTF-8") from None
    return cells


def _object(header: list[str], cells: list[str]) -> dict[str, Any]:
    if len(cells) != len(header):
        raise BadLine("bad_shape", f"{len(cells)} cells, but the header names {len(header)}")
    return {name: _value(name, cell) for name, cell in zip(header, cells, strict=True) if cell}


def _value(name: str, cell: str) -> Any:
    """A cell's string, or the JSON or number that its column is known for."""
    if (name in JSON_COLUMNS and cell.lstrip().startswith(("[", "{"))) or (
        name in TURN_COLUMNS and TURNS.match(cell)
    ):
        try:
            return parse_value(cell.encode("utf-8"))
        except BadLine as error:
            raise BadLine(error.code, f"column {name}: {error}") from None
    if name in NUMBER_COLUMNS and NUMBER.fullmatch(cell.strip()) and math.isfinite(float(cell)):
        return float(cell)
    return cell


def _batch_rows(batch: Any, max_bytes: int) -> Iterator[bytes | BadLine]:
    """Of each row of an Arrow record batch."""
    try:
        rows = batch.to_pylist()
    except (ValueError, OverflowError):  # one cell is enough: text that is not UTF-8, a year 10,000
        if len(batch) > 1:
            for at in range(len(batch)):
                yield from _batch_rows(batch.slice(at, 1), max_bytes)
            return
        try:
            rows = [
                {
                    name: _only_cell(column)
                    for name, column in zip(batch.schema.names, batch.columns, strict=True)
                }
            ]
        except (ValueError, OverflowError):
            yield BadLine(
                "bad_shape", "a cell holds what has no form in JSON, such as text that is not UTF-8"
            )
            return
    for row in rows:
        try:
            text = orjson.dumps(
                {
                    name: _value(name, cell) if type(cell) is str else cell
                    for name, cell in _json_value(row, MAX_DEPTH).items()
                }
            )
            yield text if len(text) <= max_bytes else BadLine("too_long", f"longer than {max_bytes} bytes")
        except BadLine as error:
            yield error


def _only_cell(column: Any) -> Any:
    """The value of a column of one; None if it is a time that Python can't tell."""
    from pyarrow.types import is_temporal

    try:
        return column.to_pylist()[0]
    except (ValueError, OverflowError):
        if is_temporal(column.type):
            return None
        raise


def _json_value(value: Any, depth: int) -> Any:
    """The value without the nulls of its objects. Raises `BadLine` for one that JSON doesn't have."""
    kind = type(value)
    if (
        kind is str
        or kind is bool
        or kind is int
        or value is None
        or (kind is float and math.isfinite(value))
    ):
        return value
    if kind is float:
        raise BadLine("not_finite", "a cell holds NaN or infinity")
    if depth == 0:
        raise BadLine("too_deep", f"nested more than {MAX_DEPTH} deep")
    if kind is dict:
        return {key: _json_value(item, depth - 1) for key, item in value.items() if item is not None}
    if kind is list or kind is tuple:  # an entry of a map
        return [_json_value(item, depth - 1) for item in value]
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID | timedelta):
        return str(value)
    if kind is bytes:
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return {"bytes": len(value)}
    raise BadLine("bad_shape", f"a cell of type {kind.__name__} has no form in JSON")
