"""The statistics of every line: what `reports/data.json` holds."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.chat.rows import TRAINED
from pipeline.config.sections import Curate
from pipeline.core.jsonl import BadLine
from pipeline.stages.curate.clean import KINDS, Cleaned, CleaningStats, file_entry, keep_sample
from pipeline.stages.curate.comparing.decide import FATES, KEPT, ROW, Decisions, Table
from pipeline.stages.curate.comparing.duplicates import Clusters
from pipeline.stages.curate.comparing.splits import SPLITS
from pipeline.stages.curate.counts import balance_counts, domain_counts, duplicate_counts
from pipeline.stages.curate.rules.heuristics import JUDGES

ROW_RULES = (
    "read",
    "format",
    "normalize",
    "secrets",
    "personal",
    "reasoning",
    "turns",
    *JUDGES,
    "control_tokens",
    "length",
)
MOST_DOMAINS, OTHER = 1000, "(other)"  # a domain that is named once a row is no domain


@dataclass
class CurationStats:
    """What the first phase, line by line, found; grows block by block."""

    lines: int = 0
    accepted: int = 0
    cleaning_stats: CleaningStats = field(default_factory=Counter)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)  # of the files, in order
    files_found: int = 0
    files_unread: dict[str, str] = field(default_factory=dict)  # name → why
    domains: dict[str, int] = field(default_factory=dict)  # name → number, in order of appearance
    # "reject REASON" or "change RULE" → the first few
    samples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    rows: list[NDArray] = field(default_factory=list)  # of `Table`, a block at a time

    def open_file(self, name: str, sha256: str) -> Counter[str]:
        """Begin a file; gives the counter for what its reader notes."""
        notes: Counter[str] = Counter()
        self.numbers[name] = len(self.numbers)
        self.files[name] = {
            "rows": 0,
            "kept": 0,
            "rejected": 0,
            "sha256": sha256,
            "formats": Counter(),
            "notes": notes,
        }
        return notes

    def refuse(self, name: str, why: BadLine) -> dict[str, Any]:
        """Account for a complete file that isn't read; gives its line for the rejects."""
        entry = file_entry(name, why)
        self.cleaning_stats["files_rejected", why.code] += 1
        self.files_unread[name] = str(why)
        keep_sample(self.samples, f"reject {why.code}", entry)
        return entry

    def add(self, done: Cleaned) -> None:
        """Add one block."""
        accepted = done.lines - len(done.rejects)
        self.lines += done.lines
        self.accepted += accepted
        self.cleaning_stats.update(done.cleaning_stats)
        file = self.files[done.file]
        file["rows"] += done.lines
        file["kept"] += accepted
        file["rejected"] += len(done.rejects)
        file["formats"].update(counted(done.cleaning_stats, "formats"))
        for key, entries in done.samples.items():
            for entry in entries:
                keep_sample(self.samples, key, entry)
        number = self.numbers[done.file]
        rows = [(number, self._domain(domain), *facts) for domain, *facts in done.facts]
        self.rows.append(np.array(rows, ROW))

    def _domain(self, name: str) -> int:
        if name not in self.domains and len(self.domains) >= MOST_DOMAINS:
            name = OTHER
        return self.domains.setdefault(name, len(self.domains))

    def table(self) -> Table:
        """What the rules that compare rows need to know of each clean row."""
        return np.concatenate([np.zeros(0, ROW), *self.rows]).view(np.recarray)

    def samples_of(self, kind: str) -> list[dict[str, Any]]:
        """The samples of all reasons ("reject") or rules ("change")."""
        return [
            entry for key, entries in self.samples.items() if key.startswith(kind + " ") for entry in entries
        ]

    def summary(
        self,
        settings: Curate,
        decisions: Decisions,
        table: Table,
        clusters: Clusters,
        extra: Mapping[str, Any],
        pairs: int,
    ) -> dict[str, Any]:
        """What `reports/data.json` holds; `extra` are the parts that others have counted, `pairs` how many of
        the rows are made of others.
        """
        kept = decisions.fate == KEPT
        parts_added = len(table.key) - self.accepted - pairs
        lost = {rule: int((decisions.fate == fate).sum()) for fate, (rule, _) in FATES.items()}
        reasons = {reason: lost[rule] for rule, reason in FATES.values() if lost[rule]}
        domains = list(self.domains)
        kinds = dict(zip(KINDS, np.bincount(table.kind[kept], minlength=len(KINDS)).tolist(), strict=True))
        return {
            "seed": settings.seed,
            "rows_read": self.lines,
            "rows_accepted": self.accepted,
            "rows_rejected": self.lines - self.accepted,
            "parts_added": parts_added,
            "rows_dropped": sum(lost.values()),
            "rows_kept": int(kept.sum()),
            "rules": self.rules(lost, parts_added, pairs),
            "rejected": counted(self.cleaning_stats, "rejected") | reasons,
            "files_found": self.files_found,
            "files_rejected": counted(self.cleaning_stats, "files_rejected"),
            "files_unread": dict(self.files_unread),
            "changed": counted(self.cleaning_stats, "changed"),
            "redactions": dict(sorted(counted(self.cleaning_stats, "redactions").items())),
            "formats": counted(self.cleaning_stats, "formats"),
            "kinds": counted(self.cleaning_stats, "kinds"),
            "untrained": {kind: rows for kind, rows in kinds.items() if rows and kind not in TRAINED},
            "scored": int(table.scored[kept].sum()),
            "splits": {
                split: int((decisions.split[kept] == number).sum()) for number, split in enumerate(SPLITS)
            },
            "domains": domain_counts(decisions, table, domains),
            "balance": balance_counts(decisions, table, domains),
            "duplicates": duplicate_counts(clusters, settings),
            "files": {
                name: file | {"notes": {note: count for note, count in file["notes"].items() if count}}
                for name, file in self.files.items()
            },
            **extra,
        }

    def rules(self, lost: Mapping[str, int], parts_added: int, pairs: int) -> list[dict[str, Any]]:
        """How many rows every rule saw, passed on, rejected and changed, in the order in which they are
        applied.
        """
        steps, now = [], self.lines
        added = {"length": parts_added} | ({"pairs": pairs} if pairs else {})
        for rule in (*ROW_RULES, *lost, *added.keys() - {"length"}):
            rejected = lost.get(rule, self.cleaning_stats["rejected_by", rule])
            after = now - rejected + added.get(rule, 0)
            steps.append(
                {
                    "rule": rule,
                    "rows_in": now,
                    "rows_out": after,
                    "rejected": rejected,
                    "changed": self.cleaning_stats["rows_changed", rule],
                }
            )
            now = after
        return steps


def counted(cleaning_stats: CleaningStats, what: str) -> dict[str, int]:
    """The counts of one kind, by name."""
    return {name: count for (kind, name), count in cleaning_stats.items() if kind == what}
