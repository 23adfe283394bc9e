"""The account of a curation: the statistics of `reports/data.json`, their check, samples for the page."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.chat.rows import TRAINED, Row
from pipeline.config.sections import Curate
from pipeline.core.errors import DataError
from pipeline.core.jsonl import BadLine
from pipeline.core.text import plural
from pipeline.stages.curate.clean import KINDS, Cleaned, CleaningStats, file_entry, keep_sample
from pipeline.stages.curate.comparing.decide import (
    FACT,
    FATES,
    KEPT,
    MOST_DOMAINS,
    SAMPLED_OUT,
    SPLITS,
    TRAIN,
    Decisions,
    Table,
    hash_of,
)
from pipeline.stages.curate.comparing.duplicates import Clusters
from pipeline.stages.curate.comparing.features import ALGORITHM
from pipeline.stages.curate.comparing.row_parts import parts, request_and_answer
from pipeline.stages.curate.rules.heuristics import JUDGES
from pipeline.stages.curate.spool import Rows

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
BARS = 32  # most bars of the token histogram
# of clusters, for the histogram: how a bar is called, and the smallest size in it
SIZES = {"2": 2, "3": 3, "4-7": 4, "8-15": 8, "16+": 16}
# of the page's samples
SHOWN = 8
LOOKED_AT = 1000  # near-duplicates among which clusters are chosen
ROWS_SHOWN = 3
TEXT = 1200  # characters of a row


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
        self.lines += done.lines
        self.accepted += accepted
        self.cleaning_stats.update(done.cleaning_stats)
        file = self.files[done.file]
        file["rows"] += done.lines
        file["kept"] += accepted
        file["rejected"] += len(done.rejects)
        file["formats"].update(counted(done.cleaning_stats, "formats"))
        self._add_samples(done.samples)
        number = self.numbers[done.file]
        self._add_domains(fact[0] for fact in done.facts)
        rows = [(number, hash_of(domain), *facts) for domain, *facts in done.facts]
        return np.array(rows, FACT)

    def merge(self, later: "CurationStats") -> None:
        """Add what another shard, which read behind this one, found."""
        self.lines += later.lines
        self.accepted += later.accepted
        self.cleaning_stats.update(later.cleaning_stats)
        for name, theirs in later.files.items():
            mine = self.files[name]
            for key in ("rows", "kept", "rejected"):
                mine[key] += theirs[key]
            for key in ("formats", "notes"):
                mine[key].update(theirs[key])
        self._add_samples(later.samples)
        self._add_domains(later.domains)

    def _add_samples(self, samples: Mapping[str, list[dict[str, Any]]]) -> None:
        for key, entries in samples.items():
            for entry in entries:
                keep_sample(self.samples, key, entry)

    def _add_domains(self, names: Iterable[str]) -> None:
        for name in names:
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


def domain_counts(decisions: Decisions, table: Table, domains: Sequence[str]) -> dict[str, dict[str, int]]:
    """Clean rows and rows in each split, by domain."""
    kept = decisions.fate == KEPT
    splits = {split: kept & (decisions.split == number) for number, split in enumerate(SPLITS)}
    return _by_domain({"read": np.ones(len(table), np.bool_), **splits}, table, domains)


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
    histogram, _ = np.histogram(sizes, [*SIZES.values(), np.inf])
    return {
        "exact_rows": int(clusters.exact.sum()),
        "near_rows": int(sizes.sum() - len(sizes) - clusters.exact.sum()),
        "clusters": len(sizes),
        "largest_cluster": int(sizes.max(initial=0)),
        "threshold": settings.near_threshold,
        "algorithm": ALGORITHM,
        "histogram": dict(zip(SIZES, histogram.tolist(), strict=True)),
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
    return {
        "rows_measured": len(tokens),
        "histogram": [
            {"from": i * width, "to": (i + 1) * width, "rows": count}
            for i, count in enumerate(np.bincount(tokens // width).tolist())
        ],
        "p50": int(np.percentile(tokens, 50)),
        "p95": int(np.percentile(tokens, 95)),
        "max": int(tokens.max()),
    }


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


def check_not_empty(
    counts: Mapping[str, Any], samples: Mapping[str, list[dict[str, Any]]], raw: Path, settings: Curate
) -> None:
    """Raise `DataError` if there is nothing to train on, or nothing to measure on though `test_fraction` asks
    for it.

    `samples` has rejects under "reject REASON".
    """
    kept, splits = counts["rows_kept"], counts["splits"]
    if not kept:
        commonest = (Counter(counts["rejected"]) + Counter(counts["files_rejected"])).most_common(3)
        reasons = ", ".join(f"{count} {code}" for code, count in commonest) or "no line in it"
        first = next(iter(samples.get(f"reject {commonest[0][0]}", [])), None) if commonest else None
        where = first and f"{first['file']}{' line ' + str(first['line']) if first['line'] else ''}"
        example = f"; first {where}: {first['detail']}" if first else ""
        raise DataError(
            "Q-CURATE-013",
            f"0 of {plural(counts['rows_read'], 'row')} in {raw} can be used ({reasons}{example}): "
            "docs/data-formats.md shows what is read",
        )
    for split, wanted in (("train", True), ("test", settings.test_fraction > 0)):
        if wanted and not splits[split]:
            lost = counts["rows_rejected"] + counts["rows_dropped"]
            raise DataError(
                "Q-CURATE-014",
                f"of {plural(kept, 'row')} in {raw} none is left for {split} at val_fraction "
                f"{settings.val_fraction} and test_fraction {settings.test_fraction} "
                f"({plural(lost, 'was', 'were')} rejected): add rows or change these fractions",
            )


def cluster_samples(rows: Rows, clusters: Clusters) -> list[dict[str, Any]]:
    """The kept row of some clusters beside those that differ most: they tell if the threshold is right."""
    near = np.flatnonzero(clusters.similarity < 1)
    order = near[np.argsort(clusters.similarity[near], kind="stable")]
    shown: dict[int, list[int]] = {}
    for row in order[:LOOKED_AT].tolist():
        name = int(clusters.cluster[row])
        if name in shown or len(shown) < SHOWN:
            shown.setdefault(name, []).append(row)
    return [
        {
            "kept": _sample(rows, int(np.flatnonzero((clusters.cluster == name) & clusters.keep)[0])),
            "dropped": [
                _sample(rows, row) | {"similarity": round(float(clusters.similarity[row]), 3)}
                for row in dropped[:ROWS_SHOWN]
            ],
        }
        for name, dropped in shown.items()
    ]


def _sample(rows: Rows, index: int) -> dict[str, Any]:
    return {"source": rows.source(index), "text": answer_text(rows.row(index))}


def answer_samples(rows: Rows, requests: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
    """Requests that have several answers."""
    pairs = [[request_and_answer(rows.row(row)) for row in own[:4]] for own in requests]
    return [{"prompt": _cut(own[0][0]), "answers": [_cut(answer) for _, answer in own]} for own in pairs]


def pair_samples(rows: Rows, pairs: Sequence[tuple[int, int, float]]) -> list[dict[str, Any]]:
    """The first pairs (chosen row, rejected row, gap of their rewards): request and both answers."""
    found = []
    for chosen, rejected, gap in pairs[:SHOWN]:
        better, worse = rows.row(chosen), rows.row(rejected)
        answers = [_cut(request_and_answer(row)[1]) for row in (better, worse)]
        prompt = _cut(request_and_answer(better)[0])
        sources = [better["source"], worse["source"]]
        found.append({"prompt": prompt, "answers": answers, "sources": sources, "gap": gap})
    return found


def answer_text(row: Row) -> str:
    """All that a row says, a turn a line."""
    return _cut("\n".join(f"{part.role}: {part.text}" for part in parts(row)))


def _cut(text: str) -> str:
    return text if len(text) <= TEXT else f"{text[:TEXT]}…"
