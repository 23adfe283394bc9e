"""The account of every line: what `reports/data.json` holds, and the checks that it adds up."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from pipeline.chat.rows import TRAINED, Kind
from pipeline.config.sections import Curate
from pipeline.core.errors import DataError
from pipeline.core.jsonl import BadLine
from pipeline.core.wording import plural
from pipeline.stages.curate.clean import Cleaned, Tally, keep_sample
from pipeline.stages.curate.comparing.decide import FATES, KEPT, SAMPLED_OUT, Decisions, Table
from pipeline.stages.curate.comparing.duplicates import Clusters
from pipeline.stages.curate.comparing.minhash import ALGORITHM
from pipeline.stages.curate.comparing.splits import SPLITS, TRAIN
from pipeline.stages.curate.rules.heuristics import JUDGES

ROW_RULES = (
    "read", "format", "normalise", "secrets", "personal", "reasoning", "turns", *JUDGES, "control_tokens", "length",
)  # fmt: skip
MOST_DOMAINS, OTHER = 1000, "(other)"  # a domain that is named once a row is no domain
MOST_TURNS = 65535  # that are told apart
KINDS: tuple[str, ...] = get_args(Kind)
BARS = 32  # most bars of the token histogram
SIZES = ((2, 2), (3, 3), (4, 7), (8, 15), (16, None))  # of clusters, for the histogram


@dataclass
class Account:
    """What the first phase, line by line, found; grows block by block."""

    tally: Tally = field(default_factory=Tally)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)  # of the files, in order
    files_found: int = 0
    files_rejected: Counter[str] = field(default_factory=Counter)
    files_unread: dict[str, str] = field(default_factory=dict)  # name → why
    kinds: Counter[str] = field(default_factory=Counter)
    domains: dict[str, int] = field(default_factory=dict)  # name → number, in order of appearance
    samples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # "reject REASON" or "change RULE" → the first few
    columns: list[tuple[NDArray, ...]] = field(default_factory=list)  # of `Table`, a block at a time

    def open_file(self, name: str, sha256: str) -> Counter[str]:
        """Begin a file; gives the counter for what its reader notes."""
        notes: Counter[str] = Counter()
        self.numbers[name] = len(self.numbers)
        self.files[name] = {"rows": 0, "kept": 0, "rejected": 0, "sha256": sha256, "formats": {}, "notes": notes}
        return notes

    def refuse(self, name: str, why: BadLine) -> dict[str, Any]:
        """Account for a whole file that isn't read; gives its line for the rejects."""
        entry = {"file": name, "line": None, "offset": None, "rule": "read", "reason": why.code, "detail": str(why), "text": ""}
        self.files_rejected[why.code] += 1
        self.files_unread[name] = str(why)
        keep_sample(self.samples, f"reject {why.code}", entry)
        return entry

    def add(self, done: Cleaned) -> None:
        """Add one block."""
        tally, file = done.tally, self.files[done.file]
        self.tally.add(tally)
        file["rows"] += tally.lines
        file["kept"] += tally.accepted
        file["rejected"] += tally.lines - tally.accepted
        for format, count in tally.formats.items():
            file["formats"][format] = file["formats"].get(format, 0) + count
        self.kinds.update(done.kinds)
        for key, entries in done.samples.items():
            for entry in entries:
                keep_sample(self.samples, key, entry)
        count = len(done.ids)
        self.columns.append((
            np.full(count, self.numbers[done.file], np.int32),
            np.fromiter(map(self._domain, done.domains), np.int32, count),
            np.fromiter((int(identity, 16) for identity in done.ids), np.uint64, count),
            np.fromiter((min(turns, MOST_TURNS) for turns in done.turns), np.uint16, count),
            np.fromiter(map(KINDS.index, done.kinds), np.uint8, count),
            np.fromiter(done.scored, np.bool_, count),
        ))  # fmt: skip

    def _domain(self, name: str) -> int:
        if name not in self.domains and len(self.domains) >= MOST_DOMAINS:
            name = OTHER
        return self.domains.setdefault(name, len(self.domains))

    def table(self) -> Table:
        """What the rules that compare rows need to know of each clean row."""
        types = (np.int32, np.int32, np.uint64, np.uint16, np.uint8, np.bool_)
        empty = tuple(np.zeros(0, each) for each in types)
        columns = [np.concatenate(parts) for parts in zip(empty, *self.columns, strict=True)]
        self.columns.clear()
        return Table(*columns)

    def samples_of(self, kind: str) -> list[dict[str, Any]]:
        """The samples of all reasons ("reject") or rules ("change")."""
        return [entry for key, entries in self.samples.items() if key.startswith(kind + " ") for entry in entries]

    def summary(self, settings: Curate, decisions: Decisions, table: Table, clusters: Clusters, extra: Mapping[str, Any]) -> dict[str, Any]:
        """What `reports/data.json` holds; `extra` are the parts that others have counted."""
        kept = decisions.fate == KEPT
        lost = {rule: int((decisions.fate == fate).sum()) for fate, (rule, _) in FATES.items()}
        reasons = {reason: lost[rule] for rule, reason in FATES.values() if lost[rule]}
        domains = list(self.domains)
        kinds = dict(zip(KINDS, np.bincount(table.kind[kept], minlength=len(KINDS)).tolist(), strict=True))
        return {
            "seed": settings.seed,
            "rows_read": self.tally.lines,
            "rows_accepted": self.tally.accepted,
            "rows_rejected": self.tally.lines - self.tally.accepted,
            "parts_added": len(table.key) - self.tally.accepted,
            "rows_dropped": sum(lost.values()),
            "rows_kept": int(kept.sum()),
            "rules": self.rules(lost, len(table.key) - self.tally.accepted),
            "rejected": dict(self.tally.rejected) | reasons,
            "files_found": self.files_found,
            "files_rejected": dict(self.files_rejected),
            "files_unread": dict(self.files_unread),
            "changed": dict(self.tally.changed),
            "redactions": dict(sorted(self.tally.redactions.items())),
            "formats": dict(self.tally.formats),
            "kinds": dict(self.kinds),
            "untrained": {kind: rows for kind, rows in kinds.items() if rows and kind not in TRAINED},
            "scored": int(table.scored[kept].sum()),
            "splits": {split: int((decisions.split[kept] == number).sum()) for number, split in enumerate(SPLITS)},
            "domains": domain_counts(decisions, table, domains),
            "balance": balance_counts(decisions, table, domains),
            "duplicates": duplicate_counts(clusters, settings),
            "files": {name: file | {"notes": {note: count for note, count in file["notes"].items() if count}} for name, file in self.files.items()},
            **extra,
        }

    def rules(self, lost: Mapping[str, int], parts_added: int) -> list[dict[str, Any]]:
        """How many rows every rule saw, passed on, rejected and changed, in the order in which they are applied."""
        table, now = [], self.tally.lines
        for rule in (*ROW_RULES, *lost):
            rejected = lost.get(rule, self.tally.rejected_by[rule])
            after = now - rejected + (parts_added if rule == "length" else 0)
            table.append({"rule": rule, "rows_in": now, "rows_out": after, "rejected": rejected, "changed": self.tally.rows_changed[rule]})
            now = after
        return table


