"""The elements of a JSON array of any length, read in blocks: only the element at hand is in memory."""

import json
import re
from collections.abc import Iterator
from io import BufferedReader

import orjson

from pipeline.core.jsonl import BadLine

BLOCK = 1 << 16  # bytes
# from inside a string to its end, or the block's
STRING_REST = re.compile(rb'[^"\\]*+(?>(?:\\.[^"\\]*+)*)(")?', re.DOTALL)
TOKEN = re.compile(rb'"' + STRING_REST.pattern + rb"|[\[\]{},]", re.DOTALL)
QUOTE, COMMA, OPENING = ord('"'), ord(","), frozenset(b"[{")
JSON_SPACE = b" \t\r\n"


def array_rows(file: BufferedReader, max_bytes: int) -> Iterator[tuple[int, int, bytes | BadLine]]:
    """(number from 1, byte offset, bytes) of each element of a file that begins with `[` (after spaces or a
    byte order mark).

    Where the array is broken, the rest of the file is one `BadLine`: nobody knows where elements begin there.
    """
    number = start = size = 0
    text, mark = bytearray(), b""
    pieces = _pieces(file)
    for offset, piece, mark in pieces:
        if not size:
            start = offset + len(piece) - len(piece.lstrip(JSON_SPACE))
            piece = piece.lstrip(JSON_SPACE)
        size += len(piece)
        if size <= max_bytes + BLOCK:  # spaces may follow it
            text += piece
        if not mark:
            continue
        if mark == b"]" and not size and not number:
            break  # an empty array
        number += 1
        element = bytes(text).rstrip(JSON_SPACE)
        if size > max_bytes + BLOCK or len(element) > max_bytes:
            yield number, start, BadLine("too_long", f"longer than {max_bytes} bytes")
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
        if behind := piece.lstrip(JSON_SPACE):
            yield (
                number + 1,
                offset + len(piece) - len(behind),
                BadLine("not_json", "something follows the array's end"),
            )
            return


def _pieces(file: BufferedReader) -> Iterator[tuple[int, bytes, bytes]]:
    """(offset, bytes, mark) of the array's inside, cut at its own commas and its end (the marks), and at
    blocks' ends (no mark).

    Behind the end whatever follows comes uncut. Strings count as such, brackets by their number: whether the
    elements are JSON is for others to say.
    """
    depth, in_string, closed, base, held = 0, False, False, 0, b""
    while block := file.read1(BLOCK):
        block = held + block
        cut = end = 0
        if in_string and (rest := STRING_REST.match(block)):
            end, in_string = rest.end(), rest[1] is None
        for token in () if closed else TOKEN.finditer(block, end):
            at = token.start()
            first = block[at]
            if first == QUOTE:
                end, in_string = token.end(), token[1] is None
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
    """Whether its text follows JSON's grammar, so that the array's next comma is one; it may break any other
    rule.
    """
    try:
        orjson.loads(element)
    except orjson.JSONDecodeError:
        try:
            json.loads(element.decode("utf-8", "replace"))
        except json.JSONDecodeError:
            return False
        except (ValueError, RecursionError):  # thousands of digits, or of brackets
            return True
    return True
