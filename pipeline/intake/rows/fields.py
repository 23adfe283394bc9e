"""Rows with other key names: applies a mapping of `curate.fields` to a row before its format is detected.

The keys that a mapping reads, the keys that stay and the doubtful ones among these depend only on the row's
keys. Most rows of a file have the same keys, so this is decided once and cached.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from operator import itemgetter
from typing import Any, NamedTuple

from pipeline.chat.rows import BadRow
from pipeline.config.field_sources import (
    ASSISTANT,
    LISTS_OF_TURNS,
    ROLES_KEY,
    USER,
    Constant,
    Path,
    Source,
    Template,
    fields_of,
    paths_of,
)
from pipeline.core.jsonl import BadLine, parse_value
from pipeline.core.text import listed, one_line
from pipeline.intake.rows.cells import cell_value
from pipeline.intake.rows.formats import FORMAT_KEYS, TURN_KEYS, group_of
from pipeline.intake.rows.letter_case import known_names, spelling
from pipeline.intake.rows.values import is_by_columns, items
from pipeline.intake.wire.shapes import KINDS

# function from a row to the value of a target; None if it has none
Reader = Callable[[Mapping[str, Any]], Any]
Piece = tuple[str, tuple[str, Reader] | None]  # pieces of a template: a text, then a path and its reader
MAPPED = ""  # key for rows that were mapped, counted next to the targets
UNMAPPED = "-"  # key for rows without any source
KEPT_PLANS = 1024  # sets of keys whose plan is cached
EXCHANGE = {USER: "prompt", ASSISTANT: "completion"}
TURN_FIELDS = (*LISTS_OF_TURNS, *sorted(TURN_KEYS))
TEXTS = ("answers", "segments", "text")  # keys that no other format reads or misses next to its own keys
# Other names of a turn's keys. If there were two, one of them would not be read.
SAME_IN_TURNS = {"role": ("from",), "content": ("value", "text")}
REMEDY = "map it too or set it to null in curate.fields"
NAME_SHOWN = 40  # characters of a key


class Plan(NamedTuple):
    """Plan for rows (or turns) with the same keys."""

    readers: tuple[tuple[str, Reader], ...]  # target and its reader
    constants: tuple[tuple[str, str], ...]
    kept: tuple[str, ...]  # keys that stay
    # keys among these, each with the target or the format's key that it may be
    doubtful: tuple[tuple[str, str], ...]
    renamed: tuple[str, ...] | None  # the keys by their new names, if the mapping only renames keys
    counted: tuple[str, ...]  # names counted for a row with all targets


class RowMapper:
    """One mapping, applied to the rows of one file, in whose cells all values are text if it `is_table`."""

    def __init__(self, stated: Mapping[str, Any], format: str, *, is_table: bool) -> None:
        self.fields = fields_of(stated)
        self.format = format  # format set in `curate.formats`
        self.is_table = is_table
        row = {EXCHANGE.get(target, target): source for target, source in self.fields.row.items()}
        self.sources = row
        self.written = {EXCHANGE.get(target, target): target for target in self.fields.row}
        self.needs_source = any(paths_of(source) for source in row.values())
        self.of_turns = bool(self.fields.turn or self.fields.roles)
        self.plan = lru_cache(KEPT_PLANS)(partial(make_plan, row, FORMAT_KEYS, self.fields.dropped))
        beside = frozenset(other for others in SAME_IN_TURNS.values() for other in others)
        turn = {target: source for target, source in self.fields.turn.items() if target not in EXCHANGE}
        self.turn_plan = lru_cache(KEPT_PLANS)(partial(make_plan, turn, beside, ()))
        sides = {target: source for target, source in self.fields.turn.items() if target in EXCHANGE}
        side_plan = lru_cache(KEPT_PLANS)(partial(make_plan, sides, frozenset[str](), ()))
        self.side_plan = side_plan if sides else None

    def apply(self, row: dict[str, Any], counts: Counter[str]) -> dict[str, Any]:
        """Return the row with the keys that formats know, or the row itself if it has none of the sources.

        `counts` counts the targets whose source the row has, and the row as `MAPPED` or `UNMAPPED`. Raises
        `BadRow` if a key that stays contradicts the mapping.
        """
        plan = self.plan(tuple(row))
        if plan.renamed is not None and not self.is_table and None not in row.values():  # The usual case.
            new = dict(zip(plan.renamed, row.values(), strict=True))
            counts.update(plan.counted)
            new.update(plan.constants)
            if self.of_turns:
                self._map_turns(new, counts)
            return new
        return self._applied(row, plan, counts)

    def _applied(self, row: dict[str, Any], plan: Plan, counts: Counter[str]) -> dict[str, Any]:
        """Return the result of `apply`, target by target."""
        new: dict[str, Any] = {}
        for target, read in plan.readers:
            value = read(row)
            if value is not None:
                new[target] = value
        if not new and self.needs_source:
            counts[UNMAPPED] += 1
            return row
        counts.update([*new])
        counts[MAPPED] += 1
        if self.is_table:
            new = {key: cell_value(key, value) if type(value) is str else value for key, value in new.items()}
        new.update(plan.constants)
        if plan.doubtful:
            self._check(row, new, plan.doubtful)
        for key in plan.kept:
            new.setdefault(key, row[key])
        if self.of_turns:
            self._map_turns(new, counts)
        return new

    def explained(self, problem: str, row: Mapping[str, Any]) -> str:
        """Return the error of a row that fits no format, with the sources of the mapping that it lacks."""
        missing = []
        for target, read in self.plan(tuple(row)).readers:
            if read(row) is None:
                paths = one_line(" and ".join(paths_of(self.sources[target])), NAME_SHOWN)
                missing.append(f"{self.written[target]} from {paths}")
        if not missing:
            return problem
        return f"{problem}; curate.fields reads {listed(missing)}, which the row lacks or has empty"

    def _check(
        self, row: Mapping[str, Any], new: Mapping[str, Any], doubtful: Iterable[tuple[str, str]]
    ) -> None:
        """Check keys that stay and that formats read. Raises `BadRow` for one that would be read instead of a
        mapped key, or that would be dropped because of it.
        """
        stay = {known: key for key, known in doubtful if row[key] is not None}
        for known, key in stay.items():
            if known in new:
                raise BadRow(
                    "unsupported_field", f"{_quoted(key)} stays beside what is mapped to {known}: {REMEDY}"
                )
        mine = group_of(frozenset(FORMAT_KEYS.intersection(new)))
        if mine is None or self.format != "auto":
            return
        both = group_of(frozenset(FORMAT_KEYS.intersection((*new, *stay))))
        hiding = [key for known, key in stay.items() if both != mine and both and known in both[0]]
        hidden = [key for known, key in stay.items() if known in TEXTS and row[key]]
        if hiding or (hidden and mine[1] != "text"):
            key = (hiding or hidden)[0]
            what = f"hides the mapping to {listed(mine[0])}" if hiding else "would be lost beside the mapping"
            raise BadRow("unsupported_field", f"{_quoted(key)} {what}: {REMEDY}")

    def _map_turns(self, row: dict[str, Any], counts: Counter[str]) -> None:
        """Rename the keys of the turns in a row's lists of turns."""
        for field in TURN_FIELDS:
            turns = row.get(field)
            if is_by_columns(turns) or (isinstance(turns, str) and field in LISTS_OF_TURNS):
                turns = items(turns, field)
            if not isinstance(turns, list):
                continue
            if self.side_plan:
                turns = [side for turn in turns for side in self._sides(turn, counts)]
            row[field] = [
                self._turn(turn, f"{field} {number}", counts) if isinstance(turn, dict) else turn
                for number, turn in enumerate(turns, start=1)
            ]

    def _sides(self, turn: Any, counts: Counter[str]) -> list[Any]:
        """Return the turns of an item that contains an exchange: a question, its answer or both."""
        if not isinstance(turn, dict) or not self.side_plan:
            return [turn]
        plan = self.side_plan(tuple(turn))
        texts = [(side, read(turn)) for side, read in plan.readers]
        turns = [{"role": side, "content": words} for side, words in texts if words is not None]
        counts.update({side for side, words in texts if words is not None})
        return turns or [turn]

    def _turn(self, turn: dict[str, Any], where: str, counts: Counter[str]) -> dict[str, Any]:
        plan = self.turn_plan(tuple(turn))
        values = [(target, read(turn)) for target, read in plan.readers]
        new = {target: value for target, value in values if value is not None}
        counts.update([*new])
        new.update(plan.constants)
        for key, known in plan.doubtful:
            target = next((name for name, others in SAME_IN_TURNS.items() if known in others), known)
            if target in new and turn[key] not in (None, new[target]):
                raise BadRow(
                    "unsupported_field",
                    f"{where}: {_quoted(key)} stays beside what is mapped to {target}: {REMEDY}",
                )
        for key in plan.kept:
            new.setdefault(key, turn[key])
        if self.fields.roles:
            self._rename_role(new, counts)
        return new

    def _rename_role(self, turn: dict[str, Any], counts: Counter[str]) -> None:
        """Give a turn the role to which its author or its role is renamed. The author has priority.

        A role may be a number, true or false, such as those of `incoming`.
        """
        key = "from" if "from" in turn and "role" not in turn else "role"
        for name in (turn.get("author"), turn.get(key)):
            stated = json.dumps(name) if isinstance(name, int) else name
            renamed = self.fields.roles.get(stated.strip().lower()) if isinstance(stated, str) else None
            if renamed:
                turn[key] = renamed
                counts[ROLES_KEY] += 1
                return