def domain_counts(decisions: Decisions, table: Table, domains: Sequence[str]) -> dict[str, dict[str, int]]:
    """Clean rows and rows in each split, by domain."""
    kept = decisions.fate == KEPT
    read = np.bincount(table.domain, minlength=len(domains))
    by_split = [np.bincount(table.domain[kept & (decisions.split == number)], minlength=len(domains)) for number in range(len(SPLITS))]
    return {name: {"read": int(read[i])} | {split: int(by_split[number][i]) for number, split in enumerate(SPLITS)} for i, name in enumerate(domains)}


def balance_counts(decisions: Decisions, table: Table, domains: Sequence[str]) -> dict[str, dict[str, int]]:
    """Training rows before and after balancing, by domain."""
    after = (decisions.fate == KEPT) & (decisions.split == TRAIN)
    before = after | (decisions.fate == SAMPLED_OUT)
    counts = [np.bincount(table.domain[rows], minlength=len(domains)) for rows in (before, after)]
    return {name: {"before": int(counts[0][i]), "after": int(counts[1][i])} for i, name in enumerate(domains)}


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
        "histogram": {_size_name(low, high): int(((sizes >= low) & (sizes <= (high or sizes.max(initial=0)))).sum()) for low, high in SIZES},
    }


def group_counts(group: NDArray[np.int32], kept: NDArray[np.bool_]) -> dict[str, int]:
    """Groups of related kept rows, which the split keeps together."""
    sizes = np.bincount(group[kept], minlength=1)
    return {"groups": int((sizes > 1).sum()), "rows_in_groups": int(sizes[sizes > 1].sum())}


