"""The mails in an mbox file, one after the other, as bytes."""

from collections.abc import Iterator
from io import BufferedReader

from pipeline.core.jsonl import BadLine

BEGINS = b"From "  # a line that begins so, behind an empty one, begins a mail


def mails(file: BufferedReader, max_bytes: int) -> Iterator[tuple[int, int, bytes | BadLine]]:
    """Yield the number, the offset and the bytes of each mail. `>From ` becomes `From ` again."""
    number = offset = start = size = 0
    lines: list[bytes] = []
    is_blank = True
    while line := file.readline(max_bytes):
        if is_blank and line.startswith(BEGINS):
            if number:
                yield number, start, _mail(lines, size, max_bytes)
            number, start, size = number + 1, offset, 0
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


def _mail(lines: list[bytes], size: int, max_bytes: int) -> bytes | BadLine:
    if size > max_bytes:
        return BadLine("too_long", f"a mail of more than {max_bytes} bytes")
    return b"".join(lines)
