"""What becomes of every clean row: duplicates go, groups stay on one side of the split, leaks go, domains are
balanced.

Works on arrays of one entry per row; the rows themselves stay on disk.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.config.sections import Curate
from pipeline.stages.curate.comparing.balance import sample_rows
from pipeline.stages.curate.comparing.duplicates import Clusters
from pipeline.stages.curate.comparing.splits import TRAIN, assign_splits, draws

KEPT, EXACT, NEAR, CONTAMINATED, SAMPLED_OUT = range(5)
# fate → (the rule's id, the reason in data/rejects.jsonl)
FATES = {
    EXACT: ("exact_duplicates", "duplicate"),
    NEAR: ("near_duplicates", "near_duplicate"),
    CONTAMINATED: ("contamination", "contaminated"),
    SAMPLED_OUT: ("balance", "sampled_out"),
}


# a clean row: number of its file and its domain, 64 bits of its id, number of turns, place among
# `pipeline.chat.rows.Kind`, has a reward
ROW = np.dtype(
    [("file", "i4"), ("domain", "i4"), ("key", "u8"), ("turns", "u2"), ("kind", "u1"), ("scored", "?")]
)
Table = np.recarray  # of ROW, in the order in which the rows were read


@dataclass
class Decisions:
    """Per row: its fate, its split, and the row that it duplicates (-1: none)."""

    fate: NDArray[np.uint8]
    split: NDArray[np.uint8]
    twin: NDArray[np.int32]


def decide_duplicates(clusters: Clusters, which: str) -> Decisions:
    """Drop of every cluster all but the best row ("near"), only exact duplicates of an earlier row ("exact"),
    or nothing ("none").
    """
    fate, twin = np.zeros(len(clusters.cluster), np.uint8), np.full(len(clusters.cluster), -1, np.int32)
    if which == "near":
        best = np.zeros(len(fate), np.int32)
        best[clusters.cluster[clusters.keep]] = np.flatnonzero(clusters.keep)
        dropped = ~clusters.keep
        twin[dropped] = best[clusters.cluster[dropped]]
        fate[dropped] = np.where(clusters.first[dropped] == clusters.first[twin[dropped]], EXACT, NEAR)
    elif which == "exact":
        fate[clusters.exact] = EXACT
        twin[clusters.exact] = clusters.first[clusters.exact]
    return Decisions(fate, np.zeros(len(fate), np.uint8), twin)


def decide_splits(decisions: Decisions, table: Table, clusters: Clusters, settings: Curate) -> None:
    """Give every row its split."""
    decisions.split = assign_splits(
        clusters.group,
        table.domain,
        decisions.fate == KEPT,
        table.key,
        seed=settings.seed,
        val_fraction=settings.val_fraction,
        test_fraction=settings.test_fraction,
    )


def decide_balance(decisions: Decisions, table: Table, settings: Curate, weights: Sequence[float]) -> None:
    """Leave training rows out by source and by domain."""
    train = (decisions.fate == KEPT) & (decisions.split == TRAIN)
    stay = sample_rows(
        train,
        table.file,
        table.domain,
        table.key,
        weights=weights,
        max_rows_per_source=settings.max_rows_per_source,
        max_domain_share=settings.max_domain_share,
        temperature=settings.temperature,
        seed=settings.seed,
    )
    decisions.fate[train & ~stay] = SAMPLED_OUT


def leaks_prevented(decisions: Decisions, table: Table, clusters: Clusters, settings: Curate) -> int:
    """Rows that a split row by row would have put into test or val while a relative of theirs went to
    training.
    """
    kept = np.flatnonzero(decisions.fate == KEPT)
    draw = draws(table.key[kept], "row split", settings.seed) / 2**64
    away = (draw < settings.test_fraction) | (draw >= 1 - settings.val_fraction)
    group = clusters.group[kept]
    return int(np.isin(group[away], group[~away]).sum())
