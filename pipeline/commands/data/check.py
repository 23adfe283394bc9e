"""Can every row of these files be used? For CI: reads and cleans like stage curate, writes nothing.

quench data check data/raw
"""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pipeline.chat.rows import TRAINED, Kind
from pipeline.config.methods import kinds_sentences
from pipeline.config.params import load_params
from pipeline.config.sections import Curate
from pipeline.core.errors import DataError
from pipeline.core.places import resource
from pipeline.core.text import one_line, plural, safe
from pipeline.stages.curate.reading.containers import raw_lines
from pipeline.stages.curate.reading.files import files_below, refusal
from pipeline.stages.curate.reading.notes import notes_sentences

if TYPE_CHECKING:
    from pipeline.stages.curate.clean import Cleaner

RECIPE = resource("recipes/demo.yaml")
SHOWN = 50  # lines about rejected rows


def files(paths: Sequence[Path], raw: Path) -> Iterator[tuple[Path, str]]:
    """(path, name as in data/raw) of the files named, and of those below the folders named, without hidden
    ones. Raises `DataError`.
    """
    for path in paths:
        try:
            path.stat()
        except OSError as error:
            raise DataError(
                "Q-COMMANDS-016",
                f"{safe(str(path))} is missing or can't be reached ({error.strerror}): name a file or a "
                "folder with chat logs",
            ) from error
        # a link to a file is itself the file
        place = path.resolve() if path.is_dir() else path.parent.resolve() / path.name
        inside = place.relative_to(raw.resolve()) if place.is_relative_to(raw.resolve()) else None
        if not path.is_dir():
            yield path, safe(str(inside or path.name))
        elif contents := files_below(path):
            yield from ((file, safe(str((inside or Path()) / name))) for name, file in contents)
        else:
            raise DataError(
                "Q-COMMANDS-016",
                f"{safe(str(path))} holds no file: name a file or a folder with chat logs",
            )


def settings(params: Path | None, root: Path) -> Curate:
    """What curate takes of the file named, of `root`'s params.yaml or, outside of a project, of the demo's
    recipe. Raises `ConfigError`.
    """
    path = params or root / "params.yaml"
    if params is None and not path.exists() and RECIPE.exists():
        print(f"check: no params.yaml in {root}, so the settings are those of {RECIPE}", file=sys.stderr)
        path = RECIPE
    return load_params(path).curating


def rejects(
    settings: Curate, root: Path, paths: Sequence[Path], tally: Counter[str], notes: Counter[str]
) -> Iterator[dict[str, Any]]:
    """Every row that stage curate would reject on its own account, as a line of rejects.jsonl; `file` is the
    path as the user named it.

    `tally` counts files and rows, see `check_file`; `notes` what is said of the files.
    """
    from pipeline.stages.curate.clean import Cleaner
    from pipeline.stages.curate.inputs import added_tokens, read_names

    lineage, base = root / "models" / "base.json", root / "models" / "base"
    cleaner = Cleaner(
        settings,
        added_tokens(lineage) if lineage.exists() else None,
        base if base.is_dir() else None,
        read_names(root, settings),
    )
    for path, name in files(paths, root / "data/raw"):
        for entry in check_file(path, name, cleaner, tally, notes):
            yield entry | {"file": safe(str(path))}


def check_file(
    path: Path, name: str, cleaner: "Cleaner", tally: Counter[str], notes: Counter[str]
) -> Iterator[dict[str, Any]]:
    """The reject entries of one file, as `data/rejects.jsonl` holds them; none if every row can be used as it
    stands or repaired.

    `tally` counts: `files`, `unread` and `empty` files, `lines`, `usable` lines, and rows by kind and as
    `scored` (with a reward). `notes` are added to.
    """
    from pipeline.stages.curate.clean import CleaningStats, Rejected, file_entry

    tally["files"] += 1
    if why := refusal(path):
        tally["unread"] += 1
        yield file_entry(name, why)
        return
    before = tally["lines"]
    described = notes["description"]
    for line in raw_lines(path, name, max_line_bytes=cleaner.settings.max_line_bytes, notes=notes):
        tally["lines"] += 1
        try:
            rows = cleaner.clean(name, line, CleaningStats(), [])
        except Rejected as rejected:
            yield cleaner.entry(name, line, rejected)
            continue
        tally["usable"] += 1
        tally.update(row["kind"] for row in rows)
        tally["scored"] += sum("reward" in row for row in rows)
    tally["empty"] += tally["lines"] == before and notes["description"] == described


