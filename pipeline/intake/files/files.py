"""The files below data/raw: their list, why `curate` does not read some of them, and how one is opened.

gzip and Zstandard are unpacked with bounded growth, and UTF-16 becomes UTF-8. A file that breaks or grows too
large raises `BadLine`.
"""

import codecs
import errno
import gzip
import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from io import BufferedReader, BytesIO, RawIOBase
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

from pipeline.core.errors import DataError
from pipeline.core.git_lfs import POINTER, REMEDY
from pipeline.core.json_values import JSON_SPACE, is_json
from pipeline.core.jsonl import BYTE_ORDER_MARK, BadLine
from pipeline.core.special_files import is_users_data, not_listed, trouble, unreadable
from pipeline.core.text import plural, quoted, safe
from pipeline.intake.files.columns import table_rows
from pipeline.intake.files.documents import ABOUT, DOCUMENTS, Style, holds_rows, is_document, style_of
from pipeline.intake.files.encodings import HEAD, marked, no_mark, unmarked, utf8_pieces
from pipeline.intake.files.misnamed import REFUSED, kind_inside, refuse
from pipeline.intake.files.saved_folders import refusal_beside_state

JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
TEXT_TABLES = (".csv", ".tsv")
ARROW = (".arrow", ".feather")
PACKED_TABLES = (".parquet", ".xlsx", *ARROW)
ARCHIVE = ".tar"
ZIP = ".zip"
DATABASE = ".vscdb"  # Cursor's database
MAILBOX = ".mbox"
# Members of archives that are read. Other tables need random access.
STREAMED = (*JSON_SUFFIXES, *TEXT_TABLES, *DOCUMENTS, MAILBOX)
PACKED_SUFFIXES = {".gz": ".gz", ".zst": ".zst", ".zstd": ".zst"}  # packing of JSON, CSV, TSV and tar
SHORT_ARCHIVES = {".tgz": ".gz", ".tzst": ".zst"}  # suffixes for a tar and its packing
READ = (
    "*.jsonl, *.ndjson, *.json, *.csv, *.tsv, *.txt, *.md, *.mbox and *.tar of these, plain or with .gz or "
    ".zst, *.parquet, *.arrow, *.feather, *.xlsx, *.zip, and Cursor's *.vscdb"
)
ALWAYS_ALLOWED = 256 << 20  # bytes that any file may unpack to
MAX_GROWTH = 200  # multiple of its size on disk that a larger file may unpack to; text rarely reaches 20
GZIP_READ = 1 << 16
ZSTD_FED = 512  # bytes; 4 of them can unpack to 128 KiB, and the library unpacks everything that it is fed
ZSTD_WINDOW = 128 << 20  # bytes; `zstd -T0 --ultra -22` needs as much
SNIFFED = 4096  # bytes that must include a JSON file's first character
# Beginning of a web page, or of an error of a service that answers in XML.
PAGE = re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype\b|html\b|head\b|body\b|\?xml\b)", re.IGNORECASE)
PAGE_HEAD = 512  # bytes that must include the beginning
# Endings of files that are not read, and how their owner can convert them.
REMEDIES = {
    "it holds a document with a layout: save its text as *.txt or *.md": (
        ".pdf", ".doc", ".docx", ".odt", ".rtf", ".epub", ".ppt", ".pptx",
    ),
    "it is a workbook: save it as *.xlsx or *.csv": (".xls", ".xlsm", ".xlsb", ".ods", ".numbers"),
    "it is packed, and not with gzip, Zstandard, tar or zip: unpack it": (
        ".bz2", ".xz", ".lzma", ".lz4", ".br", ".7z", ".rar",
    ),
    "it holds tables of a program: write its rows as *.parquet or *.jsonl": (
        ".db", ".sqlite", ".sqlite3", ".duckdb", ".pkl", ".pickle", ".npy", ".npz", ".h5", ".orc", ".avro",
    ),
    "it holds no text that is read: move it away": (
        ".png", ".jpg", ".jpeg", ".gif", ".webp", ".heic", ".svg", ".mp3", ".wav", ".m4a", ".mp4", ".mov",
    ),
}  # fmt: skip
BEGINS_ARRAY = re.compile(
    rb'\[[ \t\r\n]*+(?:[\]\[{"]|\Z|(?:-?\d++(?:\.\d++)?(?:[eE][-+]?\d++)?|true|false|null|NaN|-?Infinity)[ '
    rb"\t\r\n]*+(?:[,\]]|\Z))"
)


