"""Plain text, for continued pretraining: a file is a document, and so a row of text.

A long document is read as several rows, each cut after a paragraph, a line or a space, so only the current
piece is in memory. All of them but the last end in an empty segment that is not trained. It marks that the
document continues, so that no end of text is learned.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from io import BufferedReader
from pathlib import PurePosixPath
from typing import Literal

import orjson

from pipeline.core.jsonl import BYTE_ORDER_MARK, BadLine
from pipeline.intake.files.encodings import NOT_UTF8

Style = Literal["bare", "named"]  # With "named", the file's name is the document's first line.

DOCUMENTS = (".txt", ".md")
# Files about the data next to them. To train one, name it in curate.documents.
ABOUT = ("readme", "license", "licence", "notice", "copying", "changelog")
# Endings in front of .txt that mean a file of rows, such as that of chats.jsonl.txt.
OF_ROWS = (".json", ".jsonl", ".ndjson", ".csv", ".tsv")
PIECE = 1 << 18  # bytes; the rule `length` makes at most some thousand parts of a row
PLACES = (b"\n\n", b"\n", b" ")  # places to cut after, the best first


def is_document(name: str) -> bool:
    """Return True for a file that is a document by its name, without .gz or .zst."""
    path = PurePosixPath(name.lower())
    is_about = path.name.partition(".")[0] in ABOUT
    return path.suffix in DOCUMENTS and not is_about and not holds_rows(name)


def holds_rows(name: str) -> bool:
    """Return True for a file of rows that was saved as text, as editors on Windows do."""
    path = PurePosixPath(name.lower())
    return path.suffix in DOCUMENTS and PurePosixPath(path.stem).suffix in OF_ROWS


def style_of(name: str, kind: str, globs: Mapping[str, Style]) -> Style | None:
    """Return the style that `curate.documents` sets for the file; None if it doesn't name it, and for a file
    whose kind contains rows.
    """
    if kind and kind not in DOCUMENTS:
        return None
    # A folder's name matches all files below it.
    patterns = ((f"{glob}*" if glob.endswith("/") else glob, style) for glob, style in globs.items())
    return next((style for glob, style in patterns if fnmatchcase(name, glob)), None)


def document_rows(file: BufferedReader, notes: Counter[str], heading: str = "") -> Iterator[bytes | BadLine]:
    """Yield the rows of one document as JSON. `heading` becomes its first line.

    `notes` counts `bom`, `crlf` (line ends that become one character) and `form_feeds`, which become line
    breaks. Bytes that are not text end the document.
    """
    offset = 0
    for data, is_last in _pieces(file):
        if not offset and data.startswith(BYTE_ORDER_MARK):
            notes["bom"] += 1
        text = _decoded(data, offset)
        if isinstance(text, BadLine):
            yield text
            return
        notes["crlf"] += text.count("\r\n")
        notes["form_feeds"] += text.count("\f")
        text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\f", "\n")
        if not text.strip():
            yield BadLine("blank", "nothing but space here")
        elif is_last:
            yield orjson.dumps({"text": heading + text})
        else:
            goes_on = {"text": "", "label": False}
            yield orjson.dumps({"segments": [{"text": heading + text, "label": True}, goes_on]})
        heading = ""
        offset += len(data)


def _decoded(data: bytes, offset: int) -> str | BadLine:
    """Return the text of a piece, or the reason why it is not text. `offset` is its place in the file."""
    if b"\0" in data:
        return BadLine(
            "unknown_container", f"this is no text: byte {offset + data.index(0)} is zero, as in a program"
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        return BadLine("not_utf8", f"byte {offset + error.start} is not UTF-8: {NOT_UTF8}")


def _pieces(file: BufferedReader) -> Iterator[tuple[bytes, bool]]:
    """Yield the file's bytes in pieces, each with True if it is the last."""
    held = b""
    while True:
        held += file.read(2 * PIECE - len(held))
        if len(held) <= PIECE:
            if held:
                yield held, True
            return
        cut = _place(held)
        yield held[:cut], False
        held = held[cut:]


def _place(data: bytes) -> int:
    """Return the end of the first piece of `data`: at most at `PIECE`, and at least at half of it."""
    for mark in PLACES:
        place = data.rfind(mark, PIECE // 2, PIECE)
        if place >= 0:
            return place + len(mark)
    place = PIECE
    while data[place] & 0xC0 == 0x80 and place > PIECE // 2:  # The place is within a character.
        place -= 1
    return place
