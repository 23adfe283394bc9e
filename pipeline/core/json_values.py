"""The values of a JSON file that is no JSON lines: elements of one array, or values that follow each other.

Each is returned as its bytes, so only one is in memory, whatever the length of the file.
"""

import json
import re
from collections.abc import Iterator
from functools import partial
from io import BufferedReader

import orjson

from pipeline.core.jsonl import BYTE_ORDER_MARK, BadLine

JSON_SPACE = b" \t\r\n"
BLOCK = 1 << 16  # bytes
# The rest of a string from inside it to its end, or to the end of the block.
STRING_REST = re.compile(rb'[^"\\]*+(?>(?:\\.[^"\\]*+)*)(")?', re.DOTALL)
TOKEN = re.compile(rb'"' + STRING_REST.pattern + rb"|[\[\]{},]", re.DOTALL)
QUOTE = ord('"')
COMMA = ord(",")
OPENING = frozenset(b"[{")


def is_json(text: bytes) -> bool:
    """Return True if the text is one strict JSON value."""
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def array_rows(file: BufferedReader, max_bytes: int) -> Iterator[tuple[int, int, bytes | BadLine]]:
    """Yield (number from 1, byte offset, bytes) of each element of a file that begins with `[` (after spaces
    or a byte order mark).

    If the array is broken, the rest of the file is one `BadLine`, because the elements' beginnings are
    unknown.
    """
    number = start = size = 0
    text = bytearray()
    mark = b""
    pieces = _pieces(file)
    for offset, piece, mark in pieces:
        if not size:
            start = offset + len(piece) - len(piece.lstrip(JSON_SPACE))
            piece = piece.lstrip(JSON_SPACE)
        size += len(piece)
        if size <= max_bytes + BLOCK:  # Spaces may follow it.
            text += piece
        if not mark:
            continue
        if mark == b"]" and not size and not number:
            break  # an empty array
        number += 1
        element = bytes(text).rstrip(JSON_SPACE)
        if size > max_bytes + BLOCK or len(element) > max_bytes:
            yield number, start, too_long_row(max_bytes)
        elif mark == b"}" or not _is_grammatical(element):
            yield number, start, BadLine("not_json", "the array is broken here: what follows isn't read")
            return
        else:
            yield number, start, element
        text.clear()
        size = 0
        if mark == b"]":
            break
    if mark != b"]":
        yield number + 1, start, BadLine("not_json", "the array is never closed")
        return
    for offset, piece, _ in pieces:
        rest = piece.lstrip(JSON_SPACE)
        if rest:
            yield (
                number + 1,
                offset + len(piece) - len(rest),
                BadLine("not_json", "something follows the array's end"),
            )
            return


def stream_rows(file: BufferedReader, max_bytes: int) -> Iterator[tuple[int, int, bytes | BadLine]]:
    """Yield (number of its first line, byte offset, bytes) of each of several JSON values that follow each
    other, each on several lines.

    A value that is never closed ends where a line begins another one.
    """
    offset = depth = size = 0
    begin = (0, 0)
    text = bytearray()
    for number, line in enumerate(iter(partial(file.readline, max_bytes + BLOCK), b""), start=1):
        if number == 1 and line.startswith(BYTE_ORDER_MARK):
            line = line.removeprefix(BYTE_ORDER_MARK)
            offset = len(BYTE_ORDER_MARK)
        if depth > 0 and line.startswith(b"{"):
            yield *begin, BadLine("not_json", "the value that begins here is never closed")
            depth = size = 0
            text.clear()
        if not size and line.strip():
            begin = (number, offset)
        if size or line.strip():
            size += len(line)
            text += line if size <= max_bytes + BLOCK else b""
            for token in TOKEN.finditer(line):
                mark = token[0][:1]
                depth += (mark in (b"[", b"{")) - (mark in (b"]", b"}"))
            if depth <= 0:
                is_long = size > max_bytes
                yield *begin, too_long_row(max_bytes) if is_long else bytes(text).strip(JSON_SPACE)
                depth = size = 0
                text.clear()
        offset += len(line)
    if size:
        yield *begin, BadLine("not_json", "the value that begins here is never closed")


def _pieces(file: BufferedReader) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield (offset, bytes, mark) of the array's inside, cut at its own commas and its end (the marks), and
    at the ends of blocks (no mark).

    After the end everything is yielded uncut. Strings are recognized, brackets are counted. The elements are
    not checked to be JSON here.
    """
    depth = 0
    in_string = False
    closed = False
    base = 0
    held = b""
    while block := file.read1(BLOCK):
        block = held + block
        cut = end = 0
        if in_string and (rest := STRING_REST.match(block)):
            end = rest.end()
            in_string = rest[1] is None
        for token in () if closed else TOKEN.finditer(block, end):
            at = token.start()
            first = block[at]
            if first == QUOTE:
                end = token.end()
                in_string = token[1] is None
            elif first in OPENING:
                depth += 1
                cut = at + 1 if depth == 1 else cut
            else:
                depth -= first != COMMA
                closed = not depth
                if closed or (depth == 1 and first == COMMA):
                    yield base + cut, block[cut:at], block[at : at + 1]
                    cut = at + 1
                if closed:
                    break
        held = block[end:] if in_string else b""  # a backslash whose second half is in the next block
        yield base + cut, block[cut : len(block) - len(held)], b""
        base += len(block) - len(held)


def _is_grammatical(element: bytes) -> bool:
    """Return True if the text follows JSON's grammar, so that the array's next comma separates elements."""
    if is_json(element):
        return True
    try:
        json.loads(element.decode("utf-8", "replace"))
    except json.JSONDecodeError:
        return False
    except (ValueError, RecursionError):  # thousands of digits, or of brackets
        return True
    return True


def too_long_row(max_bytes: int) -> BadLine:
    """Return the reason why a row of more bytes is not read."""
    return BadLine("too_long", f"longer than {max_bytes} bytes")