@dataclass(frozen=True)
class Content:
    """The text of a file, or of a member of an archive, which can be opened again."""

    name: str
    kind: str  # kind by `suffixes`
    opened: Callable[[], AbstractContextManager[BufferedReader]]


def raw_files(raw: Path, documents: Mapping[str, Style]) -> list[tuple[str, Path]]:
    """Return the `files_below` data/raw.

    Raises `DataError` also if none of them can be read. `documents` are those of `curate.documents`.
    """
    files = files_below(raw)
    if not any(suffixes(name)[0] or document_style(name, documents) for name, _ in files):
        others = ""
        if files:
            name, path = files[0]
            others = (
                f" (it holds {plural(len(files), 'file')}, but none that is read; {name}: {refusal(path)})"
            )
        raise DataError(
            "Q-CURATE-001",
            f"no data in {raw}{others}: put JSONL there (or `quench data demo` writes an example)",
        )
    return files


def files_below(top: Path) -> list[tuple[str, Path]]:
    """Return (name below `top`, path) of every file, sorted by name.

    Hidden ones (`.gitkeep`) and DVC's notes about files (`chats.jsonl.dvc`) are not data. Links to folders
    aren't followed. Raises `DataError` if a folder can't be listed, and if two names are the same in UTF-8.
    """
    files: list[tuple[str, Path]] = []
    for folder, inner, names in os.walk(top, onerror=not_listed):
        if not os.access(folder, os.X_OK):  # Its names can be listed, but its files can't be opened.
            unreadable(folder, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
        links = [name for name in inner if Path(folder, name).is_symlink()]
        inner[:] = [name for name in inner if not name.startswith(".")]
        for path in (Path(folder, name) for name in filter(is_users_data, names + links)):
            files.append((safe(str(path.relative_to(top))), path))
    files.sort()
    for (name, first), (other, second) in pairwise(files):
        if name == other:
            raise DataError(
                "Q-CURATE-002",
                f"{os.fsencode(first)!r} and {os.fsencode(second)!r} would have one name in the reports: "
                "rename one",
            )
    return files


def document_style(name: str, documents: Mapping[str, Style]) -> Style | None:
    """Return the style that `curate.documents` sets for a file below data/raw; None if it doesn't name it."""
    return style_of(name, suffixes(name)[0], documents)


def refusal(path: Path, style: Style | None = None) -> BadLine | None:
    """Return the reason why a complete file isn't read, or None if it is.

    `style` is set if it is named as a document.
    """
    why = trouble(path)
    if why:
        return BadLine("unknown_container", f"this is not a readable file: {why}")
    if path.is_dir():
        return BadLine(
            "unknown_container",
            "this is a link to a folder, which is not followed" if path.is_symlink() else "this is a folder",
        )
    kind, _ = suffixes(path.name)
    if kind in ARROW:
        return refusal_beside_state(path)
    if kind in DOCUMENTS and not style:
        return _refusal_inside(path)
    if kind or style:
        return None
    if path.name.lower().partition(".")[0] in ABOUT:
        return BadLine(
            "unknown_container",
            "a file of this name says something about others: name it in curate.documents to train it",
        )
    if holds_rows(path.name):
        return BadLine(
            "unknown_container",
            f"it seems to hold rows: take the ending {path.suffix} off, or name it in curate.documents",
        )
    return BadLine("unknown_container", _remedy(path) or f"only files {READ} are read")


def _refusal_inside(path: Path) -> BadLine | None:
    """Return the reason why a file that is named as a document isn't read: it holds a chat or a table."""
    kind = kind_in(content_of(path, path.name))
    return refuse(kind) if kind in REFUSED else None


def kind_in(content: "Content") -> str:
    """Return the `kind_inside` of a text file; "" if it can't be read, which is said when its rows are."""
    with suppress(BadLine, OSError), content.opened() as file:
        return kind_inside(file)
    return ""


def _remedy(path: Path) -> str:
    """Return a remedy for a file whose ending is not read; "" if none is known."""
    ending = path.suffix.lower()
    for remedy, endings in REMEDIES.items():
        if ending in endings:
            return remedy
    if not _is_text(path):
        return ""
    glob = quoted(f"*{path.suffix}" if path.suffix else path.name)
    return (
        f"it is text, which curate.documents: {{{glob}: named}} trains as it stands; rows are read from "
        f"files {READ}"
    )


def _is_text(path: Path) -> bool:
    """Return True if a file begins with text."""
    with opened(path) as file:
        head = file.read(SNIFFED)
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return bool(marked(head))
    return bool(head) and b"\0" not in head


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """Yield the file, open for reading bytes. Raises `DataError` if the machine can't open it."""
    try:
        file = path.open("rb")
    except OSError as error:
        unreadable(path, error)
    with file:
        yield file


def size(path: Path) -> int:
    """Return the file's size on disk in bytes. Raises `DataError` if the machine can't open it."""
    with opened(path) as file:
        return os.fstat(file.fileno()).st_size


def suffixes(name: str) -> tuple[str, str]:
    """Return the container (.json for JSON, "" if unknown) and its packing as suffixes: (".json", ".gz")."""
    *_, first, last = ["", "", *PurePosixPath(name.lower()).suffixes]
    if last in SHORT_ARCHIVES:
        return ARCHIVE, SHORT_ARCHIVES[last]
    if last in PACKED_SUFFIXES:
        kind = first
        packing = PACKED_SUFFIXES[last]
    else:
        kind = last
        packing = ""
    if kind in JSON_SUFFIXES:
        return ".json", packing
    if kind in DOCUMENTS:
        bare = name.lower().removesuffix(last) if packing else name
        return (kind, packing) if is_document(bare) else ("", "")
    is_read = kind in (*TEXT_TABLES, ARCHIVE, MAILBOX) or (
        kind in (*PACKED_TABLES, ZIP, DATABASE) and not packing
    )
    return (kind, packing) if is_read else ("", "")


def is_table(name: str) -> bool:
    """Return True for a file whose rows are the records of a table, by its name."""
    kind, _ = suffixes(name)
    return kind in (*TEXT_TABLES, *PACKED_TABLES)


def content_of(path: Path, name: str) -> Content:
    """Return the content of a file that is not an archive."""
    kind, packing = suffixes(name)
    return Content(name, kind, partial(_opened_text, path, kind, packing))


@contextmanager
def _opened_text(path: Path, kind: str, packing: str) -> Iterator[BufferedReader]:
    with opened(path) as file:
        need_no_page(file, kind)
        yield unpacked(file, packing)


def is_page(head: bytes) -> bool:
    """Return True if a file with this beginning is a web page, or a service's answer in XML."""
    return bool(PAGE.match(head))


def need_no_page(file: BufferedReader, kind: str) -> None:
    """Raise `BadLine` for a web page, which a download may return instead of a file of rows."""
    if kind not in DOCUMENTS and is_page(file.peek(PAGE_HEAD)):
        raise BadLine(
            "unknown_container",
            "this is a page of the web (HTML or XML), perhaps a log-in or an error, and not what its name "
            "says: download the file itself again (on the hub the address has /resolve/, not /blob/)",
        )


def unpacked(file: BufferedReader, packing: str, limit: int | None = None) -> BufferedReader:
    """Return the bytes inside a file packed with ".gz", ".zst" or "" (none), converted to UTF-8 if its byte
    order mark names another encoding.

    They are at most `limit`, by default the file's `growth_limit`. Opening and reading raise `BadLine`.
    """
    limit = growth_limit(file) if limit is None else limit
    need_content(file)
    inside = file
    if packing:
        pieces = _gzip_pieces(file) if packing == ".gz" else _zstd_pieces(file)
        inside = BufferedReader(Pieces(pieces, limit), GZIP_READ)
    head = inside.peek(HEAD)[:HEAD]
    encoding = unmarked(head)
    if encoding:
        raise no_mark(encoding)
    encoding = marked(head)
    if encoding:
        return BufferedReader(Pieces(utf8_pieces(inside, encoding), limit), GZIP_READ)
    return inside


def need_content(file: BufferedReader) -> None:
    """Raise `BadLine` for a Git LFS pointer, which replaces a file."""
    if file.peek(len(POINTER)).startswith(POINTER):
        raise BadLine("broken_container", f"this is a pointer of Git LFS: {REMEDY}")


def layout_of(content: Content, max_bytes: int, notes: Counter[str]) -> str:
    """Return the `layout_in` of a content."""
    try:
        with content.opened() as file:
            return layout_in(file, max_bytes, notes)
    except BadLine:  # The error occurs again, and is reported, when the rows are read.
        return "lines"


def layout_in(file: BufferedReader | BytesIO, max_bytes: int, notes: Counter[str]) -> str:
    """Return `array` or `object` if the file is such a value on several lines, `stream` if several objects
    follow each other so, `lines` otherwise.

    An `array` or a table by columns may also be on one line. At most 2 * (SNIFFED + max_bytes) bytes are
    read.
    """
    head = file.read(SNIFFED)
    notes["bom"] += head.startswith(BYTE_ORDER_MARK)
    head = head.removeprefix(BYTE_ORDER_MARK).lstrip(JSON_SPACE)
    if not head.startswith((b"[", b"{")):
        return "lines"
    line = head[: head.find(b"\n") + 1] or head + file.readline(max_bytes)
    rest = head[len(line) :]
    if is_json(line):
        if (rest + file.read(SNIFFED)).strip(JSON_SPACE):
            return "lines"
        if head.startswith(b"["):
            return "array"
        return "lines" if table_rows(line) is None else "object"
    if head.startswith(b"["):
        row_follows = line.endswith(b"\n") and _is_row(rest + file.read(max_bytes))
        return "array" if BEGINS_ARRAY.match(line) and not row_follows else "lines"
    text = line + rest + file.read(max_bytes)
    if len(text) <= max_bytes and is_json(text):
        return "object"
    return "stream" if _begins_stream(text) else "lines"


def _begins_stream(text: bytes) -> bool:
    """Return True if the text begins with an object on several lines, and another follows it."""
    words = text.decode("utf-8", "replace")
    try:
        _, end = json.JSONDecoder().raw_decode(words)
    except (ValueError, RecursionError):
        return False
    return "\n" in words[:end] and words[end:].lstrip().startswith("{")


def _is_row(text: bytes) -> bool:
    """Return True if the first nonblank line is a row: an object that is not an element of an array."""
    line, _, rest = text.lstrip(JSON_SPACE).partition(b"\n")
    return line.startswith(b"{") and is_json(line) and not rest.lstrip(JSON_SPACE).startswith((b",", b"]"))


def growth_limit(file: BufferedReader) -> int:
    """Return the number of bytes that the file may unpack to."""
    return max(ALWAYS_ALLOWED, MAX_GROWTH * os.fstat(file.fileno()).st_size)


def too_large(limit: int) -> BadLine:
    """Return the reason why a file that unpacks to more than `limit` bytes is not read to its end."""
    return BadLine("expands_too_much", f"unpacks to more than {limit >> 20} MiB: it isn't read on")


class Pieces(RawIOBase):
    """Byte strings, one after the other, as a file of at most `limit` bytes."""

    def __init__(self, pieces: Iterator[bytes], limit: int) -> None:
        self.pieces = pieces
        self.limit = limit
        self.piece = memoryview(b"")
        self.total = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.piece:
            piece = next(self.pieces, None)
            if piece is None:
                return 0
            self.piece = memoryview(piece)
            self.total += len(piece)
            if self.total > self.limit:
                raise too_large(self.limit)
        count = min(len(buffer), len(self.piece))
        buffer[:count] = self.piece[:count]
        self.piece = self.piece[count:]
        return count


def _gzip_pieces(file: BufferedReader) -> Iterator[bytes]:
    """Yield the bytes of all members of the file."""
    try:
        with gzip.GzipFile(fileobj=file) as members:
            while piece := members.read1(GZIP_READ):
                yield piece
    except (OSError, EOFError, zlib.error) as error:
        raise BadLine("broken_container", f"the gzip data breaks here ({error})") from None


def _zstd_pieces(file: BufferedReader) -> Iterator[bytes]:
    """Yield the bytes of all frames of the file."""
    import zstandard  # Most files don't need it.

    library = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW)
    frame = None
    try:
        while fed := file.read(ZSTD_FED):
            while fed:
                frame = frame or library.decompressobj()
                yield frame.decompress(fed)
                fed = frame.unused_data
                if frame.eof:
                    frame = None
    except zstandard.ZstdError as error:
        raise BadLine("broken_container", f"the Zstandard data breaks here ({error})") from None
    if frame is not None:
        raise BadLine("broken_container", "the Zstandard data ends in the middle")
