"""The mails in an mbox file, one after the other, as bytes."""

import re
from collections.abc import Iterator
from io import BufferedReader

from pipeline.core.jsonl import BadLine

BEGINS = b"From "  # A line that begins so, after an empty one, may begin a mail.
TIME = re.compile(rb"\d:\d\d")
HEADER = re.compile(rb"[!-9;-~]+:|>From ")


def mails(file: BufferedReader, max_bytes: int) -> Iterator[tuple[int, int, bytes | BadLine]]:
    """Yield the number, the offset and the bytes of each mail. `>From ` is restored to `From `."""
    number = offset = start = size = 0
    lines: list[bytes] = []
    is_blank = True
    following = file.readline(max_bytes)
    while line := following:
        following = file.readline(max_bytes)
        if is_blank and line.startswith(BEGINS) and (not number or _begins_mail(line, following)):
            if number:
                yield number, start, _mail(lines, size, max_bytes)
            number += 1
            start = offset
            size = 0
            lines = []
        elif not number:
            raise BadLine("bad_shape", "a mailbox begins with a line `From `: this file has another format")
        else:
            size += len(line)
            if size <= max_bytes:
                lines.append(line[1:] if line.lstrip(b">").startswith(BEGINS) and line[:1] == b">" else line)
        offset += len(line)
        is_blank = not line.strip(b"\r\n")
    if number:
        yield number, start, _mail(lines, size, max_bytes)


def _begins_mail(line: bytes, following: bytes) -> bool:
    """Return True if a line `From …` begins a mail.

    Some programs don't write `>From` for a line of the text that begins so. Such a line has no time in it and
    no header after it.
    """
    return bool(TIME.search(line)) or bool(HEADER.match(following))


def _mail(lines: list[bytes], size: int, max_bytes: int) -> bytes | BadLine:
    if size > max_bytes:
        return BadLine("too_long", f"a mail of more than {max_bytes} bytes")
    return b"".join(lines)
