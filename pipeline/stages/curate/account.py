"""The account of a curation: the statistics of `reports/data.json`, and their check."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.chat.rows import TRAINED
from pipeline.config.sections import Curate
from pipeline.core.jsonl import BadLine
from pipeline.stages.curate.clean import KINDS, Cleaned, CleaningStats, file_entry, keep_sample
from pipeline.stages.curate.comparing.decide import (
    FACT,
    FATES,
    KEPT,
    MOST_DOMAINS,
    SPLITS,
    Decisions,
    Table,
    balance_counts,
    domain_counts,
    hash_of,
)
from pipeline.stages.curate.comparing.duplicates import Clusters, duplicate_counts
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


@dataclass
class CurationStats:
    """What the first phase, line by line, found; grows block by block, then shard by shard."""

    lines: int = 0
    accepted: int = 0
    cleaning_stats: CleaningStats = field(default_factory=Counter)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)  # of the files, in order
    files_found: int = 0
    files_unread: dict[str, str] = field(default_factory=dict)  # name → why
    # the first `MOST_DOMAINS` names, in order of appearance: no later shard needs more of one shard's
    domains: dict[str, None] = field(default_factory=dict)
    # "reject REASON" or "change RULE" → the first few
    samples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    @classmethod
    def of(cls, files: Mapping[str, str], refused: Mapping[str, BadLine]) -> "CurationStats":
        """Of no row yet: `files` is the SHA-256 of each that is read, `refused` why others are not."""
        stats = cls(files_found=len(files) + len(refused))
        for name, why in refused.items():
            stats.cleaning_stats["files_rejected", why.code] += 1
            stats.files_unread[name] = str(why)
            keep_sample(stats.samples, f"reject {why.code}", file_entry(name, why))
        for name, sha256 in files.items():
            stats.numbers[name] = len(stats.numbers)
            stats.files[name] = {
                "rows": 0,
                "kept": 0,
                "rejected": 0,
                "sha256": sha256,
                "formats": Counter(),
                "notes": Counter(),
            }
        return stats

    def add(self, done: Cleaned) -> NDArray:
        """Add one block; gives a `FACT` of each of its rows."""
        accepted = done.lines - len(done.rejects)
        file = {
            "rows": done.lines,
            "kept": accepted,
            "rejected": len(done.rejects),
            "formats": counted(done.cleaning_stats, "formats"),
            "notes": {},
        }
        domains = dict.fromkeys(domain for domain, *_ in done.facts)
        stats, files = done.cleaning_stats, {done.file: file}
        self.merge(CurationStats(done.lines, accepted, stats, files, domains=domains, samples=done.samples))
        number = self.numbers[done.file]
        rows = [(number, hash_of(domain), *facts) for domain, *facts in done.facts]
        return np.array(rows, FACT)

    def merge(self, later: "CurationStats") -> None:
        """Add what a block, or another shard, found behind what this one has read."""
        self.lines += later.lines
        self.accepted += later.accepted
        self.cleaning_stats.update(later.cleaning_stats)
        for name, theirs in later.files.items():
            ours = self.files[name]
            for key in ("rows", "kept", "rejected"):
                ours[key] += theirs[key]
            for key in ("formats", "notes"):
                ours[key].update(theirs[key])
        for key, entries in later.samples.items():
            for entry in entries:
                keep_sample(self.samples, key, entry)
        for name in later.domains:
            if len(self.domains) < MOST_DOMAINS:
                self.domains.setdefault(name)

    def as_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        return {
            "lines": self.lines,
            "accepted": self.accepted,
            "cleaning_stats": [[*key, count] for key, count in self.cleaning_stats.items()],
            "files": {
                name: file for name, file in self.files.items() if file["rows"] or any(file["notes"].values())
            },
            "domains": [*self.domains],
            "samples": self.samples,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "CurationStats":
        """What a shard found, for `merge`."""
        counts = Counter({(kind, name): count for kind, name, count in value["cleaning_stats"]})
        return cls(
            value["lines"],
            value["accepted"],
            counts,
            value["files"],
            domains=dict.fromkeys(value["domains"]),
            samples=value["samples"],
        )

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
            "duplicates": duplicate_counts(clusters, settings.near_threshold),
            "files": {
                name: file | {"notes": {note: count for note, count in file["notes"].items() if count}}
                for name, file in self.files.items()
            },
            **extra,
        }

    def rules(self, lost: Mapping[str, int], parts_added: int, pairs: int) -> list[dict[str, Any]]:
        """How many rows every rule saw, passed on, rejected and changed, in the order of the rules."""
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


def check_stats(counts: Mapping[str, Any], folder: Path, rejects: Path) -> None:
    """Compare the counts with each other and with the files written; a difference is a bug of ours."""
    written = {split: count_lines(folder / f"{split}.jsonl") for split in SPLITS}
    pairs = counts.get("pairs") or {"made": 0, "rows": {}, "splits": {}, "scored_rows": 0}
    entries = counts["rows_rejected"] + counts["rows_dropped"] + sum(counts["files_rejected"].values())
    balanced = (
        counts["rows_read"] == counts["rows_accepted"] + counts["rows_rejected"]
        and counts["rows_accepted"] + counts["parts_added"] + pairs["made"]
        == counts["rows_kept"] + counts["rows_dropped"]
        and sum(pairs["rows"].values()) == pairs["scored_rows"]
        and pairs["rows"].get("paired", 0) == 2 * pairs["made"] == 2 * sum(pairs["splits"].values())
        and counts["rules"][-1]["rows_out"] == counts["rows_kept"]
        and sum(counts["rejected"].values()) == counts["rows_rejected"] + counts["rows_dropped"]
        and sum(file["rows"] for file in counts["files"].values()) == counts["rows_read"]
        and all(file["rows"] == file["kept"] + file["rejected"] for file in counts["files"].values())
        and counts["files_found"] == len(counts["files"]) + len(counts["files_unread"])
        and sum(counts["files_rejected"].values()) == len(counts["files_unread"])
    )
    if not balanced or written != counts["splits"] or count_lines(rejects) != entries:
        raise RuntimeError(
            f"curate's statistics do not balance: {counts}, written {written} and {count_lines(rejects)} "
            "rejects"
        )


def count_lines(path: Path) -> int:
    """Newline bytes in a file."""
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