def turn_counts(turns: NDArray[np.uint16]) -> dict[str, int]:
    """Rows by their number of turns, the system's not counted."""
    return {str(number): count for number, count in enumerate(np.bincount(turns, minlength=1).tolist()) if count}


def token_counts(tokens: NDArray[np.int64]) -> dict[str, Any]:
    """Quantiles and a histogram of rows' lengths in tokens."""
    if not len(tokens):
        return {"rows_measured": 0}
    width = next(width for width in (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 1 << 30) if tokens.max() < BARS * width)
    bars = np.bincount(tokens // width)
    return {
        "rows_measured": len(tokens),
        "histogram": [{"from": i * width, "to": (i + 1) * width, "rows": count} for i, count in enumerate(bars.tolist())],
        "p50": int(np.percentile(tokens, 50)),
        "p95": int(np.percentile(tokens, 95)),
        "max": int(tokens.max()),
    }


def _size_name(low: int, high: int | None) -> str:
    return f"{low}+" if high is None else str(low) if low == high else f"{low}-{high}"


def check_account(counts: Mapping[str, Any], folder: Path, rejects: Path) -> None:
    """Compare the counts with each other and with the files written; a difference is a bug of ours."""
    written = {split: count_lines(folder / f"{split}.jsonl") for split in SPLITS}
    entries = counts["rows_rejected"] + counts["rows_dropped"] + sum(counts["files_rejected"].values())
    whole = (
        counts["rows_read"] == counts["rows_accepted"] + counts["rows_rejected"]
        and counts["rows_accepted"] + counts["parts_added"] == counts["rows_kept"] + counts["rows_dropped"]
        and counts["rules"][-1]["rows_out"] == counts["rows_kept"]
        and sum(counts["rejected"].values()) == counts["rows_rejected"] + counts["rows_dropped"]
        and sum(file["rows"] for file in counts["files"].values()) == counts["rows_read"]
        and all(file["rows"] == file["kept"] + file["rejected"] for file in counts["files"].values())
        and counts["files_found"] == len(counts["files"]) + len(counts["files_unread"])
        and sum(counts["files_rejected"].values()) == len(counts["files_unread"])
    )
    if not whole or written != counts["splits"] or count_lines(rejects) != entries:
        raise RuntimeError(f"curate's account does not balance: {counts}, written {written} and {count_lines(rejects)} rejects")


def count_lines(path: Path) -> int:
    """Newline bytes in a file."""
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))


def refuse_empty(counts: Mapping[str, Any], samples: Mapping[str, list[dict[str, Any]]], raw: Path, settings: Curate) -> None:
    """Raise `DataError` where there is nothing to train on, or nothing to measure on though `test_fraction` asks for it.

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
