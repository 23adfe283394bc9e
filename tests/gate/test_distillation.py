"""pipeline.gate.distillation: the share of the damage that was recovered, and its interval."""

from typing import Any

import adapter_inputs
import pytest

from pipeline.config.sections import TUNED
from pipeline.gate.distillation import FEWEST, Recovery, distillation, interval_of, is_distillation, sentence
from pipeline.metrics.intervals import resampled_means


def rows(*kld: float) -> dict[str, Any]:
    return {"tokens": [10] * len(kld), "kld": list(kld), "same": [9] * len(kld)}


def test_the_interval_is_of_the_quotient_of_sums_on_the_same_rows() -> None:
    before = rows(*(float(10 + row % 7) for row in range(40)))
    exactly_half = rows(*(kld / 2 for kld in before["kld"]))
    assert interval_of(before, exactly_half, 1) == (
        40,
        pytest.approx(0.5),
        pytest.approx(0.5),
    )  # pairs: nothing varies
    noisy = rows(*(kld * (0.2 if row % 2 else 1.9) for row, kld in enumerate(before["kld"])))
    count, low, high = interval_of(before, noisy, 1)
    assert count == 40
    assert low is not None
    assert high is not None
    assert low < 1 - sum(noisy["kld"]) / sum(before["kld"]) < high
    assert low < 0 < high
    after, damage = (resampled_means(of["kld"], 1) for of in (noisy, before))
    shares = 1 - after / damage
    assert (shares < low).mean() == (shares > high).mean() == pytest.approx(0.025, abs=0.001)


def test_without_rows_that_match_there_is_no_interval() -> None:
    few = rows(*[1.0] * (FEWEST - 1))
    assert interval_of(few, few, 1) == (FEWEST - 1, None, None)
    enough = rows(*[1.0] * FEWEST)
    assert interval_of(enough, enough, 1) == (FEWEST, 0.0, 0.0)
    other = rows(*[1.0] * FEWEST) | {"tokens": [11] * FEWEST}
    assert interval_of(rows(*[1.0] * FEWEST), other, 1) == (0, None, None)
    assert interval_of(None, other, 1) == (0, None, None)
    assert interval_of(rows(*[0.0] * FEWEST), rows(*[0.0] * FEWEST), 1) == (FEWEST, None, None)


def test_distillation_needs_both_against_the_source() -> None:
    both = {model: adapter_inputs.figures(model, distill=True) for model in ("base", "adapter")}
    found = distillation(both, 1)
    assert [round(one.share or 0, 2) for one in found] == [0.8, 0.8]
    assert found[0].top_after == both["adapter"]["same_top"]
    assert found[0].low and found[0].high and 0.7 < found[0].low < 0.8 < found[0].high < 0.9
    # compared with the base
    assert distillation(both | {"adapter": adapter_inputs.figures("adapter")}, 1) == []
    nothing = {model: found | {"kld_mean": 0.0} for model, found in both.items()}
    assert "nothing to recover" in sentence(distillation(nothing, 1)[0])
    tuned = distillation({"base": both["base"], TUNED: both["adapter"]}, 1)
    assert [(one.by, one.rows, one.top_before) for one in tuned] == [
        ("The tuned file", 8, both["base"]["same_top"]),
        ("The tuned file", 8, both["base"]["all_tokens"]["same_top"]),
    ]
    assert distillation({"adapter": both["adapter"]}, 1) == []
    lacking = both | {"base": both["base"] | {"all_tokens": {}}}
    assert [one.where for one in distillation(lacking, 1)] == [found[0].where]


def test_each_verdict_has_words_of_its_own() -> None:
    intervals = [(0.1, 0.9), (-0.1, 0.9), (-0.9, -0.1), (None, None)]
    assert len({Recovery("here", 1.0, 1.0, None, None, 9, *interval).words for interval in intervals}) == 4


def test_what_was_trained_to_recover_is_compared_with_the_source() -> None:
    assert is_distillation({"adapter": {"reference": "source"}})
    assert not is_distillation({"adapter": {"reference": "base"}})
    assert not is_distillation({"F16": {"reference": "source"}})  # a level of a merged model


@pytest.mark.parametrize(
    ("after", "low", "high", "verdict", "words"),
    [
        (0.2, 0.1, 0.9, "better", "recovers 80 %"),
        (0.2, 0.0, 0.9, "noise", "recovers 80 %"),
        (1.5, -0.9, 0.0, "noise", "adds 50 %"),
        (1.5, -0.9, -0.1, "worse", "adds 50 %"),
        (1.0, None, None, "unknown", "recovers 0 %"),
        (1.0, 0.1, None, "unknown", "recovers 0 %"),
        (1.0, None, 0.1, "unknown", "recovers 0 %"),
    ],
)
def test_only_an_interval_on_one_side_of_0_is_more_than_noise(
    after: float, low: float | None, high: float | None, verdict: str, words: str
) -> None:
    found = Recovery("here", 1.0, after, None, None, 9, low, high)
    assert found.verdict == verdict
    assert words in sentence(found)
    assert ("95 % interval" in sentence(found)) == (None not in (low, high))
