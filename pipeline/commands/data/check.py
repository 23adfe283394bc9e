"""Check that every row of these files can be used. For CI: reads and cleans like stage curate. Writes
nothing, unless --write puts a mapping of other names into params.yaml.

quench data check data/raw
"""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pipeline.chat.rows import TRAINED, Kind
from pipeline.chat.template_probe import SHOWING_TOOLS
from pipeline.commands.data.file_check import UNMAPPED, FileCheck, place_of
from pipeline.commands.data.mapping import Proposed, sentences, write
from pipeline.commands.own_code import untracked_sentences
from pipeline.config.methods import kinds_sentences
from pipeline.config.params import Params, load_params
from pipeline.config.sections import Curate
from pipeline.core.errors import DataError
from pipeline.core.places import resource
from pipeline.core.text import one_line, plural, safe
from pipeline.intake.files.files import files_below
from pipeline.intake.files.members import Unread, unread_members, without_names
from pipeline.intake.files.notes import notes_sentences
from pipeline.stages.curate.answers import few_answers, labels_of, near_equals_sentences, several_answers
from pipeline.stages.curate.called_tools import calls_sentences
from pipeline.stages.curate.inputs import by_glob, held_out_sentences
from pipeline.stages.curate.mapped import called_bad, file_problem, lacking, left_out_of_texts, undecided

if TYPE_CHECKING:
    from pipeline.stages.curate.clean import Cleaner

RECIPE = resource("recipes/demo.yaml")
SHOWN = 50  # lines about rejected rows
READINGS = 20  # files whose readings are listed


def files(paths: Sequence[Path], raw: Path) -> Iterator[tuple[Path, str]]:
    """Yield (path, name as in data/raw) of the named files, and of those below the named folders, without
    hidden ones. Raises `DataError` for a path that is missing or a folder without a file.
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
        # A link to a file counts as the file itself.
        place = path.resolve() if path.is_dir() else path.parent.resolve() / path.name
        inside = place.relative_to(raw.resolve()) if place.is_relative_to(raw.resolve()) else None
        if not path.is_dir():
            yield path, safe(str(inside or path.name))
            continue
        contents = files_below(path)
        if not contents:
            raise DataError(
                "Q-COMMANDS-016",
                f"{safe(str(path))} holds no file: name a file or a folder with chat logs",
            )
        yield from ((file, safe(str((inside or Path()) / name))) for name, file in contents)


def settings(params: Path | None, root: Path) -> Curate:
    """Return the settings of curate in the named file, in `root`'s params.yaml or, outside of a project, in
    the demo's recipe. Raises `ConfigError`.
    """
    path = params or root / "params.yaml"
    if params is None and not path.exists() and RECIPE.exists():
        print(f"check: no params.yaml in {root}, so the settings are those of {RECIPE}", file=sys.stderr)
        path = RECIPE
    return load_params(path).curating


def cleaner_of(settings: Curate, root: Path) -> "Cleaner":
    """Return the rules of stage curate below `root`, without those of a base that does not exist yet."""
    from pipeline.stages.curate.clean import Cleaner
    from pipeline.stages.curate.inputs import added_tokens, no_chats, read_names

    lineage = root / "models" / "base.json"
    base = root / "models" / "base"
    return Cleaner(
        settings,
        added_tokens(lineage) if lineage.exists() else None,
        base if base.is_dir() else None,
        read_names(root, settings),
        root / "data/guard",
        no_chats(lineage) if lineage.exists() else None,
    )


def grouped(entries: Iterable[dict[str, Any]]) -> list[tuple[dict[str, Any], int]]:
    """Return a file's first entry of each reason, with the number of rows with that reason."""
    first: dict[str, dict[str, Any]] = {}
    counts = Counter[str]()
    for entry in entries:
        first.setdefault(entry["reason"], entry)
        counts[entry["reason"]] += 1
    return [(entry, counts[reason]) for reason, entry in first.items()]


def _line(entry: dict[str, Any], rows: int) -> str:
    """Return a line about a rejected row, with the number of further rows like it in the file."""
    more = f" (and {plural(rows - 1, 'more row')})" if rows > 1 else ""
    return f"{place_of(entry)}: {entry['reason']}: {one_line(entry['detail'], 300)}{more}"


@dataclass
class Options:
    """Options of the output, and of a mapping that is written."""

    everything: bool = False  # lists every row
    as_json: bool = False
    write: bool = False
    guess: int | None = None  # number of the guess, if none is certain


