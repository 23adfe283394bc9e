"""Settings for the files in data/raw, inputs of the rules from the base and data/guard, and the texts that
`curate.decontaminate` names in data/guard: strings in rows, paragraphs of plain text.
"""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from pipeline.config.sections import Curate
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.jsonl import BadLine, read_raw_lines
from pipeline.core.text import quoted, safe
from pipeline.intake.files.containers import parsed, raw_lines
from pipeline.intake.files.documents import is_document
from pipeline.intake.files.files import PACKED_SUFFIXES, READ, opened, refusal

Value = TypeVar("Value")
PLAIN_SUFFIXES = (".txt", ".md")
DOCUMENTS = "documents"  # domain of text files that are not in a folder
# Name of a folder or file with rows that are not meant for training, perhaps with a number and endings.
HELD_OUT = re.compile(r"([^/]*[-_. ])?(validation|valid|val|dev|test|eval)([-_ ]?\d[^/.]*)?(\.[^/]*)?")
NAMES_SHOWN = 5
MAX_TEXT_BYTES = 1 << 28  # bytes of one line


def cleaner_arguments(
    root: Path, settings: Curate
) -> tuple[Curate, tuple[str, ...], Path | None, tuple[str, ...], Path, str | None]:
    """Return the arguments of `Cleaner` for the project below `root`. Raises `DataError`."""
    base = root / "models/base"
    lineage = root / "models/base.json"
    return (
        settings,
        added_tokens(lineage),
        base if base.is_dir() else None,
        read_names(root, settings),
        root / "data/guard",
        no_chats(lineage),
    )


def added_tokens(lineage: Path) -> tuple[str, ...]:
    """Return the tokenizer's added tokens except blank ones. No text may contain them, because they would act
    as control tokens.
    """
    try:
        tokens = json.loads(lineage.read_text(encoding="utf-8"))["added_tokens"]
        return tuple(token for token in tokens if token.strip())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise DataError(
            "Q-CURATE-003",
            f"{lineage} is missing or has no list added_tokens: run `python -m pipeline base` first",
        ) from None


def no_chats(lineage: Path) -> str | None:
    """Return why only texts can be trained on the base, from `models/base.json`; None if chats can be."""
    reason = json.loads(lineage.read_text(encoding="utf-8")).get("no_chats")
    return None if reason is None else str(reason)


def read_names(root: Path, settings: Curate) -> tuple[str, ...]:
    """Return the names to redact, one a line of the file that the settings name. Raises `DataError`."""
    if settings.names is None:
        return ()
    path = root / "data/guard" / settings.names
    try:
        # The form that rows have when names are searched.
        text = unicodedata.normalize("NFC", path.read_text(encoding="utf-8-sig"))
        return tuple(name.strip() for name in text.splitlines() if name.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            "Q-CURATE-005",
            f"{path}, which curate.names asks for, can't be read ({error}): fix the file, or set "
            "curate.names to null",
        ) from error


def by_glob(file: str, values: Mapping[str, Value], default: Value) -> Value:
    """Return the setting for a file below data/raw: the first matching glob's value, or the default."""
    return next((value for glob, value in values.items() if matches(file, glob)), default)


def matches(file: str, glob: str) -> bool:
    """Return True if a setting's glob matches this file below data/raw. A glob that ends in "/" matches all
    files below that folder.

    Both are composed, because macOS has names with accents in pieces, and a keyboard types them in one.
    """
    pattern = f"{glob}*" if glob.endswith("/") else glob
    return fnmatchcase(unicodedata.normalize("NFC", file), unicodedata.normalize("NFC", pattern))


def check_globs(key: str, globs: Iterable[str], names: list[str]) -> None:
    """Raise `ConfigError` for a glob of setting `key` that is not the first match of any file in `names`."""
    before = list[str]()
    for glob in globs:
        matched = {name for name in names if matches(name, glob)}
        if not matched:
            examples = safe(", ".join(names[:3]) + (", …" if len(names) > 3 else ""), 200)
            raise ConfigError(
                "Q-CURATE-008",
                f"{key} names {quoted(glob)}, which no file below data/raw matches (there: {examples}): "
                "correct the glob or remove it",
            )
        if all(any(matches(name, other) for other in before) for name in matched):
            raise ConfigError(
                "Q-CURATE-009",
                f"{key} names {quoted(glob)}, but globs before it match all its files and the first counts: "
                "put it before them",
            )
        before.append(glob)


def domain_of(file: str) -> str:
    """Return the domain of rows without one: the folder below data/raw, or the file's name without endings.

    Text files that are not in a folder are one domain, because each is a single document.
    """
    folder, slash, _ = file.partition("/")
    if slash:
        return folder
    unpacked = next((file.removesuffix(end) for end in PACKED_SUFFIXES if file.endswith(end)), file)
    return DOCUMENTS if is_document(unpacked) else file.partition(".")[0] or file


def held_out_sentences(files: Iterable[str]) -> list[str]:
    """Return a sentence on the files that are held out by their names, if there are others too."""
    names = list(files)
    held_out = [name for name in names if any(map(HELD_OUT.fullmatch, name.lower().split("/")))]
    if not held_out or len(held_out) == len(names):
        return []
    others = f" and {len(held_out) - NAMES_SHOWN:,} more" if len(held_out) > NAMES_SHOWN else ""
    return [
        f"{safe(', '.join(held_out[:NAMES_SHOWN]))}{others}: held out by name, but all rows are mixed and "
        "split anew. To keep a file's rows, and those that share text with it, out of training, move it to "
        "data/guard and name it in curate.decontaminate"
    ]


def read_texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line or row, text): every string of a data file, every paragraph of plain text.

    Raises `DataError`.
    """
    if not path.is_file():
        raise DataError(
            "Q-CURATE-006",
            f"{path}, which curate.decontaminate names, is not a file: correct the name or remove it",
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
    for line in raw_lines(path, path.name, max_line_bytes=MAX_TEXT_BYTES, notes=Counter()):
        number = line.number
        try:
            value = parsed(line.data)
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
    first = 0
    paragraph = bytearray()
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
            try:
                text = paragraph.decode("utf-8")
            except UnicodeDecodeError:
                raise DataError(
                    "Q-CURATE-007",
                    f"{path}: the paragraph in line {first} is not UTF-8, so no row would be found to share "
                    "its words: curate.decontaminate needs UTF-8 (`iconv -t utf-8` converts the file)",
                ) from None
            yield first, text
            first = 0
            paragraph = bytearray()


def _strings(value: Any) -> Iterator[str]:
    """Yield every string in a JSON value except keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)
