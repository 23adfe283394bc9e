"""Splits: groups stay whole, shares hold in every domain, rows mostly stay where they are."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.stages.curate.comparing.decide import TEST, TRAIN, VAL, apportion, assign_splits, draws


def keys_of(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**63, count).astype(np.uint64)


def split(
    group: list[int],
    domain: list[int] | None = None,
    keep: list[bool] | None = None,
    keys: np.ndarray | None = None,
    **options,
) -> np.ndarray:
    count = len(group)
    return assign_splits(
        np.array(group, np.int32),
        np.array(domain or [0] * count, np.int32),
        np.array([True] * count if keep is None else keep, bool),
        keys_of(count) if keys is None else keys,
        **{"seed": 1, "val_fraction": 0.1, "test_fraction": 0.2} | options,
    )


def test_shares_are_exact_in_every_domain():
    domain = [0] * 500 + [1] * 300 + [2] * 20
    found = split(list(range(820)), domain)
    for number, rows in ((0, 500), (1, 300), (2, 20)):
        mine = found[np.array(domain) == number]
        assert (mine == TEST).sum() == round(rows * 0.2)
        assert (mine == VAL).sum() == round(rows * 0.1)


@settings(deadline=None)
@given(st.data())
def test_a_group_is_never_torn_and_quotas_are_never_passed(data: st.DataObject):
    count = data.draw(st.integers(1, 120))
    group = [data.draw(st.integers(0, i)) for i in range(count)]
    group = [group[g] if group[g] == g else i for i, g in enumerate(group)]  # a group's name is its first row
    keep = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    domain = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    found = split(group, domain, keep, val_fraction=0.25, test_fraction=0.3)
    for name in set(group):
        assert len({int(found[i]) for i in range(count) if group[i] == name}) == 1
    kept = np.array(keep, bool)
    assert (found[kept] == TEST).sum() <= max(1, round(kept.sum() * 0.3))
    assert (found[kept] == VAL).sum() <= max(1, round(kept.sum() * 0.25))


def test_test_does_not_change_with_the_share_of_val():
    group = list(range(200))
    assert ((split(group, val_fraction=0.0) == TEST) == (split(group, val_fraction=0.4) == TEST)).all()


def test_most_rows_stay_when_others_come():
    keys = keys_of(2000)
    before, after = split(list(range(1500)), keys=keys[:1500]), split(list(range(2000)), keys=keys)
    assert (before == after[:1500]).mean() > 0.95


def test_the_order_of_the_rows_does_not_matter():
    keys, order = keys_of(300), np.random.default_rng(5).permutation(300)
    assert (split(list(range(300)), keys=keys)[order] == split(list(range(300)), keys=keys[order])).all()


def test_a_group_too_large_for_the_test_split_is_trained():
    group = [0] * 90 + list(range(90, 100))
    found = split(group, test_fraction=0.1, val_fraction=0.0)
    assert (found[:90] == TRAIN).all() and (found == TEST).sum() == 10


APPORTIONED = [
    ([10, 10], 0.1, [1, 1]),
    ([1] * 10, 0.1, [1] + [0] * 9),
    ([5, 0, 95], 0.12, [1, 0, 11]),
    ([7], 0.0, [0]),
    ([1], 0.5, [0]),
    ([3], 0.1, [1]),
]


@pytest.mark.parametrize(("rows", "fraction", "expected"), APPORTIONED)
def test_apportion(rows: list[int], fraction: float, expected: list[int]):
    assert apportion(np.array(rows, np.int64), fraction, 1).tolist() == expected


def test_another_seed_gives_another_split_and_draws_are_uniform():
    group = list(range(1000))
    assert (split(group, seed=1) != split(group, seed=2)).any()
    uniform = draws(np.arange(100_000, dtype=np.uint64), "split", 3) / 2**64
    assert abs(uniform.mean() - 0.5) < 0.01 and abs((uniform < 0.1).mean() - 0.1) < 0.01
