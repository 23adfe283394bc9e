"""Strict JSONL: one object a line, split on newline bytes only, UTF-8, no NaN, no key twice.

A file is published complete or not at all.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from pipeline.core.errors import DataError
from pipeline.core.publish import publishing
from pipeline.core.special_files import need_file

MAX_LINE_BYTES = 4 << 20
MAX_DEPTH = 32  # nested lists and objects, the row's own object included
# Range of 64 bits, signed or unsigned. Other readers round integers outside it.
INTEGERS = (-(2**63), 2**64 - 1)
CONTAINERS = (dict, list)
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")  # Unicode category Cc without tab, LF and CR
CONTROL_ESCAPE = re.compile(rb"\\[ubf]")  # orjson's escapes of U+0000 to U+001F, except tab, LF and CR
CONTROLLED = "a string holds a control character other than tab and line break"
# A character of two or more bytes in UTF-8, each of which was taken for one of Latin-1, as Facebook does.
BYTES_AS_LATIN_1 = re.compile(r"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")
MISREAD = (
    "a string is UTF-8 that was read as Latin-1, which makes control characters of some letters: write it "
    "again as `text.encode('latin-1').decode()` has it"
)
C1_CONTROL = re.compile(rb"\xc2[\x80-\x9f]")  # U+0080 to U+009F in UTF-8
# orjson's form of a float of 1e16 or more, and so of an integer that is too big for it
BIG_FLOAT = re.compile(rb"\de\+\d")


class BadLine(ValueError):
    """A line that is not a strict JSON object. `code` is the stable reason; the text gives details."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the form in which it is passed between processes."""
        return type(self), (self.code, str(self))


def read_raw_lines(
    file: BinaryIO, max_bytes: int = MAX_LINE_BYTES
) -> Iterator[tuple[int, int, bytes | None]]:
    """Yield (line number from 1, byte offset, line without its newline); None for a line over `max_bytes`.

    Only b"\\n" separates lines (str.splitlines would also cut at U+2028, which JSON allows inside strings).
    At most `max_bytes` of one line are in memory. A byte order mark at the start of the file is not part of
    the first line.
    """
    number = 0
    offset = 0
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
            if number == 1:
                piece = piece.removeprefix(BYTE_ORDER_MARK)
            yield number, start, piece.removesuffix(b"\n")


def parse_line(line: bytes) -> dict[str, Any]:
    """Return the strict JSON object in a line's bytes; a trailing CR and spaces are allowed.

    Raises `BadLine`.
    """
    return _object(parse_value(line))


def parse_value(line: bytes) -> Any:
    """Return any one strict JSON value. Raises `BadLine`."""
    value = _parse_plain(line)
    return _parse_strictly(line) if value is None else value


def parse_object(data: bytes) -> dict[str, Any]:
    """Return a JSON object that Quench itself wrote; its texts may contain any character.

    Raises `BadLine`.
    """
    return _object(_parse_json(data))


def parse_record(data: bytes) -> dict[str, Any]:
    """Return an object like `parse_object`, nested no deeper than a report is. Raises `BadLine`."""
    value = parse_object(data)
    if is_deeper_than(value, MAX_DEPTH):
        raise BadLine("too_deep", f"nested more than {MAX_DEPTH} deep")
    return value


def parse_lax(text: str | bytes) -> Any:
    """Return the value of JSON that another program wrote, without restrictions. Raises `BadLine`."""
    try:
        return json.loads(text)
    except RecursionError:
        raise BadLine("too_deep", "the JSON is nested too deep to be read") from None
    except ValueError as error:
        raise BadLine("not_json", f"this is no JSON ({error})") from None


def object_in(text: str | bytes) -> dict[str, Any] | None:
    """Return the object in JSON of another program; None if it can't be read or is another kind of value."""
    try:
        value = parse_lax(text)
    except BadLine:
        return None
    return value if isinstance(value, dict) else None


def lax_text(value: Any) -> str:
    """Return a value of `parse_lax`, or of orjson, as JSON. Raises `BadLine` if it is nested too deep."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise BadLine("too_deep", "a value is nested too deep to be written as JSON") from None


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        kind = "null" if value is None else type(value).__name__
        raise BadLine("not_object", f"a JSON object is needed, this is {kind}")
    return value


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file that Quench itself wrote.

    It may contain model output, control characters included.

    Raises `DataError`, which names file and line of a bad row.
    """
    need_file(path)
    with path.open("rb") as file:
        for number, _, line in read_raw_lines(file, max_bytes=1 << 30):
            try:
                value = parse_object(line or b"")
            except BadLine as error:
                raise DataError(
                    "Q-CORE-006", f"{path}, line {number}: {error}: run the stage that writes it again"
                ) from error
            yield value