def grouped(entries: Iterable[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield the first entry of each reason in each file, and how many rows of the file have that reason."""
    for _, of_file in groupby(entries, itemgetter("file")):
        first: dict[str, dict[str, Any]] = {}
        counts = Counter[str]()
        for entry in of_file:
            first.setdefault(entry["reason"], entry)
            counts[entry["reason"]] += 1
        yield from ((entry, counts[reason]) for reason, entry in first.items())


def _line(entry: dict[str, Any], rows: int) -> str:
    """Say what is wrong with a row, and with how many more of its file."""
    line = "" if entry["line"] is None else f":{entry['line']}"
    more = f" (and {plural(rows - 1, 'more row')})" if rows > 1 else ""
    return f"{entry['file']}{line}: {entry['reason']}: {one_line(entry['detail'], 300)}{more}"


def main(params: Path | None, root: Path, paths: Sequence[Path], *, everything: bool, as_json: bool) -> int:
    """Name the rows that can't be used, by default the first of each file and reason. Return the exit code,
    which is 3 if there is any.
    """
    curate = settings(params, root)
    for file, what in (
        ("models/base.json", "control tokens are"),
        ("models/base", "lengths and what its chat template shows are"),
    ):
        if not (root / file).exists():
            print(
                f"check: {file} is missing, so {what} not measured: `snakemake base` makes it",
                file=sys.stderr,
            )
    reasons, tally = Counter[str](), Counter[str]()
    notes = Counter[str]()
    found = rejects(curate, root, paths, tally, notes)
    lines = 0
    for entry, rows in ((entry, 1) for entry in found) if everything or as_json else grouped(found):
        reasons[entry["reason"]] += rows
        lines += 1
        if as_json:
            print(json.dumps(entry, ensure_ascii=False))
        elif everything or lines <= SHOWN:
            print(_line(entry, rows))
    out = sys.stderr if as_json else sys.stdout  # what a machine reads stays clean
    print(*(f"check: {sentence}" for sentence in _stats(tally, notes)), sep="\n", file=out)
    if not reasons:
        print("check: every row can be used (duplicates are found by stage curate, over all files)", file=out)
        return 0
    if reasons.total() > min(lines, SHOWN) and not everything and not as_json:
        left = f"… and {lines - SHOWN:,} more reasons of files: " if lines > SHOWN else "check: "
        print(f"{left}--all names every row")
    print(
        f"check: {reasons.total():,} rejected: "
        f"{', '.join(f'{number:,} {reason}' for reason, number in reasons.most_common())}",
        file=out,
    )
    commonest = reasons.most_common(1)[0][0]
    advice = f"check: `quench doctor explain {commonest}` says what a reason means and what to do"
    print(advice, file=sys.stderr)  # the counts stay the last line of what is piped
    return 3


def _stats(tally: Counter[str], notes: Counter[str]) -> list[str]:
    """What was read, in which every file and row is counted once, and what training doesn't do with it."""
    empty = f", {tally['empty']:,} without a row" if tally["empty"] else ""
    if notes["description"]:
        empty += f", {notes['description']:,} only describing a data set"
    untrained = {kind: tally[kind] for kind in get_args(Kind) if kind not in TRAINED}
    return [
        f"{plural(tally['files'], 'file')}: {tally['files'] - tally['unread']:,} read, "
        f"{tally['unread']:,} not read{empty}; {plural(tally['lines'], 'row')}: {tally['usable']:,} usable, "
        f"{tally['lines'] - tally['usable']:,} rejected",
        *notes_sentences(notes),
        *kinds_sentences(untrained, tally["scored"]),
    ]
