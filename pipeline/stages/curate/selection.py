"""From the clean rows to those that are published: compared with each other, split, balanced, written and
counted.
"""

from collections import Counter
from contextlib import suppress
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from pipeline.chat.rows import BadRow
from pipeline.config.sections import Curate
from pipeline.core.progress import progress
from pipeline.stages.curate.comparing.compare import Comparison
from pipeline.stages.curate.comparing.decide import (
    CONTAMINATED,
    KEPT,
    decide_balance,
    decide_duplicates,
    decide_splits,
    leaks_prevented,
)
from pipeline.stages.curate.comparing.poison import SAMPLE_ROWS, suspects
from pipeline.stages.curate.comparing.splits import TEST
from pipeline.stages.curate.counts import group_counts, token_counts, turn_counts
from pipeline.stages.curate.inputs import by_glob
from pipeline.stages.curate.outputs import write_clusters, write_rows
from pipeline.stages.curate.pairs import add_pairs, make_pairs, near_duplicates, pair_counts
from pipeline.stages.curate.rules.heuristics import JUDGES
from pipeline.stages.curate.rules.token_count import TokenCounter
from pipeline.stages.curate.samples import (
    ROWS_SHOWN,
    SHOWN,
    answer_samples,
    cluster_samples,
    pair_samples,
)
from pipeline.stages.curate.spool import Spool, spread_evenly
from pipeline.stages.curate.stats import CurationStats
from pipeline.stages.curate.workers import Workers

TOKEN_ROWS = 2000  # rows whose tokens are counted for the histogram


def select_and_write(
    root: Path,
    settings: Curate,
    pool: Workers,
    stats: CurationStats,
    spool: Spool,
    work: Path,
    final: Path,
    rejects: IO[bytes],
    clusters_file: Path,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Everything that compares rows with each other; gives the statistics and the page's samples."""
    comparison = Comparison(spool, settings, work)
    with progress("curate: comparing", len(spool)) as advance:
        comparison.read(pool, advance)
    pool.close()  # what follows is done by this process alone
    guarded = comparison.guard(root / "data/guard")
    table = stats.table()
    clusters = comparison.index.clusters()
    decisions = decide_duplicates(clusters, settings.drop_duplicates)
    decide_splits(decisions, table, clusters, settings)
    kept = decisions.fate == KEPT
    prevented = leaks_prevented(decisions, table, clusters, settings)
    tested, used = decisions.split == TEST, kept | near_duplicates(decisions, table, settings)
    leaks = {leak.row: leak for leak in comparison.overlaps.leaks(used & ~tested, used & tested, spool.row)}
    decisions.fate[list(leaks)] = CONTAMINATED
    weights = [by_glob(name, settings.source_weights, 1.0) for name in stats.files]
    decide_balance(decisions, table, settings, weights)
    pairs = make_pairs(spool, decisions, table, clusters, settings, weights)
    paired = pair_counts(pairs, decisions, table) if settings.pairs != "none" else None
    shown_pairs = pair_samples(spool, pairs.made)
    decisions, table, clusters = add_pairs(spool, pairs, decisions, table, clusters)
    requests, shown_requests = comparison.several_answers(clusters, SHOWN)
    looked_at = spread_evenly(np.flatnonzero(decisions.fate == KEPT), SAMPLE_ROWS)
    suspected = suspects(map(spool.row, looked_at), clusters.group[looked_at])
    dropped = write_rows(
        spool, decisions, clusters, lambda row: comparison.describe(leaks[row]), final, rejects
    )
    write_clusters(spool, clusters, clusters_file)
    kept = decisions.fate == KEPT
    extra = {
        "groups": group_counts(clusters.group, kept)
        | {"requests_with_several_answers": requests, "leaks_prevented": prevented},
        "contamination": {
            "rows": len(leaks),
            "sources": dict(Counter(leak.file or "test" for leak in leaks.values())),
            "guarded_texts": guarded,
        },
        "poison": {"suspects": len(suspected), "rows_looked_at": len(looked_at)},
        "tokens": count_tokens(root / "models/base", spool, kept),
        "turns": turn_counts(table.turns[kept]),
        "not_measured": not_measured(settings, root / "models/base"),
        **({"pairs": paired} if paired else {}),
    }
    samples = {
        "rejects": [
            *stats.samples_of("reject"),
            *(entry for entries in dropped.values() for entry in entries),
        ],
        "changes": stats.samples_of("change"),
        "clusters": cluster_samples(spool, clusters) if settings.drop_duplicates == "near" else [],
        "answers": answer_samples(spool, shown_requests),
        "contamination": [
            {"source": spool.source(leak.row), "matched": found["detail"], "span": found["spans"][0]["text"]}
            for leak, found in ((leak, comparison.describe(leak)) for leak in islice(leaks.values(), SHOWN))
        ],
        "pairs": shown_pairs,
        "suspects": [asdict(suspect) for suspect in suspected[:SHOWN]],
        "rows": [spool.row(index) for index in spread_evenly(np.flatnonzero(kept), ROWS_SHOWN)],
    }
    return stats.summary(settings, decisions, table, clusters, extra, len(pairs.made)), samples


def not_measured(settings: Curate, base: Path) -> list[str]:
    """The rules that are switched off, or that lack what they need."""
    off = {
        "normalize": not settings.normalize,
        **{name: not judge.wanted(settings) for name, judge in JUDGES.items()},
        "secrets": settings.secrets == "keep",
        "personal": not (settings.personal or settings.names),
        "length": not base.is_dir(),
        "exact_duplicates": settings.drop_duplicates == "none",
        "near_duplicates": settings.drop_duplicates != "near",
    }
    return [rule for rule, is_off in off.items() if is_off]


def count_tokens(base: Path, spool: Spool, kept: NDArray[np.bool_]) -> dict[str, Any]:
    """Lengths of at most `TOKEN_ROWS` kept rows, spread evenly; none if there is no tokenizer to count
    with.
    """
    tokens = list[int]()
    if base.is_dir() and kept.any():
        counter = TokenCounter(base)
        for index in spread_evenly(np.flatnonzero(kept), TOKEN_ROWS):
            with suppress(BadRow):  # a template that refuses by content; preprocess counts such rows
                tokens.append(counter.count_row(spool.row(index)))
    return token_counts(np.array(tokens, np.int64))
