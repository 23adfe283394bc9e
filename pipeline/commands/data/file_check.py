"""Check one file for `quench data check`: find the rows that can't be used, the formats of the others, and a
sample of those that fit no format.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.commands.data.classes import message_doubt
from pipeline.commands.data.columns import are_values, columns_of, repeat_names
from pipeline.commands.data.doubts import doubt
from pipeline.commands.data.proposal import Proposal, propose, propose_labels
from pipeline.core.text import listed, most, one_line, plural, safe
from pipeline.intake.files.containers import RawLine, raw_lines
from pipeline.intake.files.files import document_style, refusal
from pipeline.intake.files.notes import why_no_row
from pipeline.intake.rows.fields import MAPPED
from pipeline.intake.rows.letter_case import with_known_keys
from pipeline.intake.rows.unread import OF_CHOICES
from pipeline.intake.rows.verdicts import without_decision
from pipeline.stages.curate.answers import count_answer
from pipeline.stages.curate.inputs import by_glob
from pipeline.stages.curate.places import has_records

if TYPE_CHECKING:
    from pipeline.stages.curate.clean import Cleaner, CleaningStats

SAMPLE = 200  # rows from which a mapping is guessed
SAMPLE_BYTES = 8 << 20  # bytes of these rows
KEYS_SHOWN = 8  # keys of rows that fit no format
KEY_SHOWN = 40  # characters of such a key
UNMAPPED = "unknown_format"
EMPTY = "is missing or empty"  # part of the detail of a row that lacks, for example, only an answer
LOOKS_LIKE = re.compile(r"(^|: )looks like ")  # Behind the colon it is what `curate.transform` made.
# reasons that other names in the turns may cause
OF_TURNS = ("bad_role", "bad_shape", "content_not_text")


@dataclass
class Sample:
    """First rows of one sort, and their bytes."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    size: int = 0

    def add(self, row: dict[str, Any], size: int) -> None:
        """Add a row of this size, unless there are enough."""
        if len(self.rows) < SAMPLE and self.size < SAMPLE_BYTES:
            self.rows.append(row)
            self.size += size


