"""Mappings in `curate.fields` that do nothing, because no row of a file has their sources; targets that get
nothing; the columns next to texts that no mapping reads, and those that call a row bad.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from pipeline.config.field_sources import ROLES_KEY, Source, fields_of, paths_of
from pipeline.config.sections import Curate
from pipeline.core.jsonl import BadLine
from pipeline.core.text import listed, most, one_line, plural
from pipeline.intake.files.containers import RawLine, parsed, raw_lines
from pipeline.intake.rows.fields import EXCHANGE
from pipeline.intake.rows.transform import Transform, named_keys
from pipeline.stages.curate.inputs import by_glob

ROWS_SEEN = 50  # rows of a file whose keys are named
KEYS_SHOWN = 8  # columns that are named
MOST_STATES = 12  # words of a key beside rows, above which it hardly states a verdict
KEY_SHOWN = 40  # characters of a path


def lacking(stated: Mapping[str, Any] | None, mapped: Counter[str]) -> list[str]:
    """Return the targets of a mapping whose source is missing in all rows that `mapped` counts.

    The list is empty if no row is counted.
    """
    if stated is None or not mapped:
        return []
    fields = fields_of(stated)
    counted = {target: EXCHANGE.get(target, target) for target in _sourced(fields.row)}
    counted |= {target: target for target in _sourced(fields.turn)}
    counted |= {ROLES_KEY: ROLES_KEY} if fields.roles else {}
    return [target for target, name in counted.items() if not mapped[name]]


def fields_sentences(files: Mapping[str, Mapping[str, Any]], settings: Curate) -> list[str]:
    """Return a sentence for each file that has rows and lacks the source of a target, by the report's entries
    of the files.
    """
    sentences = []
    for name, file in files.items():
        stated = by_glob(name, settings.fields, None)
        if file.get("fields_lacking") and stated:
            sentences.append(f"{name}: {_what_lacks(stated, file['fields_lacking'])}")
    return sentences


def columns_sentences(files: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a sentence per file of texts with untrained columns, and per file with rows that a key calls
    bad, or may call so, by the report's entries of the files.
    """
    sentences = []
    for name, file in files.items():
        if file.get("left_out_of_texts"):
            sentences.append(f"{name}: {left_out_of_texts(file['left_out_of_texts'])}")
        if file.get("marked_bad"):
            sentences.append(f"{name}: {called_bad(file['marked_bad'])}")
        states = undecided(file.get("states", {}))
        if states:
            sentences.append(f"{name}: {states}")
    return sentences


def left_out_of_texts(columns: Mapping[str, int]) -> str:
    """Return a sentence on the columns next to a text that are not trained, and on how to train them."""
    return (
        f"the texts are read without {counted(columns)}; a mapping in curate.fields makes a column their "
        "answer, {user: text, assistant: COLUMN}, or puts it into them, "
        'text: "{title}\\n\\n{text}"'
    )


def called_bad(verdicts: Mapping[str, int]) -> str:
    """Return a sentence on the verdicts beside rows, and on how to train these rows."""
    return (
        f"a key beside the row calls it bad: {counted(verdicts)}; curate.marked_bad rejects or keeps such "
        "rows, and a key that is null in curate.fields is no verdict"
    )


def undecided(states: Mapping[str, int]) -> str:
    """Return a sentence on words beside rows that are known as no verdict; "" if there are none or too
    many.
    """
    if not 0 < len(states) <= MOST_STATES:
        return ""
    return (
        f"rows with {counted(states)} are trained: these words are not known as reasons to throw a row out. "
        "If one of them is, take its rows out by curate.transform, or write `discarded` in its place"
    )


def counted(columns: Mapping[str, int]) -> str:
    """Return the commonest names with their rows, and the number of the others."""
    shown = [f"{name} ({plural(rows, 'row')})" for name, rows in most(columns)[:KEYS_SHOWN]]
    if len(columns) > KEYS_SHOWN:
        shown.append(f"{len(columns) - KEYS_SHOWN} more")
    return listed(shown)


def file_problem(
    path: Path, name: str, stated: Mapping[str, Any], targets: Iterable[str], transform: Transform | None
) -> str:
    """Return a sentence on a mapping whose sources are missing in a file, and the keys of the rows that it
    gets: those of `transform`, if there is one.
    """
    rows = "its rows" if transform is None else f"the rows that {transform.name} makes of it"
    keys = named_keys(keys_of_rows(path, name, transform)) or "of no object"
    return f"{path}: {_what_lacks(stated, targets)}; {rows} have the keys {keys}"


def keys_of_rows(path: Path, name: str, transform: Transform | None) -> list[str]:
    """Return the keys of the first rows that a mapping gets, in the order in which they appear."""
    lines = raw_lines(path, name, max_line_bytes=1 << 22, notes=Counter())
    rows = islice(_rows(lines, name, transform), ROWS_SEEN)
    return list(dict.fromkeys(key for row in rows for key in row))


def _rows(lines: Iterable[RawLine], name: str, transform: Transform | None) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            row = parsed(line.data)
            yield from [row] if transform is None else transform.rows(row, line.source(name))
        except BadLine:
            continue


def _what_lacks(stated: Mapping[str, Any], targets: Iterable[str]) -> str:
    fields = fields_of(stated)
    problems = []
    for target in targets:
        of_row = target in fields.row
        unit = "row" if of_row else "turn"
        if target == ROLES_KEY:
            problems.append(f"no turn has a role or an author that roles names ({', '.join(fields.roles)})")
            continue
        source = (fields.row if of_row else fields.turn)[target]
        paths = " or ".join(one_line(path, KEY_SHOWN) for path in paths_of(source))
        constant = " (a constant is written {text: …})" if " " in paths and target == "system" else ""
        problems.append(f"no {unit} has {paths} for {target}{constant}")
    return listed(problems)


def _sourced(sources: Mapping[str, Source]) -> list[str]:
    return [target for target, source in sources.items() if paths_of(source)]
