"""Which training rows are left out so that no source and no domain outweighs the others; rows are never
repeated.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.core.errors import DataError
from pipeline.stages.curate.comparing.spill import ranks
from pipeline.stages.curate.comparing.splits import draws


def sample_rows(
    train: NDArray[np.bool_],
    source: NDArray[np.int32],
    domain: NDArray[np.int32],
    keys: NDArray[np.uint64],
    *,
    weights: Sequence[float],
    max_rows_per_source: int | None,
    max_domain_share: float,
    temperature: float,
    seed: int,
) -> NDArray[np.bool_]:
    """The training rows that stay: first by source (share `weights[source]`, then the cap), then by domain.

    A domain of n rows keeps n·(smallest/n)^(1−temperature) of them: all at temperature 1, as many as the
    smallest domain at 0 (the exponent of multilingual BERT's sampling, but by leaving out). Then the largest
    are cut until none has more than `max_domain_share` of the rows. Which rows stay is drawn from seed and
    content (`keys`), so it doesn't depend on their order. Raises `DataError` if `max_domain_share` can't be
    met by so few domains.
    """
    order = np.flatnonzero(train)[np.argsort(draws(keys[train], "balance", seed), kind="stable")]
    counts = np.bincount(source[order], minlength=len(weights))
    quotas = np.ceil(counts * np.asarray(weights)).astype(np.int64)
    if max_rows_per_source is not None:
        quotas = np.minimum(quotas, max_rows_per_source)
    order = _first(order, source[order], quotas)
    rows = np.bincount(domain[order]).astype(np.int64)
    order = _first(order, domain[order], capped(tempered(rows, temperature), max_domain_share))
    return np.isin(np.arange(len(train)), order)


def tempered(rows: NDArray[np.int64], temperature: float) -> NDArray[np.int64]:
    """How many rows each domain keeps at this temperature."""
    smallest = rows[rows > 0].min(initial=rows.max(initial=0))
    share: NDArray[np.float64] = (smallest / np.maximum(rows, 1)) ** (1 - temperature)
    return np.ceil(rows * share - 1e-9).astype(np.int64)


def capped(rows: NDArray[np.int64], max_share: float) -> NDArray[np.int64]:
    """The largest counts, none above `rows`, of which none is more than `max_share` of their sum."""
    domains = int((rows > 0).sum())
    if max_share >= 1 or not domains:
        return rows
    if domains * max_share < 1:
        raise DataError(
            "Q-CURATE-012",
            f"curate.max_domain_share is {max_share}, but there "
            f"{'is only 1 domain' if domains == 1 else f'are only {domains} domains'}, so one has at least "
            f"{1 / domains:.0%} of the rows: raise it, or name domains in the rows",
        )
    kept = rows
    while kept.max() > max_share * kept.sum():
        kept = np.minimum(kept, int(max_share * kept.sum()))
    return kept


def _first(
    order: NDArray[np.int64], label: NDArray[np.int32], quotas: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Of the rows in `order`, the first `quotas[label]` of every label."""
    by_label = np.argsort(label, kind="stable")
    labels = label[by_label]
    return order[np.sort(by_label[ranks(labels) < quotas[labels]])]