def write_rows(target: Path, rows: Iterable[dict[str, Any]]) -> int:
    """Publish `rows` as JSONL (UTF-8, keys in the order given) and return their number."""
    count = 0
    with publishing(target) as aside, aside.open("w", encoding="utf-8", newline="\n") as file:
        for row in rows:
            file.write(to_line(row))
            count += 1
    return count


def to_line(row: dict[str, Any]) -> str:
    """Return one row as a line of strict JSON with its newline."""
    return json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"


def can_be_read(row: dict[str, Any]) -> bool:
    """Return True if the line of a row can be read again: it contains no control character, for example."""
    try:
        parse_line(dump_line(row))
    except BadLine:
        return False
    return True


def dump_line(row: dict[str, Any]) -> bytes:
    """Return a line like `to_line` without spaces, ten times as fast.

    The values have to come from `parse_line`: NaN would become null.
    """
    return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)


def _parse_plain(line: bytes) -> Any:
    """Return the value if `_parse_strictly` would certainly return the same one, otherwise None.

    orjson keeps the last of equal keys, converts big integers to floats and accepts control characters. All
    three are visible if its result is written again.
    """
    try:
        value = orjson.loads(line)
        written = orjson.dumps(value)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):  # orjson reads deeper nesting than it writes.
        return None
    is_doubtful = (
        # A key was written twice (or a quote as an escape, which would hide that).
        line.count(b'"') != written.count(b'"')
        or b"\\u0022" in line
        # A control character.
        or (CONTROL_ESCAPE.search(written) and CONTROL_ESCAPE.search(written.replace(b"\\\\", b"")))
        or b"\x7f" in written
        or (b"\xc2" in written and C1_CONTROL.search(written))
        # A big integer.
        or (b"+" in written and BIG_FLOAT.search(written))
        or (written.count(b"[") + written.count(b"{") > MAX_DEPTH and is_deeper_than(value, MAX_DEPTH))
    )
    return None if is_doubtful else value


def is_deeper_than(value: Any, depth: int) -> bool:
    """Return True if the list or object has more than `depth` levels, itself included."""
    inner = value.values() if type(value) is dict else value
    return depth == 0 or any(type(item) in CONTAINERS and is_deeper_than(item, depth - 1) for item in inner)


def _parse_strictly(line: bytes) -> Any:
    """Return any one JSON value if a training row may contain all of it; this parser decides.

    Raises `BadLine`.
    """
    value = _parse_json(line)
    level = [value]
    depth = 0
    while level:
        kinds = set(map(type, level))
        words = "\n".join(item for item in level if type(item) is str) if str in kinds else ""
        if CONTROL.search(words):
            raise BadLine("control_character", MISREAD if BYTES_AS_LATIN_1.search(words) else CONTROLLED)
        if int in kinds and any(
            type(item) is int and not INTEGERS[0] <= item <= INTEGERS[1] for item in level
        ):
            raise BadLine("number_out_of_range", "an integer needs more than 64 bits")
        inner = [item for item in level if type(item) in CONTAINERS]
        depth += bool(inner)
        if depth > MAX_DEPTH:
            raise BadLine("too_deep", f"nested more than {MAX_DEPTH} deep")
        level = list(
            chain.from_iterable(chain(item, item.values()) if type(item) is dict else item for item in inner)
        )
    return value


def _parse_json(line: bytes) -> Any:
    """Return any one value of strict JSON, whatever its content. Raises `BadLine`."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadLine("not_utf8", f"byte {error.start} is not UTF-8") from None
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)
        if b"\\ud" in line or b"\\uD" in line:  # Half of a surrogate pair can only come from an escape.
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" at")  # "Unterminated string starting at"
        raise BadLine("not_json", f"{what} at character {error.pos + 1}") from None
    except RecursionError:
        raise BadLine("too_deep", f"nested more than {MAX_DEPTH} deep") from None
    except UnicodeEncodeError:
        raise BadLine("lone_surrogate", "a string holds half of a surrogate pair") from None
    except BadLine:
        raise
    except ValueError:  # Python reads up to 4,300
        raise BadLine("number_out_of_range", "an integer has thousands of digits") from None
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise BadLine("duplicate_key", "a key is written twice")
    return value


def _no_constant(name: str) -> Any:
    raise BadLine("not_finite", f"{name} is not JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise BadLine("not_finite", "a number is too large")
    return value