@dataclass
class FileCheck:
    """One file: `path` as the user named it, `name` as in data/raw."""

    path: Path
    name: str
    lines: int = 0
    usable: int = 0
    readable: int = 0  # rows that have a format; a later rule may have rejected them
    kinds: Counter[str] = field(default_factory=Counter)
    formats: Counter[str] = field(default_factory=Counter)
    mapped: Counter[str] = field(default_factory=Counter)  # counted as in `CleaningStats`
    left_out: Counter[str] = field(default_factory=Counter)  # counted as in `CleaningStats`
    verdicts: Counter[str] = field(default_factory=Counter)  # counted as in `CleaningStats`
    states: Counter[str] = field(default_factory=Counter)  # counted as in `CleaningStats`
    several: int = 0  # rows with a list of answers, of which reading chooses one
    answers: Counter[str] = field(default_factory=Counter)  # counted as in `CleaningStats`
    calls: dict[str, Any] = field(default_factory=dict)  # as the report of curate has them
    reasons: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)  # counted by `raw_lines`
    unread: Sample = field(default_factory=Sample)  # first rows that fit no format
    texts: Sample = field(default_factory=Sample)  # first rows with columns next to a text

    @property
    def shown(self) -> str:
        """Return the path in a form that is safe for a terminal."""
        return safe(str(self.path))

    def entries(self, cleaner: "Cleaner", tally: Counter[str]) -> Iterator[dict[str, Any]]:
        """Yield the reject entries of the file, as `data/rejects.jsonl` contains them except for the file's
        path. There is none if every row can be used unchanged or repaired.

        `tally` counts: `files`, `unread` and `empty` files, `lines`, `usable` lines, rows by kind, and
        `scored` rows (with a reward), and rows with `tools_not_shown` by the base's template.
        """
        from pipeline.stages.curate.clean import CleaningStats, file_entry

        tally["files"] += 1
        style = document_style(self.name, cleaner.settings.documents)
        why = refusal(self.path, style)
        if why:
            tally["unread"] += 1
            self.reasons[why.code] += 1
            yield file_entry(self.name, why) | {"file": self.shown}
            return
        stats = CleaningStats()
        cleaner.paths[self.name] = self.path
        max_bytes = cleaner.settings.max_line_bytes
        for line in raw_lines(self.path, self.name, max_line_bytes=max_bytes, notes=self.notes, style=style):
            self.lines += 1
            for entry in self._read(line, cleaner, stats, tally):
                self.reasons[entry["reason"]] += 1
                yield entry | {"file": self.shown}
        _, given_format, mapper, _ = cleaner.of_file(self.name)
        if given_format != "auto" or mapper is not None:
            self.texts = Sample()  # Their reading is chosen.
        self.formats = stats.formats
        self.mapped = stats.mapped
        self.left_out = stats.left_out
        self.verdicts = stats.verdicts
        self.states = stats.states
        self.calls = stats.of_calls() or {}
        self.notes.update(cleaner.mail.take_counts() if cleaner.mail else {})
        tally["lines"] += self.lines
        tally["usable"] += self.usable
        tally.update(self.kinds)
        tally["empty"] += bool(self.no_row())

    def _read(
        self, line: RawLine, cleaner: "Cleaner", stats: "CleaningStats", tally: Counter[str]
    ) -> list[dict[str, Any]]:
        """Read one row. Return its entry if it can't be used. There may be several entries if
        `curate.transform` makes several rows from it.
        """
        entries = []
        for outcome in cleaner.outcomes(self.name, line, stats):
            self.kinds.update(row["kind"] for row in outcome.rows)
            self.several += any(change.rule == "format" for change in outcome.changes)
            for row in outcome.rows:
                count_answer(row, self.answers)
            cleaner.count_calls(outcome, stats)
            tally["scored"] += sum("reward" in row for row in outcome.rows)
            tally["tools_not_shown"] += sum(not cleaner.shows_tools_of(row) for row in outcome.rows)
            self.readable += outcome.rejected is None or outcome.rejected.rule not in ("read", "format")
            if outcome.rejected is None:
                if outcome.stated and outcome.rows[0]["kind"] == "text" and len(outcome.stated.value) > 1:
                    self.texts.add(with_known_keys(outcome.stated.value), len(line.raw))
                continue
            entry = cleaner.entry(self.name, line, outcome.source, outcome.rejected)
            entries.append(entry)
            is_named = outcome.rejected.rule == "format" and _may_be_mapped(entry)
            if is_named and outcome.stated:
                self.unread.add(without_decision(outcome.stated.value), len(line.raw))
        self.usable += not entries
        return entries

    @cached_property
    def proposal(self) -> Proposal | None:
        """Return the guesses of a mapping, once all rows are read.

        None if there is no guess, or no need of one.
        """
        if self.lacks_names or self.mapped[MAPPED]:  # A mapping that fits rows needs no other one.
            return None
        labels = None
        # A few rows that can't be read say nothing of a file of texts.
        if len(self.texts.rows) > len(self.unread.rows) and not self.text_doubt:
            labels = propose_labels(self.texts.rows, self.name)
        if labels or not self.unread.rows:
            return labels
        return propose(self.unread.rows, self.name)

    @cached_property
    def text_doubt(self) -> str:
        """Return the reason why the rows that are read as texts may be none, once all rows are read."""
        return message_doubt(self.texts.rows, columns_of(self.texts.rows))

    @cached_property
    def lacks_names(self) -> bool:
        """Return True for a table whose first line seems to be a row. No mapping is guessed then."""
        is_table = has_records(self.path.name)
        return is_table and (are_values(self._keys()) or repeat_names(self.unread.rows))

    def _keys(self) -> list[str]:
        """Return the keys of the rows that fit no format."""
        return list(dict.fromkeys(key for row in self.unread.rows for key in row))

    def _named_keys(self, cleaner: "Cleaner") -> str:
        """Return these keys as text, shortened."""
        keys = self._keys()
        shown = [cleaner.scrubbed(one_line(key, KEY_SHOWN)) for key in keys[:KEYS_SHOWN]]
        if len(keys) > KEYS_SHOWN:
            shown.append(f"{len(keys) - KEYS_SHOWN} more")
        return listed(shown)

    def no_row(self) -> str:
        """Return the reason why the file gives no row. Returns "" if it gives one, or is not meant to."""
        if self.lines or self.reasons:
            return ""
        return why_no_row(not self.path.stat().st_size, self.notes)

    def would_stop(self, weights: Mapping[str, float]) -> bool:
        """Return True if stage curate would stop at this file, of which no row can be read. `weights` is
        `curate.source_weights`. A proposed mapping may change it, so the answer is False then.
        """
        are_rows = bool(self.lines) and self.reasons.total() > self.reasons["blank"]
        is_unreadable = are_rows and not self.readable
        return is_unreadable and self.proposal is None and bool(by_glob(self.name, weights, 1.0))

    def reading(self) -> str:
        """Return a sentence on the formats and kinds of the usable rows. Returns "" if there are none."""
        if not self.usable:
            return ""
        kinds = listed([f"{number:,} {kind}" for kind, number in most(self.kinds)])
        by = listed([name for name, _ in most(self.formats)])
        return f"{self.shown}: {plural(self.usable, 'row')} usable, read as {by}: {kinds}"

    def _rows_inside(self, cleaner: "Cleaner") -> str:
        """Return a hint if keys of the file's only row contain lists of objects, which may be the rows."""
        only = self.unread.rows[0] if self.lines == len(self.unread.rows) == 1 else {}
        lists = {
            key: value
            for key, value in only.items()
            if isinstance(value, list) and len(value) > 1 and all(isinstance(item, dict) for item in value)
        }
        if not lists or doubt([only], (), is_one_object=True):  # This tells of lists below ids.
            return ""
        held = [
            f"{cleaner.scrubbed(one_line(key, KEY_SHOWN))} holds {len(value):,} objects"
            for key, value in lists.items()
        ]
        which = "if they are the rows, write that list alone"
        if len(held) > 1:
            which = "if one of these lists has the rows, write that list alone"
        return f": {listed(held)}; {which}"

    def unmapped_line(self, entry: Mapping[str, Any], cleaner: "Cleaner") -> str:
        """Return a line about rows that fit no format, with the keys that they have."""
        rows = self.reasons[UNMAPPED]
        says_more = not self._keys() or (EMPTY in entry["detail"] and (self.usable or self.proposal is None))
        # The keys are not those of the file, and its function is what to correct.
        says_more = says_more or cleaner.of_file(self.name).transform is not None
        if says_more:
            why = one_line(entry["detail"], 300)
        else:
            why = f"they have the keys {self._named_keys(cleaner)}"
        unread = self.unread.rows
        if unread and self.proposal is None:
            is_one_object = self.lines == 1 and not has_records(self.name)
            unsure = doubt(unread, columns_of(unread), is_one_object=is_one_object)
            if unsure:
                why += f"; no mapping is guessed, since {cleaner.scrubbed(one_line(unsure, 300))}"
            elif self.lines == 1 and any(isinstance(value, dict) for value in unread[0].values()):
                why += "; no mapping is guessed from inside a file's only row"
        why += self._rows_inside(cleaner)
        if self.lacks_names:
            why += ": if the first line is a row, write a line of names above it"
        if rows == self.lines:
            return f"{self.shown}: none of {plural(rows, 'row')} can be read; {why}"
        place = place_of(entry)
        return f"{place}: {UNMAPPED}: {rows:,} of {plural(self.lines, 'row')} can't be read; {why}"


def place_of(entry: Mapping[str, Any]) -> str:
    """Return the place of a rejected row, with the file as the user named it."""
    if entry["line"] is None:
        return str(entry["file"])
    within = entry.get("source", "").rpartition(":")[2]  # LINE~NUMBER if a line gives several rows
    number = within or entry["line"]
    return f"{entry['file']}: record {number}" if has_records(entry["file"]) else f"{entry['file']}:{number}"


def _may_be_mapped(entry: Mapping[str, Any]) -> bool:
    """Return True if other names may be the fault of a row."""
    if entry["reason"] == UNMAPPED:
        return LOOKS_LIKE.search(entry["detail"]) is None
    return entry["reason"] in OF_TURNS or OF_CHOICES in entry["detail"]
