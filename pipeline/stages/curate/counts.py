"""What arrays with an entry per clean row add up to: domains, balance, duplicates, groups, turns, tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.config.sections import Curate
from pipeline.stages.curate.comparing.decide import KEPT, SAMPLED_OUT, Decisions, Table
from pipeline.stages.curate.comparing.duplicates import Clusters
from pipeline.stages.curate.comparing.minhash import ALGORITHM
from pipeline.stages.curate.comparing.splits import SPLITS, TRAIN

BARS = 32  # most bars of the token histogram
# of clusters, for the histogram: how a bar is called, and the smallest size in it
SIZES = {"2": 2, "3": 3, "4-7": 4, "8-15": 8, "16+": 16}


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
