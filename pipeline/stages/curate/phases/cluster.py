"""The decisions on all rows together, made once from the results of the shards and joins: clusters, splits,
leaks, balance, pairs; and the account of them.

Split, leaks, balance and pairs depend on each other, and each looks at all rows, so they are not divided.
"""

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.chat.rows import BadRow
from pipeline.config.sections import Curate
from pipeline.core.hashing import file_hash
from pipeline.core.jsonl import dump_line
from pipeline.stages.curate.account import CurationStats
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
from pipeline.stages.curate.comparing.duplicates import Clusters, clusters, group_counts
from pipeline.stages.curate.comparing.sketched import PRINTS, Sketched
from pipeline.stages.curate.comparing.spill import Spill, pieces, sizes
from pipeline.stages.curate.inputs import by_glob
from pipeline.stages.curate.pairs import add_pairs, make_pairs, near_duplicates, pair_counts
from pipeline.stages.curate.phases.cleaning import Plan, stats_of
from pipeline.stages.curate.phases.compare import (
    ANSWERS,
    FIRST,
    GUARDED,
    Answers,
    read_boilerplate,
    read_edges,
    read_facts,
)
from pipeline.stages.curate.phases.work import ROWS, Work, dump, load
from pipeline.stages.curate.rules.catalog import switched_off
from pipeline.stages.curate.rules.token_counter import TokenCounter
from pipeline.stages.curate.samples import SHOWN, answer_samples, row_samples
from pipeline.stages.curate.spool import Rows, Spool, spread_evenly

TOKEN_ROWS = 2000  # rows whose tokens are counted for the histogram
BARS = 32  # most bars of the token histogram
REPORT = "report.json"
SAMPLES = "samples.json"
LEAKS = "leaks.jsonl"
CLUSTERS = "clusters.jsonl"
DECIDED = "decided.npy"  # an entry for each row, and for each pair
DECISION = np.dtype(
    [("outcome", "u1"), ("split", "u1"), ("duplicate_of", "i4"), ("copies", "i4"), ("similarity", "f4")]
)


def cluster(root: Path, settings: Curate, work: Work, plan: Plan) -> None:
    """Decide on every row, and write the inputs of `write` and `publish`."""
    stats = stats_of(work, plan)
    rows = work.rows()
    table = table_of(np.concatenate([read_facts(folder) for folder in work.each("clean")]), stats.domains)
    clusters = _clusters(work, rows, settings)
    decisions = decide_duplicates(clusters, settings.drop_duplicates)
    used = (decisions.outcome == KEPT) | near_duplicates(decisions, table, settings)
    overlaps = _overlaps(work, rows, used, clusters.group)
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
    with work.making("cluster") as folder:
        spool = Spool(folder / ROWS)
        decisions, table = add_pairs(rows, spool, pairs.made, decisions, table)
        spool.finish()
        everything = Rows([*rows.spools, folder / ROWS])
        samples = row_samples(everything, pairs, leaks, decisions, clusters, settings)
        requests, samples["answers"] = _answers(work, everything)
        kept = decisions.outcome == KEPT
        # System turns are not counted.
        turns = np.bincount(table.turns[decisions.lines()], minlength=1).tolist()
        group = np.append(clusters.group, clusters.group[[pair.chosen for pair in pairs.made]])
        counted = {
            "contamination": {
                "rows": len(leaks),
                "sources": dict(Counter(leak.file or "test" for leak in leaks.values())),
                **({"spans": commonest(leaks.values())} if leaks else {}),
                "guarded_texts": load(work.filled("sample") / GUARDED, dict[str, int]),
            },
            "groups": group_counts(group, kept)
            | {"requests_with_several_answers": requests, "leaks_prevented": prevented}
            | divided,
            "tokens": count_tokens(root / "models/base", everything, kept),
            "turns": {str(number): rows for number, rows in enumerate(turns) if rows},
            "not_measured": switched_off(settings, has_base=(root / "models/base").is_dir()),
            "transform": transform_account(root, settings, stats) if settings.transform else None,
            "pairs": of_pairs,
        }
        dump(folder / REPORT, stats.report(settings, decisions, table, clusters, counted))
        dump(folder / SAMPLES, samples)
        (folder / LEAKS).write_bytes(
            b"".join(dump_line({"row": leak.row, **describe(leak, rows)}) for leak in leaks.values())
        )
        decided = np.ones(len(table), DECISION)
        for name in ("outcome", "split", "duplicate_of", "copies"):
            decided[name] = getattr(decisions, name)
        decided["similarity"][: len(rows)] = clusters.similarity
        np.save(folder / DECIDED, decided)
        _write_clusters(rows, clusters, folder / CLUSTERS)


def _clusters(work: Work, rows: Rows, settings: Curate) -> Clusters:
    edges = chain.from_iterable(map(read_edges, work.each("join")))
    sketched = Sketched(work.each("sketch"), rows.bases)
    return clusters(sketched, np.load(work.filled("sample") / FIRST), edges, settings.near_threshold)


def _overlaps(work: Work, rows: Rows, used: NDArray[np.bool_], group: NDArray[np.int32]) -> Overlaps:
    """Return the search for rows that share text with each other or with data/guard, phrases left out.

    `group` is the group of every row. Phrases are those of the `used` rows.
    """
    sampled = np.array(spread_evenly(np.flatnonzero(used), PHRASE_ROWS), np.int64)
    sampled = sampled[np.argsort(group[sampled], kind="stable")].tolist()
    with work.making("phrases") as scratch:
        known_phrases = phrases(((int(group[row]), rows.row(row)) for row in sampled), scratch)
    folder = work.filled("sample")
    prints = [Spill(joined, PRINTS) for joined in work.each("join")]
    return Overlaps(prints, folder, read_boilerplate(folder).grams, known_phrases)


def _answers(work: Work, rows: Rows) -> tuple[int, list[dict[str, Any]]]:
    """Return the number of requests with several answers, and the first of them."""
    parts = [load(folder / ANSWERS, Answers) for folder in work.each("join")]
    shown = sorted(chain.from_iterable(answers.shown for answers in parts))[:SHOWN]
    return sum(answers.requests for answers in parts), answer_samples(rows, shown)


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
