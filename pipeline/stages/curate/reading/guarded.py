"""The texts in files that `curate.decontaminate` names: strings in rows, paragraphs of plain text."""

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from pipeline.core.errors import DataError
from pipeline.core.jsonl import BadLine, read_raw_lines
from pipeline.stages.curate.reading.containers import parsed, raw_lines
from pipeline.stages.curate.reading.files import READ, opened, refusal

PLAIN_SUFFIXES = (".txt", ".md")
MAX_TEXT_BYTES = 1 << 28  # of one line


def read_texts(path: Path) -> Iterator[tuple[int, str]]:
    """(line or row, text): every string of a data file, every paragraph of plain text. Raises `DataError`."""
    if not path.is_file():
        raise DataError(
            "Q-CURATE-006",
            f"{path}, which curate.decontaminate names, is no file: correct the name or remove it",
        )
    if path.suffix.lower() in PLAIN_SUFFIXES:
        with opened(path) as file:
            yield from _paragraphs(path, file)
    elif refusal(path):
        raise DataError(
            "Q-CURATE-006",
            f"{path}, which curate.decontaminate names, can't be read: only {READ}, and plain text in *.txt "
            "and *.md, are read",
        )
    else:
        yield from _strings_of_rows(path)


def _strings_of_rows(path: Path) -> Iterator[tuple[int, str]]:
    for number, _, line in raw_lines(path, path.name, max_line_bytes=MAX_TEXT_BYTES, notes=Counter()):
        try:
            value = parsed(line)
        except BadLine as error:
            if error.code == "blank":
                continue
            raise DataError(
                "Q-CURATE-007",
                f"{path}, line {number}: {error}: curate.decontaminate needs a JSON object in every line: "
                "fix or remove it",
            ) from error
        yield from ((number, text) for text in _strings(value))


def _paragraphs(path: Path, file: BinaryIO) -> Iterator[tuple[int, str]]:
    first, paragraph = 0, bytearray()
    lines = ((number, line) for number, _, line in read_raw_lines(file, MAX_TEXT_BYTES))
    for number, line in chain(lines, [(0, b"")]):
        if line is None:
            raise DataError(
                "Q-CURATE-007",
                f"{path}, line {number}: longer than {MAX_TEXT_BYTES} bytes: curate.decontaminate needs "
                "paragraphs in a text file",
            )
        if line.strip():
            first = first or number
            paragraph += line + b"\n"
        elif paragraph:
            yield first, paragraph.decode("utf-8", "replace")
            first, paragraph = 0, bytearray()


def _strings(value: Any) -> Iterator[str]:
    """Every string in a JSON value, keys not."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)
