"""Strict JSONL: one JSON object a line, split on newline bytes only, UTF-8, no NaN, no key twice; written whole."""

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from pipeline.errors import DataError
from pipeline.publish import publishing

MAX_LINE_BYTES = 4 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class BadLine(ValueError):
    """A line that is not a strict JSON object; `code` is the stable reason, the text says more."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def read_raw_lines(file: BinaryIO, max_bytes: int = MAX_LINE_BYTES) -> Iterator[tuple[int, int, bytes | None]]:
    """Yield (line number from 1, byte offset, line without its newline); None for a line over `max_bytes`.

    Splits on b"\\n" alone (str.splitlines would also cut at U+2028, which JSON allows inside strings) and never
    holds more than `max_bytes` of one line. A byte order mark at the start of the file is no part of its first line.
    """
    number, offset = 0, 0
    while piece := file.readline(max_bytes + 1):
        number += 1
        start = offset
        offset += len(piece)
        if len(piece) > max_bytes and not piece.endswith(b"\n"):
            while piece and not piece.endswith(b"\n"):
                piece = file.readline(max_bytes + 1)
                offset += len(piece)
            yield number, start, None
        else:
            yield number, start, piece.removeprefix(BYTE_ORDER_MARK if number == 1 else b"").removesuffix(b"\n")


def parse_line(line: bytes) -> dict[str, Any]:
    """One strict JSON object from a line's bytes; a trailing CR and spaces are allowed. Raises `BadLine`."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadLine("not_utf8", f"byte {error.start} is not UTF-8") from None
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)
        if b"\\ud" in line or b"\\uD" in line:  # only an escape can bring half of a surrogate pair
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        raise BadLine("not_json", f"{error.msg} at character {error.pos + 1}") from None
    except RecursionError:
        raise BadLine("too_deep", "nested too deeply") from None
    except UnicodeEncodeError:
        raise BadLine("lone_surrogate", "a string holds half of a surrogate pair") from None
    except ValueError as error:
        if isinstance(error, BadLine):
            raise
        raise BadLine("not_json", "a number has too many digits") from None  # Python reads integers of up to 4,300
    if not isinstance(value, dict):
        raise BadLine("not_object", f"a JSON object is wanted, this is {type(value).__name__}")
    return value


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file that Quench itself wrote; `DataError` names file and line of a bad one."""
    with path.open("rb") as file:
        for number, _, line in read_raw_lines(file, max_bytes=1 << 30):
            try:
                yield parse_line(line or b"")
            except BadLine as error:
                raise DataError(f"{path}, line {number}: {error}: run the stage that writes it again") from error


def write_rows(target: Path, rows: Iterable[dict[str, Any]]) -> int:
    """Publish `rows` as JSONL (UTF-8, keys in the order given) and give their number."""
    count = 0
    with publishing(target) as aside, aside.open("w", encoding="utf-8", newline="\n") as file:
        for row in rows:
            file.write(to_line(row))
            count += 1
    return count


def to_line(row: dict[str, Any]) -> str:
    """One row as a line of strict JSON with its newline."""
    return json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise BadLine("duplicate_key", "a key is written twice")
    return value


def _no_constant(name: str) -> Any:
    raise BadLine("not_finite", f"{name} is not JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise BadLine("not_finite", "a number is too large")
    return value
