"""Cleaning of a raw line into rows: strict reading, canonical form, cleaning rules, redaction, token budget.

Runs in worker processes, on blocks of lines. The result of a block depends only on that block.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, get_args

from pipeline.chat.rows import OTHERS, BadRow, Kind, Row, completed, row_id
from pipeline.config.sections import Curate
from pipeline.core.jsonl import BadLine, dump_line
from pipeline.core.text import one_line
from pipeline.intake.files.containers import RawLine, parsed, raw_lines
from pipeline.intake.files.files import document_style, is_table
from pipeline.intake.rows.authors import with_authors
from pipeline.intake.rows.fields import RowMapper
from pipeline.intake.rows.formats import KEYS_READ, detect, to_row
from pipeline.intake.rows.letter_case import with_known_keys
from pipeline.intake.rows.own_rows import export_with
from pipeline.intake.rows.texts import left_out_of_text
from pipeline.intake.rows.transform import Transform
from pipeline.intake.rows.verdicts import decision_on, states_in, verdict_on, without_decision
from pipeline.stages.curate.answers import bound, count_answer
from pipeline.stages.curate.called_tools import (
    CALLING,
    FAULTS,
    MISFITS,
    NOT_OFFERED,
    NOT_SHOWN,
    PLACES,
    WITHOUT_TOOLS,
    calls_in,
    misfitting_calls,
    unoffered_calls,
)
from pipeline.stages.curate.comparing.row_parts import content_key
from pipeline.stages.curate.inputs import by_glob, domain_of
from pipeline.stages.curate.places import MOST
from pipeline.stages.curate.rules.catalog import Means, rules_of
from pipeline.stages.curate.rules.changes import Change, Changes, excerpts
from pipeline.stages.curate.rules.length import Length
from pipeline.stages.curate.rules.mail import HelpDesk, Mail, help_desk
from pipeline.stages.curate.rules.redaction import Redactor
from pipeline.stages.curate.rules.template import ChatTemplate

KINDS: tuple[str, ...] = get_args(Kind)
WITHHELD = "‹not shown: this row had something to redact›"
KNOWN_FILES = 256  # files whose settings are cached
KNOWN_DOMAINS = 10_000  # domain names whose redaction check is cached
KNOWN_DETAILS = 1000  # sentences that name keys, cached likewise
# Reasons whose sentence may name keys or authors of the row.
NAMES_KEYS = ("bad_role", "marked_bad", "no_assistant", "unknown_format", "unsupported_field")
SCRUBBED = 1 << 16  # bytes of a rejected line that are searched for secrets
MOST_TURNS = 65535  # numbers of turns that are distinguished
TEXT_SHOWN = 2000  # characters of a rejected line
MOST_COLUMNS = 50  # column names that are counted one by one
COLUMN_SHOWN = 40  # characters of such a name
OTHER_COLUMNS = "others"


@dataclass(slots=True)
class Block:
    """Neighboring lines of one file."""

    file: str  # path below data/raw
    path: Path
    lines: list[RawLine]


@dataclass
class CleaningStats:
    """Counts of what reading and cleaning did, by name."""

    rejected: Counter[str] = field(default_factory=Counter)  # reason → lines
    rejected_by: Counter[str] = field(default_factory=Counter)  # rule → lines
    changed: Counter[str] = field(default_factory=Counter)  # rule → texts
    rows_changed: Counter[str] = field(default_factory=Counter)  # rule → rows
    redactions: Counter[str] = field(default_factory=Counter)
    length: Counter[str] = field(default_factory=Counter)  # changes of rows over the token budget
    formats: Counter[str] = field(default_factory=Counter)  # format → lines
    kinds: Counter[str] = field(default_factory=Counter)  # kind → rows
    # Counts of a mapping in `curate.fields`: target → rows that have its source; and the number of mapped
    # rows.
    mapped: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)  # columns next to a text → rows
    verdicts: Counter[str] = field(default_factory=Counter)  # keys and words that call a row bad → rows
    states: Counter[str] = field(default_factory=Counter)  # keys of verdicts and other words → rows
    answers: Counter[str] = field(default_factory=Counter)  # answer → rows, as long as they are few
    # Rows with calls, those of them without tools, and rows whose tools the template does not show.
    calls: Counter[str] = field(default_factory=Counter)
    not_offered: Counter[str] = field(default_factory=Counter)  # called tool that the row lacks → rows
    misfits: Counter[str] = field(default_factory=Counter)  # tool called with arguments not allowed → rows
    notes: Counter[str] = field(default_factory=Counter)  # what was taken out of mails → texts
    faulty: Counter[str] = field(default_factory=Counter)  # fault of calls → rows as read
    faulty_first: dict[str, list[str]] = field(default_factory=dict)  # fault → sources of the first rows

    def of_calls(self) -> dict[str, Any] | None:
        """Return the counts of calls as reports have them; None if no row has any."""
        if not self.calls:
            return None
        misfits = {MISFITS: dict(self.misfits)} if self.misfits else {}
        places = {
            fault: {"rows": self.faulty[fault], "first": self.faulty_first[fault]}
            for fault in FAULTS
            if self.faulty[fault]
        }
        return {
            **self.calls,
            NOT_OFFERED: dict(self.not_offered),
            **misfits,
            **({PLACES: places} if places else {}),
        }

    def add_faulty(self, fault: str, sources: Sequence[str]) -> None:
        """Add the sources of rows with a fault, as long as they are among the first."""
        self.faulty_first[fault] = [*self.faulty_first.get(fault, ()), *sources][:MOST]

    def update(self, more: "CleaningStats") -> None:
        """Add the counts of a later block."""
        for name, counts in vars(more).items():
            if name != "faulty_first":
                getattr(self, name).update(counts)
        for fault, sources in more.faulty_first.items():
            self.add_faulty(fault, sources)
        bound(self.answers)


# Facts of a row for the rules that compare rows: its domain, 64 bits of its id, the hash of its normalized
# content, its messages without the system's, its kind's index among `KINDS`, True if it has a reward.
Facts = tuple[str, int, int, int, int, bool]


@dataclass
class Cleaned:
    """Outcome of a block. The rows, rejects and changes are JSONL in the order of the lines."""

    file: str
    size: int  # bytes of the raw lines
    lines: int  # Each line gives rows or one reject, unless `curate.transform` makes several rows of it.
    added: int = 0  # rows that `curate.transform` made beyond one of a line
    cleaning_stats: CleaningStats = field(default_factory=CleaningStats)
    rows: list[bytes] = field(default_factory=list)
    facts: list[Facts] = field(default_factory=list)  # facts of each row
    rejects: list[bytes] = field(default_factory=list)
    changes: list[bytes] = field(default_factory=list)


class Rejected(Exception):
    """Rejection of a line that gives no row: the rule and the reason."""

    def __init__(self, rule: str, why: BadLine) -> None:
        super().__init__(rule, why)
        self.rule = rule
        self.why = why


class FileSettings(NamedTuple):
    """The settings for the rows of one file."""

    domain: str  # domain of rows that name none
    format: str  # format set in `curate.formats`
    mapper: RowMapper | None  # mapping set in `curate.fields`
    transform: Transform | None


class Stated(NamedTuple):
    """A row as a file states it, or as `curate.transform` makes it. `source` is its origin."""

    # FILE:LINE, followed by ~1, ~2 … if the line gives several rows (~1~2 if `curate.transform` made several)
    source: str
    value: dict[str, Any]


class Outcome(NamedTuple):
    """Result of a stated row: clean rows (several if split) and the changes, or why there are none."""

    source: str  # source of the row, or of the line if it states none
    stated: Stated | None  # None if the line states no row
    rows: list[Row]
    changes: Changes
    rejected: Rejected | None = None


class Cleaner:
    """All rules that look at one row, created once per process from the settings."""

    def __init__(
        self,
        settings: Curate,
        added_tokens: tuple[str, ...] | None,
        base: Path | None,
        names: tuple[str, ...],
        guard: Path | None = None,
        no_chats: str | None = None,
    ) -> None:
        self.settings = settings
        self.transforms = {
            name: Transform(name, guard or Path("data/guard")) for name in settings.transform.values()
        }
        self.redactor = Redactor(settings.secrets, tuple(settings.personal), names)
        self.length = Length(base, settings.max_tokens, settings.overlong, settings.cut)
        self.paths: dict[str, Path] = {}  # of the files that lines came from, by their names below data/raw
        self.mail = None if settings.mail == "never" else Mail(settings.mail, self.desk_of)
        template = None if base is None else self.template
        self.rules = rules_of(
            Means(settings, added_tokens, template, self.is_shown, self.redact, self.mail, no_chats)
        )
        self.of_file = lru_cache(KNOWN_FILES)(self.settings_of)
        # Cached for the names of domains.
        self.fit_for_reports = lru_cache(KNOWN_DOMAINS)(self.redactor.is_clean)
        self.scrubbed = lru_cache(KNOWN_DETAILS)(self.redactor.scrub)
        self.known_column = lru_cache(KNOWN_DETAILS)(self.shown_column)  # Cached for short names.

    def template(self) -> ChatTemplate:
        """Return the base's chat template."""
        return self.length.counter.template

    def is_shown(self, row: Row) -> bool:
        """Return True if the base's template shows the row's turns, or if there is no base."""
        return self.length.folder is None or self.template().shows_turns(row)

    def shows_tools_of(self, row: Row) -> bool:
        """Return True if the base's template shows the row's tools and calls, or if there is no base."""
        return self.length.folder is None or self.template().shows_tools_of(row)

    def redact(self, row: Row, changes: Changes) -> Row:
        """Apply the redactor's rule. If it redacts, excerpts of earlier rules are withheld because they could
        contain the secret.
        """
        earlier = len(changes)
        redacted = self.redactor.rule(row, changes)
        if redacted is not row:
            changes[:earlier] = [
                Change(change.rule, change.place, WITHHELD, WITHHELD) for change in changes[:earlier]
            ]
        return redacted

    def settings_of(self, file: str) -> FileSettings:
        """Return the settings for the rows of a file. `of_file` caches them."""
        given_format = by_glob(file, self.settings.formats, "auto")
        mapping = by_glob(file, self.settings.fields, None)
        mapper = None if mapping is None else RowMapper(mapping, given_format, is_table=is_table(file))
        function = by_glob(file, self.settings.transform, None)
        transform = None if function is None else self.transforms[function]
        return FileSettings(domain_of(file), given_format, mapper, transform)

    def desk_of(self, file: str) -> HelpDesk:
        """Return whether the first rows of a file are a help desk's, and how its mails close."""
        return help_desk(self.rows_of(file)) if file in self.paths else HelpDesk(is_sure=False)

    def rows_of(self, file: str) -> Iterator[Row]:
        """Yield the rows of a file in the canonical form, before any rule."""
        lines = raw_lines(
            self.paths[file],
            file,
            max_line_bytes=self.settings.max_line_bytes,
            notes=Counter(),
            style=document_style(file, self.settings.documents),
        )
        for line in lines:
            with suppress(BadLine, Rejected):
                for row in self.stated(file, line):
                    value, kind = self.keyed(row.value, file, CleaningStats())
                    yield to_row(value, source=row.source, domain="", format=kind)

    def keyed(
        self, stated: dict[str, Any], file: str, cleaning_stats: CleaningStats
    ) -> tuple[dict[str, Any], str]:
        """Return a row with the keys that formats know, and its format. Raises `BadRow` if it has none."""
        _, given_format, mapper, _ = self.of_file(file)
        value = with_known_keys(stated if mapper is None else mapper.apply(stated, cleaning_stats.mapped))
        if given_format == "text" and "segments" in value:  # a part of a long document
            given_format = "input_output"
        if given_format != "auto":
            return value, given_format
        try:
            return value, detect(value)
        except BadRow as why:
            export = export_with(stated)
            if export is not None:
                raise BadRow(
                    why.code,
                    f"this is a conversation as the export {export.name} has it, far behind rows of another "
                    "kind: put it into a file of its own",
                ) from None
            if mapper is None:
                raise
            raise BadRow(why.code, mapper.explained(str(why), stated)) from None

    def stated(self, file: str, line: RawLine) -> list[Stated]:
        """Return the rows that a line states, or that `curate.transform` makes of it. Raises `Rejected` if
        there are none.
        """
        source = line.source(file)
        rule = "read"
        try:
            value = parsed(line.data)
            transform = self.of_file(file).transform
            if transform is None:
                return [Stated(source, value)]
            rule = "transform"
            values = transform.rows(value, source)
        except BadLine as why:
            raise Rejected(rule, why) from None
        if len(values) == 1:
            return [Stated(source, values[0])]
        return [Stated(f"{source}~{number}", value) for number, value in enumerate(values, start=1)]

    def clean(self, file: str, row: Stated, cleaning_stats: CleaningStats, changes: Changes) -> list[Row]:
        """Return the clean rows of one stated row. Raises `Rejected` if there are none."""
        rule = "verdicts"
        try:
            self.judge(decision_on(row.value), cleaning_stats.verdicts)
            rule = "format"
            value, kind = self.keyed(without_decision(row.value), file, cleaning_stats)
            cleaning_stats.formats[kind] += 1
            domain = self.of_file(file).domain
            clean_row = to_row(value, source=row.source, domain=domain, format=kind)
            if OTHERS in clean_row and OTHERS not in value:
                changes.append(chosen_reference(clean_row))
            if clean_row["kind"] == "text" and len(value) > 1:
                self.count_left_out(value, cleaning_stats.left_out)
            if not self.fit_for_reports(clean_row["domain"]):
                clean_row["domain"] = domain
            if clean_row.get("label") is not False:  # A thumb down says the same, and makes the row useful.
                rule = "verdicts"
                for state in states_in(value, KEYS_READ[kind]):
                    self.count(state, cleaning_stats.states)
                self.judge(verdict_on(value, KEYS_READ[kind]), cleaning_stats.verdicts)
            for rule, apply in self.rules:  # noqa: B007
                clean_row = apply(clean_row, changes)
            rule = "length"
            return self.length.parts(clean_row, changes)
        except BadLine as why:
            raise Rejected(rule, with_authors(why, row.value, file)) from None

    def judge(self, stated: str | None, verdicts: Counter[str]) -> None:
        """Count a verdict that calls the row bad. Raises `BadRow` for it if `curate.marked_bad` is reject."""
        if stated is None:
            return
        self.count(stated, verdicts)
        if self.settings.marked_bad == "reject":
            raise BadRow("marked_bad", f"{stated}: somebody threw the row out")

    def shown_column(self, key: str) -> str:
        """Return a column's name as reports may show it. `known_column` caches those of short names."""
        return self.scrubbed(one_line(key, COLUMN_SHOWN))

    def count_left_out(self, value: dict[str, Any], left_out: Counter[str]) -> None:
        """Count the untrained columns of a row of kind text."""
        for key in left_out_of_text(value):
            self.count(key, left_out)

    def count(self, column: str, rows: Counter[str]) -> None:
        """Count a row under the name of a column, as far as that may be shown; ever new names as one."""
        name = self.known_column(column) if len(column) <= COLUMN_SHOWN else self.shown_column(column)
        is_named = name in rows or len(rows) < MOST_COLUMNS
        rows[name if is_named else OTHER_COLUMNS] += 1

    def count_calls(self, outcome: Outcome, cleaning_stats: CleaningStats) -> None:
        """Count the calls of a row's parts, and name the row once for each fault of theirs."""
        faults = {fault for row in outcome.rows for fault in self.faults_of_calls(row, cleaning_stats)}
        for fault in faults:
            cleaning_stats.faulty[fault] += 1
            cleaning_stats.add_faulty(fault, [outcome.source])

    def faults_of_calls(self, row: Row, cleaning_stats: CleaningStats) -> list[str]:
        """Count a row that calls tools, the tools among them that it does not offer or calls with arguments
        that are not allowed, and a row whose tools the base's template does not show. Return its faults.
        """
        if not self.shows_tools_of(row):
            cleaning_stats.calls[NOT_SHOWN] += 1
        if not calls_in(row):
            return []
        cleaning_stats.calls[CALLING] += 1
        unoffered = unoffered_calls(row)
        if unoffered and "tools" not in row:
            cleaning_stats.calls[WITHOUT_TOOLS] += 1
            return [WITHOUT_TOOLS]
        misfitting = misfitting_calls(row)
        for name in unoffered:
            self.count(name, cleaning_stats.not_offered)
        for name in misfitting:
            self.count(name, cleaning_stats.misfits)
        return [*([NOT_OFFERED] if unoffered else []), *([MISFITS] if misfitting else [])]

    def outcomes(self, file: str, line: RawLine, cleaning_stats: CleaningStats) -> Iterator[Outcome]:
        """Yield the outcome of each row that a line states. A line that states none yields the reason."""
        try:
            stated = self.stated(file, line)
        except Rejected as rejected:
            yield Outcome(line.source(file), None, [], [], rejected)
            return
        for row in stated:
            changes: Changes = []
            try:
                rows = self.clean(file, row, cleaning_stats, changes)
            except Rejected as rejected:
                is_made = self.of_file(file).transform is not None
                why = of_transform(rejected, row, len(stated)) if is_made else rejected
                yield Outcome(row.source, row, [], changes, why)
            else:
                yield Outcome(row.source, row, rows, changes)

    def block(self, block: Block) -> Cleaned:
        """Return the results of all lines of a block. Every line is accounted for."""
        self.paths[block.file] = block.path
        done = Cleaned(block.file, sum(len(line.raw) for line in block.lines), len(block.lines))
        for line in block.lines:
            done.added -= 1
            for outcome in self.outcomes(block.file, line, done.cleaning_stats):
                done.added += 1
                if outcome.rejected:
                    self.reject(done, line, outcome.source, outcome.rejected)
                else:
                    self.accept(done, line, outcome)
        done.cleaning_stats.redactions.update(self.redactor.take_counts())
        done.cleaning_stats.length.update(self.length.take_counts())
        done.cleaning_stats.notes.update(self.mail.take_counts() if self.mail else {})
        return done

    def accept(self, done: Cleaned, line: RawLine, outcome: Outcome) -> None:
        """Record a row that is clean now."""
        rows = [{"id": row_id(row), **row} for row in outcome.rows]
        done.rows += map(dump_line, rows)
        for row in rows:
            turns = min(sum(turn["role"] != "system" for turn in row["messages"]), MOST_TURNS)
            kind = KINDS.index(row["kind"])
            key = int(row["id"], 16)
            done.facts.append((row["domain"], key, content_key(row), turns, kind, "reward" in row))
            done.cleaning_stats.kinds[row["kind"]] += 1
            count_answer(row, done.cleaning_stats.answers)
        self.count_calls(outcome, done.cleaning_stats)
        if outcome.changes:
            place = {"id": rows[0]["id"], "file": done.file, "line": line.number}
            self.note(done, place | several(done.file, line.number, outcome.source), outcome.changes)

    def reject(self, done: Cleaned, line: RawLine, source: str, rejected: Rejected) -> None:
        """Record a line that gives no row."""
        done.cleaning_stats.rejected[rejected.why.code] += 1
        done.cleaning_stats.rejected_by[rejected.rule] += 1
        done.rejects.append(dump_line(self.entry(done.file, line, source, rejected)))

    def entry(self, file: str, line: RawLine, source: str, rejected: Rejected) -> dict[str, Any]:
        """Return a line of `data/rejects.jsonl`. Its text is scrubbed of secrets."""
        text = self.redactor.scrub(line.raw[:SCRUBBED].decode("utf-8", "replace"))
        if len(line.raw) > SCRUBBED:
            text = text[: -SCRUBBED // 8]  # A key that was cut in two may not be recognized as one.
        if len(text) > TEXT_SHOWN or len(line.raw) > SCRUBBED:
            text = f"{text[:TEXT_SHOWN]}… ({len(line.raw)} bytes)"
        rule = rejected.rule
        why = rejected.why
        detail = self.scrubbed(str(why)) if why.code in NAMES_KEYS else str(why)
        reject = Reject(file, line.number, line.offset, rule, why.code, detail, text)
        return asdict(reject) | several(file, line.number, source)

    def note(self, done: Cleaned, place: dict[str, Any], changes: Changes) -> None:
        """Record what the rules changed in an accepted row. `place` identifies the row."""
        for change in changes:
            done.changes.append(dump_line({**place, **asdict(change)}))
            done.cleaning_stats.changed[change.rule] += 1
        done.cleaning_stats.rows_changed.update({change.rule for change in changes})


def of_transform(rejected: Rejected, row: Stated, rows: int) -> Rejected:
    """Return the reason with a note that the row, one of so many, is what `curate.transform` made of a line,
    whose keys are others.
    """
    number = row.source.rpartition("~")[2]
    made = "after curate.transform" if rows == 1 else f"row {number} that curate.transform made of this one"
    why = f"{made}: {rejected.why}"
    return Rejected(rejected.rule, BadLine(rejected.why.code, why))


def chosen_reference(row: Row) -> Change:
    """Return the note on several accepted answers: all of them, and the first, which is trained."""
    place = "answer" if "answer" in row else f"messages {len(row['messages'])}"
    first = completed(row)[-1]["content"]
    return Change("format", place, *excerpts("\n".join((first, *row[OTHERS])), first))


def several(file: str, line: int, source: str) -> dict[str, str]:
    """Return the key `source` for a row that file and line do not identify; otherwise no key."""
    return {"source": source} if source != f"{file}:{line}" else {}


@dataclass(frozen=True)
class Reject:
    """A line of `data/rejects.jsonl`, without the `source` of a row that is not the only one of its line."""

    file: str
    line: int | None
    offset: int | None
    rule: str
    reason: str
    detail: str
    text: str


def file_entry(file: str, why: BadLine) -> dict[str, Any]:
    """Return a line of `data/rejects.jsonl` for a file that isn't read."""
    return asdict(Reject(file, None, None, "read", why.code, str(why), ""))
