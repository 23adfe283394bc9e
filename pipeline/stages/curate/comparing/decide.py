"""The outcome of every clean row: duplicates are dropped, groups stay on one side of the split, leaks are
dropped, domains are balanced.

Works on arrays of one entry per row. The rows themselves stay on disk.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import get_args

import numpy as np
import xxhash
from numpy.typing import NDArray

from pipeline.chat.rows import Kind
from pipeline.config.sections import Curate
from pipeline.stages.curate.comparing.duplicates import Clusters
from pipeline.stages.curate.comparing.shingles import mix
from pipeline.stages.curate.comparing.spill import ranks

SPLITS = ("train", "val", "test")
TRAIN, VAL, TEST = range(3)
TEXT = get_args(Kind).index("text")
KEPT, EXACT, NEAR, CONTAMINATED, SAMPLED_OUT = range(5)
# Outcome → (the rule's id, the reason in data/rejects.jsonl).
OUTCOMES = {
    EXACT: ("exact_duplicates", "duplicate"),
    NEAR: ("near_duplicates", "near_duplicate"),
    CONTAMINATED: ("contamination", "contaminated"),
    SAMPLED_OUT: ("balance", "sampled_out"),
}


# A clean row: number of its file, its domain (the hash of the name in a shard's file, its number in a
# `Table`), 64 bits of its id, hash of its normalized content, number of turns, index among
# `pipeline.chat.rows.Kind`, True if it has a reward.
FACT = np.dtype(
    [
        ("file", "i4"),
        ("domain", "i8"),
        ("key", "u8"),
        ("exact", "u8"),
        ("turns", "u2"),
        ("kind", "u1"),
        ("scored", "?"),
    ]
)
Table = np.recarray  # records of dtype `FACT`, in the order in which the rows were read
MOST_DOMAINS = 1000  # The limit exists because a domain with one row is not a domain.
OTHER = "(other)"  # name of the domain of all further rows


@dataclass
class Decisions:
    """Decisions for each row: its outcome, its split, the row that it duplicates (-1 if none), and the number
    of copies that are written if it is kept.
    """

    outcome: NDArray[np.uint8]
    split: NDArray[np.uint8]
    duplicate_of: NDArray[np.int32]
    copies: NDArray[np.int32]

    def lines(self) -> NDArray[np.int64]:
        """Return the number of the row of each line that is written."""
        kept = np.flatnonzero(self.outcome == KEPT)
        return np.repeat(kept, self.copies[kept])


def decide_duplicates(clusters: Clusters, which: str) -> Decisions:
    """Drop all but the best row of every cluster ("near"), only exact duplicates ("exact"), or nothing."""
    rows = len(clusters.cluster)
    outcome = np.zeros(rows, np.uint8)
    duplicate_of = np.full(rows, -1, np.int32)
    if which == "near":
        best = np.zeros(rows, np.int32)
        best[clusters.cluster[clusters.keep]] = np.flatnonzero(clusters.keep)
        dropped = ~clusters.keep
        duplicate_of[dropped] = best[clusters.cluster[dropped]]
        is_exact = clusters.first[dropped] == clusters.first[duplicate_of[dropped]]
        outcome[dropped] = np.where(is_exact, EXACT, NEAR)
    elif which == "exact":
        outcome[clusters.exact] = EXACT
        duplicate_of[clusters.exact] = clusters.first[clusters.exact]
    return Decisions(outcome, np.zeros(rows, np.uint8), duplicate_of, np.ones(rows, np.int32))


def decide_splits(decisions: Decisions, table: Table, clusters: Clusters, settings: Curate) -> Clusters:
    """Assign every row its split (`TRAIN`, `VAL` or `TEST`).

    Return the clusters with the groups that stayed whole. A project of few, long documents may have none that
    is small enough to be held out whole. It would then be tested on nothing, or on its one short document. So
    parts of a document may go to different splits if all rows are texts and less than half of the wanted
    share is held out. Such parts are neighbors, not copies, and text that shares words with the test split
    leaves training in any case.
    """
    _split_groups(decisions, table, clusters.group, settings)
    kept = decisions.outcome == KEPT
    wanted = max(1, round(settings.test_fraction * kept.sum())) if settings.test_fraction > 0 else 0
    is_enough = 2 * (decisions.split[kept] == TEST).sum() >= wanted
    if is_enough or not (table.kind[kept] == TEXT).all():
        return clusters
    torn = replace(clusters, group=clusters.cluster)
    _split_groups(decisions, table, torn.group, settings)
    return torn


def _split_groups(decisions: Decisions, table: Table, group: NDArray[np.int32], settings: Curate) -> None:
    """Assign every row its split (`TRAIN`, `VAL` or `TEST`).

    Rows that are not kept get the split of their group. `group[i]` is the smallest index of a row related to
    row i. A group is never split. The wanted share of kept rows of every domain goes to test and to val, as
    nearly as whole groups allow. A group counts for the domain of its first kept row. Groups are drawn in an
    order given by seed and content (the smallest of `table.key`, 64 bits of each row's id), test from one end
    and val from the other. So a row mostly keeps its split when rows are added, and test is the same for any
    `val_fraction`.
    """
    kept = np.flatnonzero(decisions.outcome == KEPT)
    # Each group with kept rows has a label, the first of these rows, their number, and the smallest key.
    leaders, first, sizes = np.unique(group[kept], return_index=True, return_counts=True)
    lowest = np.full(len(group), np.iinfo(np.uint64).max)
    np.minimum.at(lowest, group, table.key)
    by_draw = np.argsort(draws(lowest[leaders], "split", settings.seed), kind="stable")
    leaders, sizes = leaders[by_draw], sizes[by_draw]
    stratum = table.domain[kept[first]][by_draw]
    taken = np.zeros(len(group), np.uint8)
    rows = np.bincount(stratum, weights=sizes).astype(np.int64)
    shares = ((TEST, settings.test_fraction, 1, 1), (VAL, settings.val_fraction, -1, 0))
    for target, fraction, step, least in shares:
        left = np.bincount(stratum, weights=sizes * (taken[leaders] == 0)).astype(np.int64)
        for number, quota in enumerate(apportion(rows, fraction, least, left).tolist()):
            of_stratum = np.flatnonzero(stratum == number)[::step]
            _take(leaders[of_stratum], sizes[of_stratum], quota, taken, target)
    decisions.split = taken[group]


def decide_balance(decisions: Decisions, table: Table, settings: Curate, weights: Sequence[float]) -> None:
    """Leave training rows out or repeat them: first by source (`weights[file]` times), then by domain.

    `domain_quotas` gives the number of rows of each domain. A draw from seed and content (`table.key`)
    decides which rows stay, and which are repeated once more than others. So the choice doesn't depend on
    their order.
    """
    train = np.flatnonzero((decisions.outcome == KEPT) & (decisions.split == TRAIN))
    order = train[np.argsort(draws(table.key[train], "balance", settings.seed), kind="stable")]
    counts = np.bincount(table.file[order], minlength=len(weights))
    quotas = np.ceil(counts * np.asarray(weights)).astype(np.int64)
    lines = np.repeat(order, _times(table.file[order], quotas))
    rows = np.bincount(table.domain[lines]).astype(np.int64)
    quotas = domain_quotas(rows, settings.temperature, settings.balance)
    lines = np.repeat(lines, _times(table.domain[lines], quotas))
    decisions.copies[train] = np.bincount(lines, minlength=len(table))[train]
    decisions.outcome[train[decisions.copies[train] == 0]] = SAMPLED_OUT


def leaks_prevented(decisions: Decisions, table: Table, clusters: Clusters, settings: Curate) -> int:
    """Return how many rows a split by row would have leaked.

    These rows would go to test or val while a related row goes to training.
    """
    kept = np.flatnonzero(decisions.outcome == KEPT)
    draw = draws(table.key[kept], "row split", settings.seed) / 2**64
    away = (draw < settings.test_fraction) | (draw >= 1 - settings.val_fraction)
    group = clusters.group[kept]
    return int(np.isin(group[away], group[~away]).sum())


def draws(keys: NDArray[np.uint64], purpose: str, seed: int) -> NDArray[np.uint64]:
    """Return a uniform 64-bit number per key, different for every purpose and seed."""
    salt = int.from_bytes(hashlib.sha256(f"{purpose}:{seed}".encode()).digest()[:8], "big")
    return mix(keys ^ np.uint64(salt))


def apportion(
    rows: NDArray[np.int64], fraction: float, least: int, left: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the rows of each stratum that are taken: `fraction` of all `rows`, rounded.

    They are shared by the method of largest remainders among the strata that have rows `left`. At least
    `least` are taken of two rows or more, unless `fraction` is 0.
    """
    total = int(rows.sum())
    quota = max(least, round(total * fraction)) if fraction > 0 and total > 1 else 0
    exact = rows * (quota / max(total, 1))
    quotas: NDArray[np.int64] = np.floor(exact).astype(np.int64)
    missing = quota - int(quotas.sum())
    roomy = np.flatnonzero(quotas < left)
    quotas[roomy[np.argsort((quotas - exact)[roomy], kind="stable")][:missing]] += 1
    return quotas


def _take(
    leaders: NDArray[np.int32], sizes: NDArray[np.intp], left: int, taken: NDArray[np.uint8], which: int
) -> None:
    """Mark groups in order as long as they fit.

    A group too large for the remaining rows stays in training.
    """
    for leader, size in zip(leaders.tolist(), sizes.tolist(), strict=True):
        if size <= left and not taken[leader]:
            taken[leader] = which
            left -= size


def domain_quotas(rows: NDArray[np.int64], temperature: float, balance: str) -> NDArray[np.int64]:
    """Return the number of rows that each domain is to have, given that it has `rows` now.

    A domain of n rows gets n·(m/n)^(1−temperature). m is the size of the smallest domain ("down") or of the
    largest ("up"). Either way the shares are those of n^temperature: the exponent α of mT5
    (arXiv:2010.11934), 1/T of T5's temperature-scaled mixing (arXiv:1910.10683).
    """
    largest = rows.max(initial=0)
    goal = largest if balance == "up" else rows[rows > 0].min(initial=largest)
    share: NDArray[np.float64] = (goal / np.maximum(rows, 1)) ** (1 - temperature)
    return np.ceil(rows * share - 1e-9).astype(np.int64)


def _times(labels: NDArray[np.int32], quotas: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of copies of each entry so that there are `quotas[label]` of every label.

    All entries are repeated equally often, and the first ones once more.
    """
    counts = np.bincount(labels, minlength=len(quotas))[labels]
    rank = np.empty(len(labels), np.int64)
    by_label = np.argsort(labels, kind="stable")
    rank[by_label] = ranks(labels[by_label])
    wanted = quotas[labels]
    return wanted // counts + (rank < wanted % counts)


def table_of(facts: NDArray, domains: dict[str, None]) -> Table:
    """Return the `FACT`s with each domain's number instead of the hash of its name.

    A domain that is not among `domains` counts as `OTHER`, which is then added to them.
    """
    hashes = np.array([hash_of(name) for name in domains], np.int64)
    order = np.argsort(hashes)
    at = np.minimum(np.searchsorted(hashes[order], facts["domain"]), max(len(hashes) - 1, 0))
    if len(hashes):
        is_listed = hashes[order][at] == facts["domain"]
        facts["domain"] = order[at]
    else:
        is_listed = np.zeros(len(facts), np.bool_)
        facts["domain"] = 0
    if not is_listed.all():
        domains.setdefault(OTHER)
        facts["domain"][~is_listed] = list(domains).index(OTHER)
    return facts.view(np.recarray)


@lru_cache(MOST_DOMAINS)
def hash_of(domain: str) -> int:
    """Return the hash of a domain's name, a number of 63 bits."""
    return xxhash.xxh3_64_intdigest(domain.encode("utf-8", "surrogatepass")) >> 1


def domain_counts(decisions: Decisions, table: Table, domains: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return the clean rows and the rows in each split, by domain."""
    lines = decisions.lines()
    splits = {split: lines[decisions.split[lines] == number] for number, split in enumerate(SPLITS)}
    return _by_domain({"read": np.arange(len(table)), **splits}, table, domains)


def balance_counts(decisions: Decisions, table: Table, domains: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return the training rows before and after balancing, by domain."""
    is_trained = (decisions.outcome == KEPT) & (decisions.split == TRAIN)
    before = np.flatnonzero(is_trained | (decisions.outcome == SAMPLED_OUT))
    lines = decisions.lines()
    return _by_domain({"before": before, "after": lines[is_trained[lines]]}, table, domains)


def _by_domain(
    rows: Mapping[str, NDArray[np.int64]], table: Table, domains: Sequence[str]
) -> dict[str, dict[str, int]]:
    counts = {
        name: np.bincount(table.domain[numbers], minlength=len(domains)).tolist()
        for name, numbers in rows.items()
    }
    return {domain: {name: count[i] for name, count in counts.items()} for i, domain in enumerate(domains)}
