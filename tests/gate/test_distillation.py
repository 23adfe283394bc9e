"""pipeline.gate.distillation: the share of the damage that was recovered, and its interval."""

from typing import Any

import adapter_inputs
import pytest
from gate_inputs import evaluations_of

from pipeline.config.sections import TUNED
from pipeline.gate.distillation import Recovery, distillation
from pipeline.metrics.statistics import resampled_means

Rows = list[float]
INTERVALS = [
    (0.2, 0.1, 0.9, "better", "recovers 80 %"),
    (0.2, 0.0, 0.9, "noise", "recovers 80 %"),
    (1.5, -0.9, 0.0, "noise", "adds 50 %"),
    (1.5, -0.9, -0.1, "worse", "adds 50 %"),
    (1.0, None, None, "unknown", "recovers 0 %"),
    (1.0, 0.1, None, "unknown", "recovers 0 %"),
    (1.0, None, 0.1, "unknown", "recovers 0 %"),
]


def recoveries(found: dict[str, Any]) -> list[Recovery]:
    return distillation(evaluations_of(found)) or []


def interval(before: Rows | None, after: Rows, tokens: int = 10) -> tuple[int, float | None, float | None]:
    """Rows and interval where both were measured by row; after, a row has so many `tokens`."""
    sums = [
        kld and {"assistant": {"tokens": [length] * len(kld), "kld": kld, "same": [9] * len(kld)}}
        for kld, length in ((before, 10), (after, tokens))
    ]
    of_source = {"reference": "source", "kld_mean": 1.0}
    found = recoveries(
        {"base": of_source | {"by_row": sums[0]}, "adapter": of_source | {"by_row": sums[1]}},
    )[0]
    return found.rows, found.low, found.high


def test_the_interval_is_of_the_quotient_of_sums_on_the_same_rows() -> None:
    before = [float(10 + row % 7) for row in range(40)]
    half = (40, pytest.approx(0.5), pytest.approx(0.5))  # pairs: nothing varies
    assert interval(before, [kld / 2 for kld in before]) == half
    noisy = [kld * (0.2 if row % 2 else 1.9) for row, kld in enumerate(before)]
    count, low, high = interval(before, noisy)
    assert count == 40 and low is not None and high is not None
    assert low < 1 - sum(noisy) / sum(before) < high and low < 0 < high
    after, damage = (resampled_means(kld) for kld in (noisy, before))
    shares = 1 - after / damage
    assert (shares < low).mean() == (shares > high).mean() == pytest.approx(0.025, abs=0.001)


def test_without_rows_that_match_there_is_no_interval() -> None:
    few, enough = [1.0] * 4, [1.0] * 5
    assert interval(few, few) == (4, None, None)
    assert interval(enough, enough) == (5, 0.0, 0.0)
    assert interval(enough, enough, tokens=11) == (0, None, None)
    assert interval(None, enough) == (0, None, None)
    assert interval([0.0] * 5, [0.0] * 5) == (5, None, None)


def test_distillation_needs_both_against_the_source() -> None:
    both = {model: adapter_inputs.figures(model, distill=True) for model in ("base", "adapter")}
    found = recoveries(both)
    assert [round(one.share or 0, 2) for one in found] == [0.8, 0.8]
    assert found[0].top_after == both["adapter"]["same_top"]
    assert found[0].low and found[0].high and 0.7 < found[0].low < 0.8 < found[0].high < 0.9
    # compared with the base
    assert recoveries(both | {"adapter": adapter_inputs.figures("adapter")}) == []
    nothing = {model: found | {"kld_mean": 0.0} for model, found in both.items()}
    assert "nothing to recover" in recoveries(nothing)[0].sentence
    tuned = recoveries({"base": both["base"], TUNED: both["adapter"]})
    assert [(one.by, one.rows, one.top_before) for one in tuned] == [
        ("The tuned file", 8, both["base"]["same_top"]),
        ("The tuned file", 8, both["base"]["all_tokens"]["same_top"]),
    ]
    assert recoveries({"adapter": both["adapter"]}) == []
    lacking = both | {"base": both["base"] | {"all_tokens": {}}}
    assert [one.where for one in recoveries(lacking)] == [found[0].where]


@pytest.mark.parametrize(
    ("model", "reference", "recovers"),
    [("adapter", "source", True), ("adapter", "base", False), ("F16", "source", False)],
)
def test_what_was_trained_to_recover_is_compared_with_the_source(
    model: str, reference: str, recovers: bool
) -> None:
    assert (distillation(evaluations_of({model: {"reference": reference}})) is not None) == recovers


def test_only_an_interval_on_one_side_of_0_is_more_than_noise() -> None:
    words = {}
    for after, low, high, verdict, said in INTERVALS:
        found = Recovery("here", 1.0, after, None, None, 9, low, high)
        assert found.verdict == verdict
        assert said in found.sentence
        assert ("95 % interval" in found.sentence) == (None not in (low, high))
        words[verdict] = found.words
    assert len(set(words.values())) == 4
