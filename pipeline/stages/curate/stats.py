"""The statistics of every line: what `reports/data.json` holds."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from pipeline.chat.rows import TRAINED, Kind
from pipeline.config.sections import Curate
from pipeline.core.jsonl import BadLine
from pipeline.stages.curate.clean import Cleaned, CleaningStats, keep_sample
from pipeline.stages.curate.comparing.decide import FATES, KEPT, ROW, SAMPLED_OUT, Decisions, Table
from pipeline.stages.curate.comparing.duplicates import Clusters
from pipeline.stages.curate.comparing.minhash import ALGORITHM
from pipeline.stages.curate.comparing.splits import SPLITS, TRAIN
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
MOST_TURNS = 65535  # that are distinguished
KINDS: tuple[str, ...] = get_args(Kind)
BARS = 32  # most bars of the token histogram
SIZES = ((2, 2), (3, 3), (4, 7), (8, 15), (16, None))  # of clusters, for the histogram


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
        entry = {
            "file": name,
            "line": None,
            "offset": None,
            "rule": "read",
            "reason": why.code,
            "detail": str(why),
            "text": "",
        }
        self.cleaning_stats["files_rejected", why.code] += 1
        self.files_unread[name] = str(why)
        keep_sample(self.samples, f"reject {why.code}", entry)
        return entry

    def add(self, done: Cleaned) -> None:
        """Add one block."""
        self.lines += done.lines
        self.accepted += done.accepted
        self.cleaning_stats.update(done.cleaning_stats)
        file = self.files[done.file]
        file["rows"] += done.lines
        file["kept"] += done.accepted
        file["rejected"] += done.lines - done.accepted
        file["formats"].update(counted(done.cleaning_stats, "formats"))
        for key, entries in done.samples.items():
            for entry in entries:
                keep_sample(self.samples, key, entry)
        self.cleaning_stats.update(("kinds", row.kind) for row in done.facts)
        number = self.numbers[done.file]
        self.rows.append(
            np.array(
                [
                    (
                        number,
                        self._domain(row.domain),
                        int(row.id, 16),
                        min(row.turns, MOST_TURNS),
                        KINDS.index(row.kind),
                        row.scored,
                    )
                    for row in done.facts
                ],
                ROW,
            )
        )

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
    ) -> dict[str, Any]:
        """What `reports/data.json` holds; `extra` are the parts that others have counted."""
        kept = decisions.fate == KEPT
        lost = {rule: int((decisions.fate == fate).sum()) for fate, (rule, _) in FATES.items()}
        reasons = {reason: lost[rule] for rule, reason in FATES.values() if lost[rule]}
        domains = list(self.domains)
        kinds = dict(zip(KINDS, np.bincount(table.kind[kept], minlength=len(KINDS)).tolist(), strict=True))
        return {
            "seed": settings.seed,
            "rows_read": self.lines,
            "rows_accepted": self.accepted,
            "rows_rejected": self.lines - self.accepted,
            "parts_added": len(table.key) - self.accepted,
            "rows_dropped": sum(lost.values()),
            "rows_kept": int(kept.sum()),
            "rules": self.rules(lost, len(table.key) - self.accepted),
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

    def rules(self, lost: Mapping[str, int], parts_added: int) -> list[dict[str, Any]]:
        """How many rows every rule saw, passed on, rejected and changed, in the order in which they are
        applied.
        """
        steps, now = [], self.lines
        for rule in (*ROW_RULES, *lost):
            rejected = lost.get(rule, self.cleaning_stats["rejected_by", rule])
            after = now - rejected + (parts_added if rule == "length" else 0)
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


def domain_counts(decisions: Decisions, table: Table, domains: Sequence[str]) -> dict[str, dict[str, int]]:
    """Clean rows and rows in each split, by domain."""
    rows = {"read": np.ones(len(table), np.bool_)}
    rows |= {
        split: (decisions.fate == KEPT) & (decisions.split == number) for number, split in enumerate(SPLITS)
    }
    return _by_domain(rows, table, domains)


def balance_counts(decisions: Decisions, table: Table, domains: Sequence[str]) -> dict[str, dict[str, int]]:
    """Training rows before and after balancing, by domain."""
    after = (decisions.fate == KEPT) & (decisions.split == TRAIN)
    return _by_domain({"before": after | (decisions.fate == SAMPLED_OUT), "after": after}, table, domains)


def _by_domain(
    rows: Mapping[str, NDArray[np.bool_]], table: Table, domains: Sequence[str]
) -> dict[str, dict[str, int]]:
    counts = {
        name: np.bincount(table.domain[some], minlength=len(domains)).tolist() for name, some in rows.items()
    }
    return {domain: {name: count[i] for name, count in counts.items()} for i, domain in enumerate(domains)}


def duplicate_counts(clusters: Clusters, settings: Curate) -> dict[str, Any]:
    """Sizes of the clusters, and how many rows are copies."""
    sizes = np.bincount(clusters.cluster, minlength=1)
    sizes = sizes[sizes > 1]
    return {
        "exact_rows": int(clusters.exact.sum()),
        "near_rows": int(sizes.sum() - len(sizes) - clusters.exact.sum()),
        "clusters": len(sizes),
        "largest_cluster": int(sizes.max(initial=0)),
        "threshold": settings.near_threshold,
        "algorithm": ALGORITHM,
        "histogram": {
            _size_name(low, high): int(((sizes >= low) & (sizes <= (high or sizes.max(initial=0)))).sum())
            for low, high in SIZES
        },
    }


def group_counts(group: NDArray[np.int32], kept: NDArray[np.bool_]) -> dict[str, int]:
    """Groups of related kept rows, which the split keeps together."""
    sizes = np.bincount(group[kept], minlength=1)
    return {"groups": int((sizes > 1).sum()), "rows_in_groups": int(sizes[sizes > 1].sum())}


def turn_counts(turns: NDArray[np.uint16]) -> dict[str, int]:
    """Rows by their number of turns, the system's not counted."""
    return {
        str(number): count for number, count in enumerate(np.bincount(turns, minlength=1).tolist()) if count
    }


def token_counts(tokens: NDArray[np.int64]) -> dict[str, Any]:
    """Quantiles and a histogram of rows' lengths in tokens."""
    if not len(tokens):
        return {"rows_measured": 0}
    width = next(
        width
        for width in (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 1 << 30)
        if tokens.max() < BARS * width
    )
    bars = np.bincount(tokens // width)
    return {
        "rows_measured": len(tokens),
        "histogram": [
            {"from": i * width, "to": (i + 1) * width, "rows": count} for i, count in enumerate(bars.tolist())
        ],
        "p50": int(np.percentile(tokens, 50)),
        "p95": int(np.percentile(tokens, 95)),
        "max": int(tokens.max()),
    }


def _size_name(low: int, high: int | None) -> str:
    return f"{low}+" if high is None else str(low) if low == high else f"{low}-{high}"
