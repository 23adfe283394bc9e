"""The rows of Parquet, Arrow IPC and Feather files as JSON objects. Null cells are left out.

Values without a JSON type become text. Bytes that are not text become an object with their number, so that no
format reads them as anything (or as nothing). A map becomes an object. A cell of Arrow's JSON type, as
`datasets.Json` stores it, becomes the value of its text, and the number of a `datasets.ClassLabel` the name
of that class, which stands in the file's schema.
"""

import math
import os
from collections.abc import Callable, Iterator, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from functools import partial
from io import BufferedReader
from typing import Any
from uuid import UUID

import orjson

from pipeline.core.jsonl import MAX_DEPTH, BadLine, parse_value
from pipeline.intake.files.files import growth_limit, too_large
from pipeline.intake.files.tables import Row
from pipeline.intake.rows.cells import cell_value
from pipeline.intake.rows.letter_case import known_names

BATCH = 32  # rows that become Python objects at a time
READ_AHEAD = 1 << 20  # bytes of each column of a Parquet file
RANDOM_ACCESS = b"ARROW1"  # first bytes of the IPC file format, which is also Feather version 2
FIRST_FEATHER = b"FEA1"
CONTINUATION = b"\xff\xff\xff\xff"  # first bytes of a message; streams before Arrow 0.15 have none
END_OF_STREAM = CONTINUATION + bytes(4)
Converter = Callable[[Any], Any]  # of a cell's value


def parquet_rows(file: BufferedReader, max_bytes: int) -> Iterator[Row]:
    """Yield each row of a Parquet file. Raises `BadLine` if the rest can't be read."""
    from pyarrow.parquet import ParquetFile  # The import is slow, and most files don't need it.

    def batches() -> Iterator[Any]:
        table = ParquetFile(file, buffer_size=READ_AHEAD, pre_buffer=False)
        _need_different(table.schema_arrow.names)
        yield from table.iter_batches(BATCH, use_threads=False)

    return _rows(batches(), growth_limit(file), max_bytes, "Parquet")


def arrow_rows(file: BufferedReader, max_bytes: int) -> Iterator[Row]:
    """Yield each row of an Arrow stream, as `datasets` saves it, or of a file of the IPC or Feather format.

    Raises `BadLine` if the rest can't be read. One record batch is in memory, in `datasets` 1,000 rows.
    """
    return _rows(_arrow_batches(file), growth_limit(file), max_bytes, "Arrow")


def _arrow_batches(file: BufferedReader) -> Iterator[Any]:
    from pyarrow import ipc

    head = file.peek(len(RANDOM_ACCESS))
    if not head:
        return
    if head.startswith(FIRST_FEATHER):
        raise BadLine(
            "unknown_container", "this is Feather version 1: load it with pandas and save it as Parquet"
        )
    if head.startswith(RANDOM_ACCESS):
        reader = ipc.open_file(file)
        _need_different(reader.schema.names)
        batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
    else:
        is_ended = _is_ended(file, head)
        reader = ipc.open_stream(file)
        _need_different(reader.schema.names)
        batches = iter(reader)
    for batch in batches:
        # Arrow trusts the offsets in a batch, and those of a damaged file lead outside of its memory.
        batch.validate(full=True)
        for start in range(0, len(batch), BATCH):
            yield batch.slice(start, BATCH)
    if not head.startswith(RANDOM_ACCESS):
        if not is_ended:
            raise BadLine("broken_container", "the stream has no end mark: rows may be missing after this")
        if file.read(1):
            raise BadLine("broken_container", "something follows the stream's end: it isn't read")


def _is_ended(file: BufferedReader, head: bytes) -> bool:
    """Return True if a stream's last bytes are its end mark. A truncated stream does not have it."""
    mark = END_OF_STREAM if head.startswith(CONTINUATION) else bytes(4)
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - len(mark), 0))
    end = file.read()
    file.seek(0)
    return end == mark


def _need_different(names: list[str]) -> None:
    if len(set(names)) < len(names):
        raise BadLine("bad_header", "two columns have the same name")


def _rows(batches: Iterator[Any], limit: int, max_bytes: int, kind: str) -> Iterator[Row]:
    """Yield the rows of record batches that unpack to at most `limit` bytes. Raises `BadLine`."""
    import pyarrow

    unpacked_bytes = 0
    converters: dict[str, Converter] | None = None
    try:
        for batch in batches:
            unpacked_bytes += batch.nbytes
            if unpacked_bytes > limit:
                raise too_large(limit)
            if converters is None:  # All batches of a file have one schema.
                converters = _converters(batch.schema)
            batch = batch.rename_columns(known_names(batch.schema.names))
            yield from _batch_rows(batch, converters, max_bytes)
    except BadLine:
        raise
    except (pyarrow.ArrowException, OSError, ValueError, MemoryError) as error:
        raise BadLine(
            "broken_container", f"Arrow can't read this {kind} file further ({type(error).__name__})"
        ) from None