@dataclass
class Outcome:
    """Counts and sentences on all files."""

    names: list[str] = field(default_factory=list)  # files as in data/raw
    tally: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    archives: dict[str, Unread] = field(default_factory=dict)  # members that are not read
    reasons: Counter[str] = field(default_factory=Counter)
    lines: int = 0  # lines about rejected rows, printed or left out
    readings: list[str] = field(default_factory=list)  # formats and kinds that each file's rows are read as
    # columns of texts that are not read, lists of answers, and columns that call rows bad
    columns: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)  # files that give no row, each with the reason
    stops: list[FileCheck] = field(default_factory=list)  # files at which stage curate would stop
    faults: list[str] = field(default_factory=list)  # faults of mappings
    answers: Counter[str] = field(default_factory=Counter)  # rows by answer, as long as they are few
    scorer: str = ""  # sentence on how few answers are scored, if that is not chosen
    untrainable: str = ""  # sentence on the rows that can be used, but not with this base
    proposed: list[Proposed] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """Return the exit code: 3 if there is a row that can't be used, or not with this base, or a mapping
        that does nothing.
        """
        return 3 if self.reasons or self.faults or self.untrainable else 0


def main(params: Path | None, root: Path, paths: Sequence[Path], options: Options) -> int:
    """List the rows that can't be used, by default the first of each file and reason, and propose a mapping
    for those that fit no format. Return the exit code: 3 if there is any row that can't be used.
    """
    for name, what in (
        ("models/base.json", "control tokens are"),
        ("models/base", "lengths and what its chat template shows are"),
    ):
        if not (root / name).exists():
            print(
                f"check: {name} is missing, so {what} not measured: `snakemake base` makes it",
                file=sys.stderr,
            )
    file = params or root / "params.yaml"
    for sentence in untracked_sentences(load_params(file), root) if file.exists() else []:
        print(f"check: {sentence}", file=sys.stderr)
    outcome, cleaner = _check(params, root, paths, options)
    out = sys.stderr if options.as_json else sys.stdout
    if outcome.proposed and not options.as_json:
        print(*sentences(outcome.proposed, cleaner.redactor.scrub), sep="\n")
    if not options.write or not outcome.proposed:
        return outcome.exit_code
    params_file = params or root / "params.yaml"
    scrub = cleaner.redactor.scrub
    lines, is_written = write(params_file, root / "data/raw", outcome.proposed, options.guess, scrub)
    print(*(f"check: {sentence}" for sentence in lines), sep="\n", file=out)
    if not is_written:
        return outcome.exit_code
    print("check: read again with what is written", file=out)
    outcome, _ = _check(params, root, paths, Options(as_json=options.as_json))
    return outcome.exit_code


def _check(
    params: Path | None, root: Path, paths: Sequence[Path], options: Options
) -> tuple[Outcome, "Cleaner"]:
    """Read and clean all files, and print the results. Return them, and the rules."""
    cleaner = cleaner_of(settings(params, root), root)
    outcome = Outcome()
    for path, name in files(paths, root / "data/raw"):
        outcome.names.append(name)
        _check_one(FileCheck(path, name), cleaner, options, outcome)
    outcome.scorer = _scorer(outcome.answers, params or root / "params.yaml")
    untrainable = outcome.tally["tools_not_shown"]
    if untrainable:
        outcome.untrainable = _untrainable(untrainable, params or root / "params.yaml", root)
    _print_summary(outcome, options)
    return outcome, cleaner


def _scorer(answers: Counter[str], params: Path) -> str:
    """Return a sentence on the scorer for few different answers, which are labels. Returns "" if they are not
    few, or if the settings name a scorer.
    """
    few = len(few_answers(answers) or ())
    if few < 2 or not params.exists() or load_params(params).evaluate.scorers != Params().evaluate.scorers:
        return ""
    rows = plural(answers.total(), "row has", "rows have")
    return f"{rows} {few} different answers: if they are labels, set evaluate.scorers: [exact_match]"


def _untrainable(rows: int, params: Path, root: Path) -> str:
    """Return a sentence on rows with tools that the template in models/base does not show, and what to do."""
    from pipeline.planning.model.base import is_here

    remedy = f"choose a base whose template does ({SHOWING_TOOLS})"
    is_made = params.exists() and (root / "models/base.json").exists()
    if is_made and not is_here(load_params(params).base, root):
        remedy = f"it is not yet the base that {safe(str(params))} names, which `quench run base` makes"
    return (
        f"{plural(rows, 'row has', 'rows have')} tools that the template in models/base does not show "
        f"(template_drops): {remedy}"
    )