def make_plan(
    sources: Mapping[str, Source], doubted: frozenset[str], dropped: Iterable[str], names: tuple[str, ...]
) -> Plan:
    """Return the plan for objects with the keys `names`. `doubted` are keys that, if they stay, may contain
    the same as a target.
    """
    spelled = _spelled(names)
    readers = []
    constants = []
    new_names: dict[str, str] = {}
    used = {spelled.get(spelling(key), key) if key not in names else key for key in dropped}
    for target, source in sources.items():
        if isinstance(source, Constant):
            constants.append((target, source.text))
            continue
        keys = {path: _first_key(path, names, spelled) for path in paths_of(source)}
        used.update(key for key, _ in keys.values() if key is not None)
        if isinstance(source, Path) and keys[source.name][0] is not None and not keys[source.name][1]:
            new_names[str(keys[source.name][0])] = target
        readers.append((target, _reader(source, keys)))
    kept = tuple(name for name in names if name not in used)
    doubtful = tuple(
        (key, known)
        for key, known in zip(kept, known_names(kept), strict=True)
        if known in doubted or known in sources
    )
    only_renames = len(new_names) == len(readers) == len(names) - len(kept) and readers and not doubtful
    renamed = tuple(new_names.get(name, name) for name in names) if only_renames else None
    counted = (*(target for target, _ in readers), MAPPED)
    return Plan(tuple(readers), tuple(constants), kept, doubtful, renamed, counted)


