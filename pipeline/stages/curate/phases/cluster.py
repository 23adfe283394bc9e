"""The decisions on all rows together, made from what they have in common: clusters, splits, leaks, balance,
pairs; and the account of them.
"""

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.chat.rows import BadRow
from pipeline.config.sections import Curate
from pipeline.core.hashing import file_hash
from pipeline.core.jsonl import dump_line
from pipeline.stages.curate.account import CurationReport, CurationStats
from pipeline.stages.curate.comparing.contamination import PHRASE_ROWS, Overlaps, commonest, describe, phrases
from pipeline.stages.curate.comparing.decide import (
    CONTAMINATED,
    KEPT,
    TEST,
    decide_balance,
    decide_duplicates,
    decide_splits,
    leaks_prevented,
    table_of,
)
from pipeline.stages.curate.comparing.duplicates import Clusters, clusters_of, group_counts
from pipeline.stages.curate.comparing.sketched import PRINTS
from pipeline.stages.curate.comparing.spill import Spill, pieces, sizes
from pipeline.stages.curate.inputs import by_glob
from pipeline.stages.curate.pairs import add_pairs, make_pairs, near_duplicates, pair_counts
from pipeline.stages.curate.phases.cleaning import ROWS, clean_facts, clean_rows
from pipeline.stages.curate.phases.compare import (
    JOINED,
    SAMPLED,
    Answers,
    Sample,
    read_sketched,
)
from pipeline.stages.curate.places import MOST
from pipeline.stages.curate.rules.catalog import switched_off
from pipeline.stages.curate.rules.token_counter import TokenCounter
from pipeline.stages.curate.samples import answer_samples, row_samples
from pipeline.stages.curate.spool import Rows, Spool, spread_evenly

TOKEN_ROWS = 2000  # rows whose tokens are counted for the histogram
BARS = 32  # most bars of the token histogram
DECIDED = "decided"  # the folder of this phase, with `ROWS`: pairs made of all rows
CLUSTERS = "clusters.jsonl"
DECISION = np.dtype(
    [("outcome", "u1"), ("split", "u1"), ("duplicate_of", "i4"), ("copies", "i4"), ("similarity", "f4")]
)


class Decided(NamedTuple):
    """The decisions: a `DECISION` for each clean row and each pair made of all rows, and for contaminated
    rows the words of their entries in data/rejects.jsonl; the account of it, and the samples of the page.
    """

    decisions: NDArray
    leaks: dict[int, dict[str, Any]]
    report: CurationReport
    samples: dict[str, Any]


def cluster(
    root: Path, settings: Curate, work: Path, stats: CurationStats, sampled: Sample, answers: Answers
) -> Decided:
    """Decide on every row."""
    folder = work / DECIDED
    folder.mkdir()
    rows = clean_rows(work)
    table = table_of(clean_facts(work), stats.domains)
    clusters = clusters_of(read_sketched(work), sampled.first, settings.near_threshold)
    decisions = decide_duplicates(clusters, settings.drop_duplicates)
    used = (decisions.outcome == KEPT) | near_duplicates(decisions, table, settings)
    overlaps = _overlaps(work, rows, used, clusters.group, sampled)
    clusters = replace(clusters, group=overlaps.related(used, clusters.group, rows.row))
    split_by = decide_splits(decisions, table, clusters, settings)
    divided = {} if split_by is clusters else {"documents_divided": 1}
    prevented = leaks_prevented(decisions, table, split_by, settings)
    tested = decisions.split == TEST
    leaks = {leak.row: leak for leak in overlaps.leaks(used & ~tested, used & tested, rows.row)}
    decisions.outcome[list(leaks)] = CONTAMINATED
    weights = [by_glob(name, settings.source_weights, 1.0) for name in stats.files]
    decide_balance(decisions, table, settings, weights)
    pairs = make_pairs(rows, decisions, table, clusters, settings, weights)
    of_pairs = pair_counts(pairs, decisions, table) if settings.pairs != "none" else None
    spool = Spool(folder / ROWS)
    decisions, table = add_pairs(rows, spool, pairs.made, decisions, table)
    spool.finish()
    everything = Rows([*rows.spools, folder / ROWS])
    samples = row_samples(everything, pairs, leaks, decisions, clusters, settings)
    samples["answers"] = answer_samples(everything, answers.shown)
    kept = decisions.outcome == KEPT
    # System turns are not counted.
    turns = np.bincount(table.turns[decisions.lines()], minlength=1).tolist()
    group = np.append(clusters.group, clusters.group[[pair.chosen for pair in pairs.made]])
    counted = {
        "contamination": {
            "rows": len(leaks),
            "sources": dict(Counter(leak.file or "test" for leak in leaks.values())),
            **({"spans": commonest(leaks.values())} if leaks else {}),
            "guarded_texts": sampled.guarded,
        },
        "groups": group_counts(group, kept)
        | {"requests_with_several_answers": answers.requests, "leaks_prevented": prevented}
        | divided,
        "tokens": count_tokens(root / "models/base", everything, kept),
        "turns": {str(number): rows for number, rows in enumerate(turns) if rows},
        "not_measured": switched_off(settings, has_base=(root / "models/base").is_dir()),
        "transform": transform_account(root, settings, stats) if settings.transform else None,
        "pairs": of_pairs,
        "answered_differently": [sample["sources"] for sample in samples["answers"]][:MOST] or None,
    }
    decided = np.ones(len(table), DECISION)
    for name in ("outcome", "split", "duplicate_of", "copies"):
        decided[name] = getattr(decisions, name)
    decided["similarity"][: len(rows)] = clusters.similarity
    _write_clusters(rows, clusters, folder / CLUSTERS)
    described = {row: describe(leak, rows) for row, leak in leaks.items()}
    report = stats.report(settings, decisions, table, clusters, counted)
    return Decided(decided, described, report, samples)