def _check_one(file: FileCheck, cleaner: "Cleaner", options: Options, outcome: Outcome) -> None:
    """Print the faults of one file's rows, and add them to `outcome`."""
    entries = file.entries(cleaner, outcome.tally)
    one_by_one = options.everything or options.as_json
    counted = ((entry, 1) for entry in entries) if one_by_one else grouped(entries)
    for entry, rows in counted:
        outcome.lines += 1
        if options.as_json:
            print(json.dumps(entry, ensure_ascii=False))
        elif options.everything or outcome.lines <= SHOWN:
            is_unmapped = not options.everything and entry["reason"] == UNMAPPED
            print(file.unmapped_line(entry, cleaner) if is_unmapped else _line(entry, rows))
    outcome.reasons.update(file.reasons)
    outcome.answers.update(labels_of([file.answers]))
    outcome.notes.update(without_names(file.notes))
    outcome.archives[file.shown] = unread_members(file.notes)
    reading = file.reading()
    if reading:
        outcome.readings.append(reading)
    if file.left_out:
        outcome.columns.append(f"{file.shown}: {left_out_of_texts(file.left_out)}")
    if file.several:
        outcome.columns.append(f"{file.shown}: {several_answers(file.several)}")
    for sentence in near_equals_sentences(few_answers(file.answers) or ()):
        outcome.columns.append(f"{file.shown}: {one_line(cleaner.scrubbed(sentence), 300)}")
    for sentence in calls_sentences(file.calls, with_files=False):
        outcome.columns.append(f"{file.shown}: {one_line(sentence, 300)}")
    if file.verdicts:
        outcome.columns.append(f"{file.shown}: {called_bad(file.verdicts)}")
    states = undecided(file.states)
    if states:
        outcome.columns.append(f"{file.shown}: {one_line(states, 300)}")
    if file.text_doubt:
        outcome.columns.append(f"{file.shown}: {one_line(cleaner.scrubbed(file.text_doubt), 300)}")
    why = file.no_row()
    if why:
        outcome.empty.append(f"{file.shown}: no row: {why}")
    if file.would_stop(cleaner.settings.source_weights):
        outcome.stops.append(file)
    stated = by_glob(file.name, cleaner.settings.fields, None)
    if stated:
        targets = lacking(stated, file.mapped)
        if targets:
            transform = cleaner.of_file(file.name).transform
            problem = file_problem(file.path, file.name, stated, targets, transform)
            outcome.faults.append(f"curate.fields: {problem}")
    if file.proposal is not None:
        proposed = Proposed(file, file.proposal)
        outcome.proposed.append(proposed)
        if options.as_json:
            print(json.dumps(proposed.as_dict(cleaner.redactor.scrub), ensure_ascii=False))


def _print_summary(outcome: Outcome, options: Options) -> None:
    out = sys.stderr if options.as_json else sys.stdout  # The output for a program stays clean.
    lines = [
        *_first(outcome.readings),
        *_first(outcome.columns),
        *_first(outcome.empty),
        *_stop_sentences(outcome.stops),
        *outcome.faults,
        *held_out_sentences(outcome.names),
        *_stats(outcome),
        *filter(None, [outcome.scorer]),
    ]
    if outcome.untrainable:
        lines.append(outcome.untrainable)
    print(*(f"check: {sentence}" for sentence in lines), sep="\n", file=out)
    rejected = outcome.reasons.total()
    if not rejected and not outcome.faults and not outcome.untrainable:
        print("check: every row can be used (duplicates are found by stage curate, over all files)", file=out)
    if not rejected:
        return
    if rejected > min(outcome.lines, SHOWN) and not options.everything and not options.as_json:
        left = "check: "
        if outcome.lines > SHOWN:
            left = f"… and {outcome.lines - SHOWN:,} more reasons of files: "
        print(f"{left}--all names every row")
    reasons = ", ".join(f"{number:,} {reason}" for reason, number in outcome.reasons.most_common())
    print(f"check: {rejected:,} rejected: {reasons}", file=out)
    commonest = outcome.reasons.most_common(1)[0][0]
    advice = f"check: `quench doctor explain {commonest}` says what a reason means and what to do"
    print(advice, file=sys.stderr)  # The counts stay the last line of piped output.


def _stop_sentences(files: Sequence[FileCheck]) -> list[str]:
    """Return a sentence on the files at which stage curate would stop, if there are any."""
    if not files:
        return []
    more = f" and {plural(len(files) - 1, 'more file')}" if len(files) > 1 else ""
    return [
        f"stage curate would stop at {files[0].shown}{more}, of which no row can be read: mend, convert or "
        f"move away such a file, or set curate.source_weights: {{{files[0].name}: 0}}"
    ]


def _first(sentences: list[str]) -> list[str]:
    """Return the first sentences on files, and the number of further ones."""
    first = sentences[:READINGS]
    others = len(sentences) - READINGS
    if others > 0:
        first.append(f"… and {others:,} more files")
    return first


def _stats(outcome: Outcome) -> list[str]:
    """Return sentences on the rows that were read, with every file and row counted once, and on those that
    training does not use.
    """
    tally = outcome.tally
    notes = outcome.notes
    empty = f", {tally['empty']:,} without a row" if tally["empty"] else ""
    if notes["description"]:
        empty += f", {notes['description']:,} only describing a data set"
    untrained = {kind: tally[kind] for kind in get_args(Kind) if kind not in TRAINED}
    return [
        f"{plural(tally['files'], 'file')}: {tally['files'] - tally['unread']:,} read, "
        f"{tally['unread']:,} not read{empty}; {plural(tally['lines'], 'row')}: {tally['usable']:,} usable, "
        f"{tally['lines'] - tally['usable']:,} rejected",
        *notes_sentences(notes, outcome.archives),
        *kinds_sentences(untrained, tally["scored"]),
    ]
