"""The rows of an Excel workbook (*.xlsx) as JSON objects, with the texts that its table has as CSV.

The first sheet that is visible and not empty is read. Its first row that is not empty names the columns.
openpyxl returns one row at a time, and has a workbook's different texts in memory.
"""

import datetime
import re
from collections import Counter
from collections.abc import Iterator
from io import BufferedReader
from itertools import islice, repeat
from typing import Any
from zipfile import ZipFile

import orjson

from pipeline.core.jsonl import BadLine
from pipeline.core.text import plural
from pipeline.intake.files.files import growth_limit
from pipeline.intake.files.tables import Columns, Row, columns_of, record_object

MOST_ROWS = 1 << 20  # rows of a sheet, the limit of Excel
LONGEST_CELL = 32_767  # characters of a text that Excel and openpyxl keep; they cut off the rest
PIECE = 1 << 20  # bytes
ZEROS = re.compile(r"00+")  # number format of codes, which are shown with leading zeros
MIDNIGHT = datetime.time()
FORMULA = (b"<f>", b"<f ", b"<f/>")
NO_PACKAGE = "reading *.xlsx needs openpyxl: run `pip install openpyxl`, or save the table as CSV"


def workbook_rows(file: BufferedReader, max_bytes: int, notes: Counter[str]) -> Iterator[Row]:
    """Yield each row below the header. Raises `BadLine` if the rest of the file can't be read.

    `notes` counts `index_column`, as in other tables, and `sheets_not_read`, other sheets that are not empty.
    """
    try:
        import openpyxl
    except ImportError:
        raise BadLine("unknown_container", NO_PACKAGE) from None
    try:
        with ZipFile(file) as archive:
            limit = growth_limit(file)
            if sum(member.file_size for member in archive.infolist()) > limit:
                raise BadLine("expands_too_much", f"unpacks to more than {limit >> 20} MiB: it isn't read")
            has_formulas = _has_formulas(archive)
        book = openpyxl.load_workbook(file, read_only=True, data_only=True)
        formulas = openpyxl.load_workbook(file, read_only=True) if has_formulas else None
        yield from _sheet_rows(book, formulas, max_bytes, notes)
    except BadLine:
        raise
    except Exception as error:  # The libraries raise any exception for a damaged file.
        raise BadLine(
            "broken_container", f"openpyxl can't read this workbook further ({type(error).__name__})"
        ) from None


def sheets_sentences(count: int) -> list[str]:
    """Return a sentence on the sheets that are not empty and not read, if there are any."""
    if not count:
        return []
    return [
        f"{plural(count, 'sheet')} of workbooks not read, only the first that is visible and not empty: save "
        "the others as files of their own"
    ]


def _has_formulas(archive: ZipFile) -> bool:
    """Return True if a sheet may contain a formula. A program may not have written its result."""
    for name in archive.namelist():
        if name.startswith("xl/worksheets/"):
            with archive.open(name) as sheet:
                end = b""
                while piece := sheet.read(PIECE):
                    if any(mark in end + piece for mark in FORMULA):
                        return True
                    end = piece[-3:]
    return False


def _sheet_rows(book: Any, formulas: Any, max_bytes: int, notes: Counter[str]) -> Iterator[Row]:
    """Yield the rows of one sheet. Empty rows between others are yielded as such."""
    for sheet in book.worksheets:
        sheet.reset_dimensions()  # Programs write wrong dimensions, and openpyxl would stop reading there.
    filled = [
        sheet for sheet in book.worksheets if any(map(_is_filled, islice(sheet.iter_rows(), MOST_ROWS)))
    ]
    chosen = next((sheet for sheet in filled if sheet.sheet_state == "visible"), None)
    notes["sheets_not_read"] += len(filled) - (chosen is not None)
    if chosen is None:
        if filled:
            raise BadLine("bad_shape", "all sheets are hidden")
        return
    same_rows: Iterator[Any] = repeat(())
    if formulas:
        same = formulas[chosen.title]
        same.reset_dimensions()
        same_rows = same.iter_rows()
    columns: Columns | None = None
    empty = 0
    for cells, written in zip(chosen.iter_rows(), same_rows, strict=False):
        if not _is_filled(cells) and not _is_filled(written):
            empty += 1
            if empty > MOST_ROWS:
                raise BadLine("broken_container", "the sheet has more rows than Excel allows")
            continue
        if columns is None:
            columns = columns_of([_text(cell) for cell in cells])
            empty = 0
            continue
        for _ in range(empty):
            yield BadLine("blank", "nothing in this row")
        empty = 0
        yield _row(columns, cells, written, max_bytes)
        notes["index_column"] += columns.unnamed > 0


def _unescaped(text: str) -> str:
    """Return the text with the characters that XML can't contain, such as `_x000D_` for CR."""
    from openpyxl.utils.escape import unescape

    return str(unescape(text))


def _is_filled(cells: Any) -> bool:
    return any(cell.value is not None for cell in cells)


def _row(columns: Columns, cells: Any, written: Any, max_bytes: int) -> Row:
    """Return one row's JSON, or the reason why there is none."""
    try:
        for place, cell in enumerate(written):
            has_result = place < len(cells) and cells[place].value is not None
            if cell.data_type == "f" and not has_result:
                raise BadLine(
                    "bad_shape",
                    "a formula has no result: open the workbook in Excel and save it, or write texts",
                )
        texts = [_text(cell) for cell in cells]
        width = columns.unnamed + len(columns.names)
        if any(texts[width:]):
            raise BadLine("bad_shape", "a cell holds something, and its column has no name")
        texts = texts[:width] + [""] * (width - len(texts))
        line = orjson.dumps(record_object(columns, texts))
        return line if len(line) <= max_bytes else BadLine("too_long", f"longer than {max_bytes} bytes")
    except BadLine as error:
        return error


def _text(cell: Any) -> str:
    """Return the text of the cell in a CSV file: a number of leading zeros with them, a date without a time.
    Other formats (per cent, currencies, rounding) are not applied.

    Raises `BadLine` for an error (`#N/A`) and a text that was cut off.
    """
    match cell.value:
        case None:
            return ""
        case str() as text:
            if cell.data_type == "e":
                raise BadLine("bad_shape", f"a cell holds the error {text}")
            if len(text) >= LONGEST_CELL:
                raise BadLine(
                    "bad_shape",
                    f"a cell holds {LONGEST_CELL:,} characters, the most in Excel: the rest is lost",
                )
            return _unescaped(text) if "_x" in text else text
        case bool() as truth:
            return str(truth).upper()
        case int() | float() as number:
            if isinstance(number, float) and not number.is_integer():
                return repr(number)
            digits = len(cell.number_format) if ZEROS.fullmatch(cell.number_format) else 0
            return str(int(number)).zfill(digits)
        case datetime.datetime() as moment if moment.time() == MIDNIGHT:
            return moment.date().isoformat()
        case datetime.date() | datetime.time() as moment:
            return moment.isoformat()
    return str(cell.value)
