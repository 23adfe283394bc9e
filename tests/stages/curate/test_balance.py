"""Balance: caps, temperature and shares leave rows out, never repeat any, and don't depend on the rows'
order.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import DataError
from pipeline.stages.curate.comparing.decide import capped, sample_rows, tempered

OFF = {"max_rows_per_source": None, "max_domain_share": 1.0, "temperature": 1.0, "seed": 7}


def sample(
    source: list[int],
    domain: list[int],
    weights: list[float] | None = None,
    keys: np.ndarray | None = None,
    **options,
) -> np.ndarray:
    count = len(source)
    train = np.ones(count, bool)
    train[::10] = False  # rows of other splits
    keys = np.random.default_rng(0).integers(0, 2**63, count).astype(np.uint64) if keys is None else keys
    weights = weights or [1.0] * (max(source) + 1)
    stay = sample_rows(
        train, np.array(source, np.int32), np.array(domain, np.int32), keys, weights=weights, **OFF | options
    )
    assert not (stay & ~train).any()
    return stay


def test_switched_off_nothing_is_left_out():
    assert sample([0] * 50, [0] * 50).sum() == 45


def test_weights_and_caps_count_per_source():
    source = [0] * 100 + [1] * 100 + [2] * 100
    stay = sample(source, [0] * 300, [1.0, 0.5, 0.0], max_rows_per_source=60)
    assert [int(stay[np.array(source) == s].sum()) for s in range(3)] == [60, 45, 0]


@pytest.mark.parametrize(
    ("temperature", "expected"), [(1.0, [810, 90, 9]), (0.0, [9, 9, 9]), (0.5, [86, 29, 9])]
)
def test_temperature_brings_domains_together(temperature: float, expected: list[int]):
    assert tempered(np.array([810, 90, 9]), temperature).tolist() == expected


def test_no_domain_has_more_than_its_share():
    domain = [0] * 900 + [1] * 80 + [2] * 60
    stay = sample([0] * 1040, domain, max_domain_share=0.5)
    kept = np.bincount(np.array(domain)[stay])
    assert kept.max() / kept.sum() <= 0.5 and kept[1:].tolist() == [72, 54]


def test_a_share_that_can_not_be_met_is_one_sentence():
    with pytest.raises(DataError, match="Q-CURATE-012"):
        capped(np.array([5, 5]), 0.3)


@given(st.lists(st.integers(0, 500), min_size=4, max_size=12), st.floats(0.3, 1.0))
def test_caps_hold_and_are_as_large_as_can_be(rows: list[int], share: float):
    rows = [*rows, 10, 10, 10, 10]
    kept = capped(np.array(rows), share)
    assert (kept <= rows).all() and kept.sum() > 0
    assert kept.max() <= share * kept.sum() + 1e-9


def test_the_order_of_the_rows_does_not_matter():
    keys, order = (
        np.random.default_rng(1).integers(0, 2**63, 400).astype(np.uint64),
        np.random.default_rng(2).permutation(400),
    )
    domain = np.array([0] * 300 + [1] * 100, np.int32)
    train, source = np.ones(400, bool), np.zeros(400, np.int32)
    one = sample_rows(train, source, domain, keys, weights=[1.0], **OFF | {"temperature": 0.2})
    two = sample_rows(train, source, domain[order], keys[order], weights=[1.0], **OFF | {"temperature": 0.2})
    assert (one[order] == two).all() and one.sum() < 400
