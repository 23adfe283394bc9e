"""Settings as text: all of them, those of a new `params.yaml`, or a file's own text with changes."""

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence, Set
from decimal import Decimal
from typing import Any, NamedTuple

from pydantic.fields import FieldInfo

from pipeline.config.params import Params, Read
from pipeline.config.sections.values import Key, group_of, keys_of
from pipeline.core.yaml_readers import Place, is_plain_text

COLUMNS = 100
SMALL = 0.01  # Smaller numbers are written with an exponent: 2.0e-4.
INDENT = "  "
BEHIND = "  # "  # separates a value from a comment in its line


def full_text(params: Params, header: list[str]) -> str:
    """Return every key with its value in `params`, a line each, and `header` as the first comment."""
    values = params.model_dump(mode="json")
    lines = [line for text in header for line in _comment(text, "")]
    lines += [_line(place, field, values) for place, field in keys_of(Params)]
    return "\n".join(lines) + "\n"


def short_text(params: Params, header: list[str], places: Set[Key]) -> str:
    """Return a `params.yaml` of these keys, each with the first words of its comment.

    The comment follows the value if there is room, and is above the line otherwise.
    """
    values = params.model_dump(mode="json")
    lines = [line for text in header for line in _comment(text, "")]
    for place, field in _with_sections(places):
        line = _line(place, field, values)
        if len(place) == 1:
            lines.append("")
        if group_of(field):
            lines.append(line)
            continue
        first, fits = _first_words(field.description or "", COLUMNS - len(line) - len(BEHIND))
        if fits:
            lines.append(f"{line}{BEHIND}{first}")
        else:
            lines += [*_comment(first, INDENT * (len(place) - 1)), line]
    return "\n".join(lines) + "\n"


def _first_words(comment: str, room: int) -> tuple[str, bool]:
    """Return as many whole clauses of a comment as fit into `room` characters, and True if they fit.

    It is at least one clause. Text in brackets is left out.
    """
    first, *clauses = re.sub(r" \([^()]*\)", "", comment).split("; ")
    for clause in clauses:
        if len(first) + len(clause) + 2 > room:
            break
        first = f"{first}; {clause}"
    return first, len(first) <= room


def _with_sections(places: Set[Key] | None) -> Iterator[tuple[Key, FieldInfo]]:
    """Return these keys and the sections that they are in, in the schema's order; all if `places` is None."""
    inside = {place[:end] for place in places or () for end in range(1, len(place) + 1)}
    return ((place, field) for place, field in keys_of(Params) if places is None or place in inside)


def left_out(values: Any, needed: Set[Key] | None = None) -> list[Key]:
    """Return the places (of the keys `needed`, if given, and their sections) that a file's `values` lack.

    Only the outermost are listed: a section, not its keys too.
    """
    places: list[Key] = []
    for place, _ in _with_sections(needed):
        inside = value_at(values, place[:-1])
        if place[:-1] not in places and (inside is None or place[-1] not in inside):
            places.append(place)
    return [place for place in places if not any(place[:end] in places for end in range(1, len(place)))]


class _Edit(NamedTuple):
    """A replacement of the rows from `first` up to, but without, `last` (from 0).

    Of edits at the same row the one with the smaller `order` comes before the others.
    """

    first: int
    order: tuple[int, int]
    last: int
    rows: list[str]


def completed(text: str, read: Read, needed: Set[Key] | None = None, *, overwrite: bool = False) -> str:
    """Return `text`, from which `read` was read, with the missing keys added (of `needed`, if given).

    The rest is unchanged. With `overwrite` the needed keys that are there get the values of `read.params`
    too. The caller has to handle keys that share a line with others.
    """
    end = line_end(text)
    rows = text.splitlines()  # YAML, too, accepts every kind of line end
    completed_rows = text.splitlines(keepends=True)
    if not text.endswith(("\n", "\r")):
        completed_rows = (text + end).splitlines(keepends=True)
    lines = read.lines
    values = read.params.model_dump(mode="json")
    edits: list[_Edit] = []
    if needed and overwrite:
        edits += [_behind(place, value_at(values, place), rows, lines) for place in needed & lines.keys()]
    for number, place in enumerate(left_out(read.values, needed)):
        more = _more_indent(place, rows, lines)
        block = [
            more + line
            for below, field in _with_sections(needed)
            if below[: len(place)] == place
            for line in _entry(below, field, values)
        ]
        after = _end_of_sibling(place, rows, lines)
        # A section's own keys come before the next section.
        order = (-len(place), number)
        if len(place) == 1:
            block = ["", *block]
        edits.append(_Edit(after, order, after, block))
    for edit in sorted(edits, reverse=True):  # reversed, so that line numbers stay valid
        completed_rows[edit.first : edit.last] = [row + end for row in edit.rows]
    return "".join(completed_rows)