def _overlaps(
    work: Path, rows: Rows, used: NDArray[np.bool_], group: NDArray[np.int32], sampled: Sample
) -> Overlaps:
    """Return the search for rows that share text with each other or with data/guard, phrases left out.

    `group` is the group of every row. Phrases are those of the `used` rows.
    """
    shown = np.array(spread_evenly(np.flatnonzero(used), PHRASE_ROWS), np.int64)
    shown = shown[np.argsort(group[shown], kind="stable")].tolist()
    known_phrases = phrases(((int(group[row]), rows.row(row)) for row in shown), work / DECIDED)
    prints = Spill(work / JOINED, PRINTS)
    return Overlaps(prints, work / SAMPLED, sampled.boilerplate.grams, known_phrases)


def _write_clusters(rows: Rows, clusters: Clusters, path: Path) -> None:
    """Write a line per cluster of duplicates: the sources of its rows, the best one, exact copies, the
    smallest similarity to the best.
    """
    members = np.argsort(clusters.cluster, kind="stable").astype(np.int32)
    members = members[sizes(clusters.cluster[members]) > 1]
    with path.open("wb", buffering=1 << 20) as file:
        for chunk in pieces(members, clusters.cluster[members]):
            entry = {
                "rows": [rows.source(row) for row in chunk.tolist()],
                "best": rows.source(int(chunk[clusters.keep[chunk]][0])),
                "exact": int((clusters.first[chunk] != chunk).sum()),
                "similarity": round(float(clusters.similarity[chunk].min()), 4),
            }
            file.write(dump_line(entry))


def transform_account(root: Path, settings: Curate, stats: CurationStats) -> dict[str, Any]:
    """Return the report's entry of `curate.transform`: the functions that made the rows, and their files."""
    names = dict.fromkeys(name.split(":")[1] for name in settings.transform.values())
    return {
        "functions": settings.transform,
        "sha256": {name: file_hash(root / "data/guard" / name) for name in names},
        "rows_added": sum(file.added for file in stats.files.values()),
    }


def count_tokens(base: Path, rows: Rows, kept: NDArray[np.bool_]) -> dict[str, Any]:
    """Return quantiles and a histogram of the token counts of at most `TOKEN_ROWS` kept rows, spread evenly.

    They are missing if there is no tokenizer.
    """
    lengths = list[int]()
    if base.is_dir() and kept.any():
        counter = TokenCounter(base)
        for index in spread_evenly(np.flatnonzero(kept), TOKEN_ROWS):
            with suppress(BadRow):  # A template may refuse a row by its content; preprocess counts such rows.
                lengths.append(counter.count_row(rows.row(index)))
    if not lengths:
        return {"rows_measured": 0}
    tokens = np.array(lengths, np.int64)
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
