"""The account of a curation: the statistics of `reports/data.json`, and their check."""

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.chat.rows import TRAINED
from pipeline.config.sections import Curate
from pipeline.core.jsonl import BadLine
from pipeline.intake.files.members import unread_members, without_names
from pipeline.intake.files.notes import why_no_row
from pipeline.intake.rows.fields import MAPPED
from pipeline.stages.curate.answers import bound, few_answers, labels_of
from pipeline.stages.curate.clean import KINDS, Cleaned, CleaningStats
from pipeline.stages.curate.comparing.decide import (
    KEPT,
    MOST_DOMAINS,
    OUTCOMES,
    SPLITS,
    Decisions,
    Table,
    balance_counts,
    domain_counts,
)
from pipeline.stages.curate.comparing.duplicates import Clusters, duplicate_counts
from pipeline.stages.curate.inputs import by_glob
from pipeline.stages.curate.mapped import lacking
from pipeline.stages.curate.rules.catalog import RULES

OF_NOTHING = hashlib.sha256(b"").hexdigest()
# Counts of cleaning that are kept by file too.
COUNTED = ("rejected", "formats", "mapped", "left_out", "verdicts", "states", "notes", "answers")
LENGTH = ("split", "truncated", "exchanges_left_out", "texts_cut")


@dataclass
class FileStats:
    """Statistics of a file: its rows, those that are accepted, and notes on its lines.

    `added` counts the rows that `curate.transform` made beyond one of each.
    """

    sha256: str
    rows: int = 0
    added: int = 0
    kept: int = 0
    readable: int = 0  # rows that have a format; a later rule may have rejected them
    rejected: Counter[str] = field(default_factory=Counter)  # reason → rows
    formats: Counter[str] = field(default_factory=Counter)
    # Counts of a mapping in `curate.fields`: target → rows that have its source; and the number of mapped
    # rows.
    mapped: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)  # columns next to a text → rows
    verdicts: Counter[str] = field(default_factory=Counter)  # keys and words that call a row bad → rows
    states: Counter[str] = field(default_factory=Counter)  # keys of verdicts and other words → rows
    notes: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)  # answer → rows, as long as they are few

    def count(self, more: CleaningStats) -> None:
        """Add the counts of a later part of the file."""
        for name in COUNTED:
            getattr(self, name).update(getattr(more, name))
        bound(self.answers)

    def is_unreadable(self) -> bool:
        """Return True if the file has rows, and none can be read. Empty lines are not rows."""
        return not self.readable and self.rejected.total() > self.rejected["blank"]

    def why_no_row(self) -> str:
        """Return the reason why not a single row comes from the file; "" if one does, or if none is meant to.

        The reason is also "" for a file in which no row can be read, because the stage reports that by
        itself.
        """
        if self.rows > self.rejected["blank"]:
            return ""
        return why_no_row(self.sha256 == OF_NOTHING, self.notes)

    def summary(self, mapping: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the report's entry of the file, for which `curate.fields` has this mapping."""
        counted = without_names(self.notes)
        notes = Counter(counted) + Counter(mapped=self.mapped[MAPPED])  # Counts of 0 are left out.
        names = unread_members(self.notes).names
        unsourced = lacking(mapping, self.mapped)
        return {
            "rows": self.rows,
            "kept": self.kept,
            "rejected": self.rows + self.added - self.kept,
            "sha256": self.sha256,
            "formats": dict(self.formats),
            "notes": dict(notes),
            **({"members_named": names} if names else {}),
            **({"fields_lacking": unsourced} if unsourced else {}),
            **({"left_out_of_texts": dict(self.left_out)} if self.left_out else {}),
            **({"marked_bad": dict(self.verdicts)} if self.verdicts else {}),
            **({"states": dict(self.states)} if self.states else {}),
        }


@dataclass(frozen=True)
class CurationReport:
    """The content of `reports/data.json`, which the data page shows."""

    seed: int
    rows_read: int
    rows_accepted: int
    rows_rejected: int
    parts_added: int
    rows_repeated: int  # lines of training beyond the first of each row
    rows_dropped: int
    rows_kept: int
    rules: list[dict[str, Any]]  # row counts of each rule, in order: in, out, rejected, changed
    rejected: dict[str, int]  # reason → rows
    files_found: int
    files_rejected: dict[str, int]  # reason → files
    files_unread: dict[str, str]  # name → reason
    changed: dict[str, int]  # rule → texts
    redactions: dict[str, int]
    length: dict[str, int]  # rows over the token budget that were split or truncated, and what they lost
    formats: dict[str, int]
    kinds: dict[str, int]
    untrained: dict[str, int]  # kept rows, by kind, that no method learns from unless it is set
    scored: int
    splits: dict[str, int]
    domains: dict[str, dict[str, int]]
    balance: dict[str, dict[str, int]]
    duplicates: dict[str, Any]
    files: dict[str, dict[str, Any]]
    contamination: dict[str, Any]
    groups: dict[str, int]
    tokens: dict[str, Any]
    turns: dict[str, int]
    not_measured: list[str]
    # Functions of `curate.transform`, their files' SHA-256 and the rows added; None if it is not set.
    transform: dict[str, Any] | None = None
    pairs: dict[str, Any] | None = None  # None if `curate.pairs` makes none
    sources: dict[str, dict[str, Any]] | None = None  # origin of fetched data; None if none was fetched
    files_without_row: dict[str, str] | None = None  # name → reason; None if there are none
    answers: list[dict[str, Any]] | None = None  # different answers and their rows; None if they are not few
    calls: dict[str, Any] | None = None  # rows that call tools, tools that they lack, tools not shown
    # sources of rows with different answers, of each of the first such questions; None if there are none
    answered_differently: list[list[str]] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the report's keys and values in order, without pairs and sources if there are none."""
        return {key: value for key, value in vars(self).items() if value is not None}


@dataclass
class CurationStats:
    """Results of reading and cleaning, line by line. They grow block by block."""

    files: dict[str, FileStats]
    refused: Mapping[str, BadLine] = field(default_factory=dict)  # name → why the file is not read
    cleaning: CleaningStats = field(default_factory=CleaningStats)
    # The first `MOST_DOMAINS` names in order of appearance.
    domains: dict[str, None] = field(default_factory=dict)

    @classmethod
    def of(cls, files: Mapping[str, str], refused: Mapping[str, BadLine]) -> "CurationStats":
        """Return statistics without rows. `files` has the SHA-256 of each file that is read, `refused` the
        reason for each of the others.
        """
        return cls({name: FileStats(sha256) for name, sha256 in files.items()}, refused)

    def add(self, done: Cleaned) -> None:
        """Add one block."""
        file = self.files[done.file]
        file.rows += done.lines
        file.added += done.added
        file.kept += done.lines + done.added - len(done.rejects)
        by_rule = done.cleaning_stats.rejected_by
        file.readable += done.lines + done.added - by_rule["read"] - by_rule["format"]
        file.count(done.cleaning_stats)
        self.cleaning.update(done.cleaning_stats)
        for domain, *_ in done.facts:
            if len(self.domains) < MOST_DOMAINS:
                self.domains.setdefault(domain)

    def report(
        self,
        settings: Curate,
        decisions: Decisions,
        table: Table,
        clusters: Clusters,
        counted: Mapping[str, Any],
    ) -> CurationReport:
        """Return the report on all rows. `clusters` covers the rows that were read; `counted` has the parts
        that others counted.
        """
        lines = decisions.lines()
        cleaning = self.cleaning
        repeated = len(lines) - int((decisions.outcome == KEPT).sum())
        read = sum(file.rows for file in self.files.values())
        added = sum(file.added for file in self.files.values())
        accepted = sum(file.kept for file in self.files.values())
        clean = len(clusters.cluster)
        pairs = len(table) - len(clusters.cluster)
        lost = {rule: int((decisions.outcome == outcome).sum()) for outcome, (rule, _) in OUTCOMES.items()}
        reasons = {reason: lost[rule] for rule, reason in OUTCOMES.values() if lost[rule]}
        domains = list(self.domains)
        reasons_without_row = {name: file.why_no_row() for name, file in self.files.items()}
        without_row = {name: why for name, why in reasons_without_row.items() if why}
        kinds = dict(zip(KINDS, np.bincount(table.kind[lines], minlength=len(KINDS)).tolist(), strict=True))
        return CurationReport(
            seed=settings.seed,
            rows_read=read,
            rows_accepted=accepted,
            rows_rejected=read + added - accepted,
            parts_added=clean - accepted,
            rows_repeated=repeated,
            rows_dropped=sum(lost.values()),
            rows_kept=len(lines),
            rules=self._rules(
                read,
                lost,
                {"length": clean - accepted, "balance": repeated, "pairs": pairs, "transform": added},
            ),
            rejected=cleaning.rejected | reasons,
            files_found=len(self.files) + len(self.refused),
            files_rejected=Counter(why.code for why in self.refused.values()),
            files_unread={name: str(why) for name, why in self.refused.items()},
            files_without_row=without_row or None,
            answers=few_answers(labels_of(file.answers for file in self.files.values())),
            calls=cleaning.of_calls(),
            changed=cleaning.changed,
            redactions=cleaning.redactions,
            length={name: cleaning.length[name] for name in LENGTH},
            formats=cleaning.formats,
            kinds=cleaning.kinds,
            untrained={kind: rows for kind, rows in kinds.items() if rows and kind not in TRAINED},
            scored=int(table.scored[lines].sum()),
            splits={
                split: int((decisions.split[lines] == number).sum()) for number, split in enumerate(SPLITS)
            },
            domains=domain_counts(decisions, table, domains),
            balance=balance_counts(decisions, table, domains),
            duplicates=duplicate_counts(clusters, settings.near_threshold),
            files={
                name: file.summary(by_glob(name, settings.fields, None)) for name, file in self.files.items()
            },
            **counted,
        )

    def _rules(self, read: int, lost: Mapping[str, int], added: Mapping[str, int]) -> list[dict[str, Any]]:
        """Return the rows that every rule saw, passed on, rejected and changed, in the order of the rules.

        `added` has the rows that rules add, by rule.
        """
        steps = []
        now = read
        for record in RULES:
            rule = record.name
            rejected = lost.get(rule, self.cleaning.rejected_by[rule])
            after = now - rejected + added.get(rule, 0)
            is_idle = after == now and not rejected and not self.cleaning.rows_changed[rule]
            if is_idle and not record.is_mentioned_idle:
                continue
            steps.append(
                {
                    "rule": rule,
                    "rows_in": now,
                    "rows_out": after,
                    "rejected": rejected,
                    "changed": self.cleaning.rows_changed[rule],
                }
            )
            now = after
        return steps


def check_report(report: CurationReport, folder: Path, rejects: Path) -> None:
    """Compare the counts with each other and with the files written.

    A difference is a bug in this program.
    """
    written = {split: count_lines(folder / f"{split}.jsonl") for split in SPLITS}
    pairs = report.pairs or {"made": 0, "rows": {}, "splits": {}, "scored_rows": 0}
    lost = report.rows_rejected + report.rows_dropped
    balanced = (
        report.rows_accepted + report.parts_added + pairs["made"] + report.rows_repeated
        == report.rows_kept + report.rows_dropped
        and sum(pairs["rows"].values()) == pairs["scored_rows"]
        and pairs["rows"].get("paired", 0) == 2 * pairs["made"] == 2 * sum(pairs["splits"].values())
        and report.rules[-1]["rows_out"] == report.rows_kept
        and sum(report.rejected.values()) == lost
    )
    entries = lost + len(report.files_unread)
    if not balanced or written != report.splits or count_lines(rejects) != entries:
        raise RuntimeError(
            f"curate's statistics do not balance: {report}, written {written} and {count_lines(rejects)} "
            "rejects"
        )


def count_lines(path: Path) -> int:
    """Return the number of newline bytes in a file."""
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