def line_end(text: str) -> str:
    """Return the line end that a file's `text` uses."""
    return "\r\n" if "\r\n" in text else "\n"


def value_at(values: Any, place: Key) -> Any:
    """Return the value at a place; None if it is missing."""
    for name in place:
        values = values.get(name) if isinstance(values, dict) else None
    return values


def _behind(place: Key, value: Any, rows: list[str], lines: Mapping[Place, int]) -> _Edit:
    """Return the edit that puts a value behind a key, before the comment in the key's line."""
    name, _, rest = rows[lines[place] - 1].partition(":")
    comment = re.search(r"(\s+#.*)?$", rest)
    row = f"{name}: {as_yaml(value)}{comment[0] if comment else ''}"
    return _Edit(lines[place] - 1, (0, 0), _last_line(place, rows, lines), [row])


def _last_line(place: Key, rows: Sequence[str], lines: Mapping[Place, int]) -> int:
    """Return the number of the last line of the value at a place.

    Comments of the next key are not part of it.
    """
    later = (line for other, line in lines.items() if line > lines[place] and other[: len(place)] != place)
    last = min(later, default=len(rows) + 1) - 1
    while last > lines[place] and (not rows[last - 1].strip() or rows[last - 1].lstrip().startswith("#")):
        last -= 1
    return last


def _end_of_sibling(place: Key, rows: list[str], lines: dict[Place, int]) -> int:
    """Return the number of lines up to the end of the nearest earlier key of the same section."""
    siblings = _siblings(place)
    before = [other for other in siblings[: siblings.index(place)] if other in lines]
    if before:
        return _last_line(before[-1], rows, lines)
    return lines[place[:-1]] if place[:-1] else len(rows)


def _siblings(place: Key) -> list[Key]:
    return [other for other, _ in keys_of(Params) if other[:-1] == place[:-1]]


def _more_indent(place: Key, rows: list[str], lines: dict[Place, int]) -> str:
    """Return the indent of the keys in the section of `place` beyond the one that we write."""
    for row in (rows[lines[other] - 1] for other in _siblings(place) if other in lines):
        return " " * (len(row) - len(row.lstrip(" ")) - len(INDENT) * (len(place) - 1))
    return ""


def _entry(place: Key, field: FieldInfo, values: Any) -> list[str]:
    """Return a key with its comment, or the first line of a section."""
    indent = INDENT * (len(place) - 1)
    return [*_comment(field.description or "", indent), _line(place, field, values)]


def _line(place: Key, field: FieldInfo, values: Any) -> str:
    value = "" if group_of(field) else f" {as_yaml(value_at(values, place))}"
    return f"{INDENT * (len(place) - 1)}{place[-1]}:{value}"


def comment_of(place: Key) -> list[str]:
    """Return the lines of a key's comment, indented."""
    return _comment(dict(keys_of(Params))[place].description or "", INDENT)


def _comment(text: str, indent: str) -> list[str]:
    first = f"{indent}# "
    return textwrap.wrap(
        text,
        COLUMNS,
        initial_indent=first,
        subsequent_indent=first,
        break_long_words=False,
        break_on_hyphens=False,
    )


def change(place: Key, before: Any, after: Any) -> str:
    """Return a setting's values in two files: "train.r: 16 → 8"."""
    return f"{'.'.join(place)}: {as_yaml(value_at(before, place))} → {as_yaml(value_at(after, place))}"


def as_yaml(value: Any) -> str:
    """Return a value on one line that every YAML reader reads the same way."""
    if isinstance(value, str):
        return value if is_plain_text(value) else json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return f"[{', '.join(map(as_yaml, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{as_yaml(name)}: {as_yaml(inner)}' for name, inner in value.items())}}}"
    if isinstance(value, float) and 0 < abs(value) < SMALL:
        exact = Decimal(repr(value))
        return f"{float(exact.scaleb(-exact.adjusted()))!r}e{exact.adjusted()}"
    return json.dumps(value)