def _batch_rows(batch: Any, converters: Mapping[str, Converter], max_bytes: int) -> Iterator[Row]:
    """Yield each row of a record batch. `converters` has those of the columns that need one."""
    try:
        rows = batch.to_pylist()
    except (ValueError, OverflowError):  # One cell is enough: text that is not UTF-8, or a year 10,000.
        rows = [None] * len(batch)
    for at, row in enumerate(rows):
        try:
            if row is None:
                columns = zip(batch.schema.names, batch.columns, strict=True)
                row = {name: _python_value(column[at]) for name, column in columns}
            for name, convert in converters.items():
                row[name] = convert(row[name])
            values = _json_value(row, MAX_DEPTH).items()
            text = orjson.dumps(
                {
                    name: cell_value(name, cell) if type(cell) is str else cell
                    for name, cell in values
                    if cell is not None
                }
            )
            yield text if len(text) <= max_bytes else BadLine("too_long", f"longer than {max_bytes} bytes")
        except BadLine as error:
            yield error


def _converters(schema: Any) -> dict[str, Converter]:
    """Return what makes JSON's values of the cells, for the columns that need it, by their known names."""
    features = _features(schema.metadata)
    converters: dict[str, Converter] = {}
    for name, field in zip(known_names(schema.names), schema, strict=True):
        feature = features.get(field.name)
        if _has_labels(feature):
            converters[name] = partial(_with_names, feature=feature)
        elif _is_written_otherwise(field.type):
            converters[name] = partial(_with_objects, kind=field.type)
    return converters


def _features(metadata: Mapping[bytes, bytes] | None) -> Mapping[str, Any]:
    """Return the columns' features as `datasets` writes them into a schema; {} if it did not write it."""
    try:
        features = parse_value((metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, BadLine):
        return {}
    return features if isinstance(features, Mapping) else {}


def _has_labels(feature: Any) -> bool:
    """Return True for classes with names, and lists of them."""
    if not isinstance(feature, Mapping):
        return isinstance(feature, list) and len(feature) == 1 and _has_labels(feature[0])
    if feature.get("_type") == "ClassLabel":
        return isinstance(feature.get("names"), list)
    return _has_labels(feature.get("feature"))


def _with_names(value: Any, feature: Any) -> Any:
    """Return a class's name for its number, and a list of names for a list; -1 stands for no class."""
    if isinstance(value, list):
        item = feature[0] if isinstance(feature, list) else feature.get("feature")
        return [_with_names(number, item) for number in value]
    if not isinstance(value, int) or not isinstance(feature, Mapping):
        return value
    names = feature.get("names", [])
    if value == -1:
        return None
    return names[value] if 0 <= value < len(names) else value


def _is_written_otherwise(kind: Any) -> bool:
    """Return True for a type with a map or JSON as text in it, which Python does not return as objects."""
    from pyarrow import types

    if types.is_map(kind) or _is_json(kind):
        return True
    if types.is_dictionary(kind):
        return _is_written_otherwise(kind.value_type)
    return any(_is_written_otherwise(kind.field(number).type) for number in range(kind.num_fields))


def _is_json(kind: Any) -> bool:
    return getattr(kind, "extension_name", None) == "arrow.json"


def _with_objects(value: Any, kind: Any) -> Any:
    """Return a value of an Arrow type with its maps as objects and its JSON parsed. Raises `BadLine`."""
    from pyarrow import types

    if value is None:
        return None
    if _is_json(kind):
        return parse_value(value.encode())
    if types.is_map(kind):
        entries = {_key(key): _with_objects(item, kind.item_type) for key, item in value}
        if len(entries) < len(value):
            raise BadLine("duplicate_key", "a map has the same key twice")
        return entries
    if isinstance(value, Mapping):
        return {field.name: _with_objects(value[field.name], field.type) for field in kind}
    if isinstance(value, list):
        return [_with_objects(item, kind.value_type) for item in value]
    return value


def _key(key: Any) -> str:
    """Return a map's key in its JSON form. Raises `BadLine`."""
    value = _json_value(key, MAX_DEPTH)
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _python_value(cell: Any) -> Any:
    """Return the value of an Arrow scalar; None for a time that Python can't represent."""
    from pyarrow.types import is_temporal

    try:
        return cell.as_py()
    except (ValueError, OverflowError):
        if is_temporal(cell.type):
            return None
        raise BadLine(
            "bad_shape", "a cell holds what has no form in JSON, such as text that is not UTF-8"
        ) from None


def _json_value(value: Any, depth: int) -> Any:
    """Return the value in its JSON form, nulls too. Raises `BadLine` for a value that JSON can't represent.

    A null may be a value of the row, or come from Arrow, which gives all rows the same keys. Formats and the
    rule `nulls` distinguish them, as in JSONL.
    """
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise BadLine("not_finite", "a cell holds NaN or infinity")
        return value
    if depth == 0:
        raise BadLine("too_deep", f"nested more than {MAX_DEPTH} deep")
    match value:
        case dict():
            return {key: _json_value(item, depth - 1) for key, item in value.items()}
        case list() | tuple():  # A tuple is an interval.
            return [_json_value(item, depth - 1) for item in value]
        case date() | time():
            return value.isoformat()
        case Decimal() | UUID() | timedelta():
            return str(value)
        case bytes():
            text = value.decode("utf-8", "replace")
            return text if text.encode() == value else {"bytes": len(value)}
    raise BadLine("bad_shape", f"a cell of type {type(value).__name__} has no form in JSON")
