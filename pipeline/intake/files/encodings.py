"""Text in other encodings than UTF-8. A file with a byte order mark is read, any other is reported.

A file of UTF-16 or UTF-32 without a mark is not read; the sentence contains the command that converts it. A
file in a one-byte encoding contains nothing that identifies the encoding.
"""

import codecs
from collections.abc import Iterator
from io import BufferedReader

from pipeline.core.jsonl import BadLine

HEAD = 8  # bytes that determine the encoding
MARKS = {  # The longer ones come first, because UTF-32's begins with UTF-16's.
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
UNMARKED: dict[tuple[bool, ...], str] = {  # True for the nonzero bytes of every four, in ASCII text
    (True, False, True, False): "UTF-16LE",
    (False, True, False, True): "UTF-16BE",
    (True, False, False, False): "UTF-32LE",
    (False, False, False, True): "UTF-32BE",
}
READ = 1 << 16  # bytes at a time


def remedy(encoding: str) -> str:
    """Return the command that converts a file."""
    return f"`iconv -f {encoding} -t UTF-8 FILE > NEW` converts it"


# What Excel writes depends on the country. Nothing in the file tells which it is, but its reader sees it.
NOT_UTF8 = (
    f"if all of the file comes from Windows, {remedy('CP1252')}, with CP1250 instead if it is Polish, Czech, "
    "Hungarian or the like, CP1251 if it is Cyrillic (read a line of NEW); if only some rows do, correct "
    "these, for it would garble the others"
)


def marked(head: bytes) -> str | None:
    """Return the encoding of a byte order mark, or None if it is UTF-8 or there is no mark."""
    return next((name for mark, name in MARKS.items() if head.startswith(mark)), None)


def unmarked(head: bytes) -> str | None:
    """Return the encoding inferred from zero bytes between ASCII characters, or None."""
    first = tuple(byte > 0 for byte in head[:4])
    second = tuple(byte > 0 for byte in head[4:HEAD])
    return UNMARKED.get(first) if first == second else None


def is_foreign(head: bytes) -> bool:
    """Return True if the text can't be read without conversion."""
    return bool(marked(head) or unmarked(head))


def utf8_pieces(file: BufferedReader, encoding: str) -> Iterator[bytes]:
    """Yield the text as UTF-8, without its byte order mark. Raises `BadLine` if it is invalid."""
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        while piece := file.read1(READ):
            yield decoder.decode(piece).encode("utf-8")
        yield decoder.decode(b"", final=True).encode("utf-8")
    except UnicodeError as error:
        raise BadLine("not_utf8", f"the {encoding} text breaks here ({error})") from None


def no_mark(encoding: str) -> BadLine:
    """Return the reason why a file of UTF-16 or UTF-32 without a byte order mark is not read."""
    return BadLine("not_utf8", f"this is {encoding} without a byte order mark: {remedy(encoding)}")
