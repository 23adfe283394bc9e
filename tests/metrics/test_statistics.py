"""paired, intervals: mirrored when swapped, nothing found where nothing is; intervals cover as stated."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.metrics.statistics import compare_scores, holm, interval, resampled_means

FRACTIONS = st.sampled_from([0.0, 0.2, 0.25, 0.5, 0.6, 0.8, 1.0])


def test_many_rows_are_resampled_in_parts_with_the_same_numbers() -> None:
    values = np.random.default_rng(3).random(5000)
    whole = values[np.random.default_rng(7).integers(0, 5000, size=(2000, 5000))].mean(axis=1)
    assert np.array_equal(resampled_means(values.tolist(), 7), whole)


def test_the_interval_is_scipys_percentile_bootstrap() -> None:
    from scipy.stats import bootstrap

    values = np.random.default_rng(5).beta(2, 1, 300)
    found = bootstrap(
        (values,), np.mean, n_resamples=2000, method="percentile", rng=np.random.default_rng(1)
    ).confidence_interval
    assert interval(values.tolist(), seed=0) == pytest.approx((found.low, found.high), abs=0.004)


@given(st.lists(st.tuples(FRACTIONS, FRACTIONS), min_size=1, max_size=40), st.integers(0, 5))
def test_swapped_models_mirror(pairs: list[tuple[float, float]], seed: int) -> None:
    first, second = zip(*pairs, strict=True)
    there, back = compare_scores(first, second, seed), compare_scores(second, first, seed)
    assert (back.points, back.low, back.high) == pytest.approx(
        (-there.points, -there.high, -there.low), abs=1e-9
    )
    assert (back.p_value, back.method) == (pytest.approx(there.p_value), there.method)
    assert there.low - 1e-9 <= there.points <= there.high + 1e-9 or len(pairs) < 5
    assert 0 < there.p_value <= 1


@given(st.lists(FRACTIONS, min_size=2, max_size=40))
def test_equal_scores_are_no_difference(scores: list[float]) -> None:
    found = compare_scores(scores, scores, 0)
    assert (found.points, found.low, found.high, found.p_value) == (0.0, 0.0, 0.0, 1.0)


def test_mcnemar_is_the_sum_of_binomial_terms() -> None:
    won, lost = 12, 3
    found = compare_scores(
        [0.0] * won + [1.0] * lost + [1.0] * 20, [1.0] * won + [0.0] * lost + [1.0] * 20, 0
    )
    assert found.method == "McNemar, exact"
    assert found.p_value == pytest.approx(2 * sum(math.comb(15, k) for k in range(lost + 1)) / 2**15)
    assert found.points == pytest.approx(100 * 9 / 35)
    assert found.low > 0  # and so says the interval
    assert compare_scores([0.0, 1.0], [0.5, 1.0], 0).method == "paired permutation"


def test_few_rows_are_never_certain() -> None:
    """A bootstrap of one row draws it 2,000 times, and separated two equal models in 78 of 100 cases."""
    one = compare_scores([0.8], [0.3], 0)
    assert (one.low, one.high, one.p_value) == (-100.0, 100.0, 1.0)
    for rows in range(2, 8):
        found = compare_scores([0.8] * rows, [0.3, 0.4] * (rows // 2) + [0.3] * (rows % 2), 0)
        # all signs alike: one of the 2ⁿ ways to swap, and its mirror
        assert found.p_value == pytest.approx(2 / 2**rows)


# 26 ms each where scores are not 0 or 1
@pytest.mark.parametrize(("binary", "pairs"), [(True, 300), (False, 100)])
def test_coverage_and_false_alarms(binary: bool, pairs: int) -> None:
    """If the true difference of pairs is known, about 95 % of the intervals hold it, and about 5 % of equal
    pairs are told apart.
    """
    random = np.random.default_rng(11)
    held = alarms = 0
    for seed in range(pairs):
        hardness = random.random(64)
        if binary:
            first, second, equal = (
                (random.random(64) < hardness * share).astype(float) for share in (0.9, 0.7, 0.9)
            )
        else:
            first, second, equal = (
                np.clip(hardness * share + random.normal(0, 0.02, 64), 0, None) for share in (0.9, 0.7, 0.9)
            )
        found = compare_scores(first.tolist(), second.tolist(), seed)
        held += found.low <= 100 * 0.5 * (0.7 - 0.9) <= found.high
        alarms += compare_scores(first.tolist(), equal.tolist(), seed).p_value < 0.05
    assert 0.90 * pairs <= held
    assert alarms <= 0.09 * pairs


def test_holm_is_the_published_procedure() -> None:
    # the example of R's p.adjust(c(0.01, 0.02, 0.03, 0.04), "holm")
    assert holm([0.01, 0.02, 0.03, 0.04]) == pytest.approx([0.04, 0.06, 0.06, 0.06])
    assert holm([0.04, 0.01]) == pytest.approx([0.04, 0.02])
    assert (holm([0.9, 0.8]), holm([0.3]), holm([])) == ([1.0, 1.0], [0.3], [])


def test_lists_that_are_no_pair_are_an_error() -> None:
    with pytest.raises(ValueError, match="0 scores and 0"):
        compare_scores([], [], 0)
    with pytest.raises(ValueError, match="1 scores and 2"):
        compare_scores([1.0], [1.0, 0.0], 0)