def _spelled(names: Iterable[str]) -> dict[str, str]:
    """Return {a spelling: the only key with this spelling}."""
    counts = Counter(map(spelling, names))
    return {spelling(name): name for name in names if counts[spelling(name)] == 1}


def _first_key(
    path: str, names: tuple[str, ...], spelled: Mapping[str, str]
) -> tuple[str | None, tuple[str, ...]]:
    """Return the first key of a path in the row, and the rest of the path. A key that contains dots itself
    has priority over a shorter one.
    """
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        key = ".".join(parts[:length])
        known_key = key if key in names else spelled.get(spelling(key))
        if known_key is not None:
            return known_key, tuple(parts[length:])
    return None, ()


def _reader(source: Source, keys: Mapping[str, tuple[str | None, tuple[str, ...]]]) -> Reader:
    readers = {path: _path_reader(*place) for path, place in keys.items()}
    if isinstance(source, Template):
        return partial(
            _fill,
            [(literal, None if path is None else (path, readers[path])) for literal, path in source.pieces],
        )
    (reader,) = readers.values()
    return reader


def _path_reader(key: str | None, rest: tuple[str, ...]) -> Reader:
    if key is None:
        return _nothing
    return partial(_walk, key, rest) if rest else itemgetter(key)


def _nothing(row: Mapping[str, Any]) -> None:
    """Return None: the row has no such key."""


def _walk(key: str, rest: tuple[str, ...], row: Mapping[str, Any]) -> Any:
    """Return the value at a path below a key; None if there is none.

    Text is parsed if it is JSON, as in tables.
    """
    return _below(row[key], rest)


def _below(value: Any, parts: tuple[str, ...]) -> Any:
    if not parts or value is None:
        return value
    if isinstance(value, str) and value.lstrip().startswith(("{", "[")):
        try:
            value = parse_value(value.encode("utf-8", "surrogatepass"))
        except BadLine:
            return None
    if isinstance(value, list):
        index = int(parts[0]) if parts[0].isascii() and parts[0].isdigit() else len(value)
        return _below(value[index], parts[1:]) if index < len(value) else None
    if not isinstance(value, dict):
        return None
    for length in range(len(parts), 0, -1):
        key = ".".join(parts[:length])
        if key in value:
            return _below(value[key], parts[length:])
    return None


def _fill(pieces: Iterable[Piece], row: Mapping[str, Any]) -> str | None:
    """Return a template's text; None if the row has none of its keys."""
    texts = []
    is_empty = True
    is_full = True
    for literal, place in pieces:
        texts.append(literal)
        if not place:
            continue
        path, read = place
        value = read(row)
        if value is None:
            is_full = False
        else:
            is_empty = False
            texts.append(_text(value, path))
    if is_empty:
        return None
    # Text between an empty column and the end is removed.
    return "".join(texts) if is_full else "".join(texts).strip()


def _text(value: Any, path: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict | list):
        raise BadRow(
            "content_not_text",
            f"{_quoted(path)} is {KINDS[type(value)]}, and a template of curate.fields needs text",
        )
    return json.dumps(value)


def _quoted(key: str) -> str:
    return one_line(key, NAME_SHOWN)
