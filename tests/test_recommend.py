"""pipeline.reporting.recommend: the rule, its borders, and that no difference is claimed which the intervals don't support."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.reporting.recommend import MEMORY_MARGIN, Recommendation, recommend

MB = 10**6


def model(megabytes: int, score: float | None = None, half: float = 0.06, **more: Any) -> dict[str, Any]:
    """One evaluation: a size, a task score with an interval of ± `half`, whatever else is named."""
    task = None if score is None else {"rows": 64, "score": score, "score_low": max(0.0, score - half), "score_high": min(1.0, score + half)}
    return {"bytes": megabytes * MB, "task": task, "same_top": None, "perplexity": None} | more


def choose(memory_gb: float = 8.0, max_task_drop: float = 5.0, **models: dict[str, Any]) -> Recommendation:
    return recommend({name.replace("base_", "base-"): found for name, found in models.items()}, memory_gb=memory_gb, max_task_drop=max_task_drop)


BASE = model(270, 0.1)
F16 = model(270, 0.75)


@pytest.mark.parametrize(
    ("q4", "q5", "chosen"),
    [
        (0.75, 0.75, "Q4"),  # the smallest of those that are good
        (0.70, 0.75, "Q4"),  # exactly at the border of 5 points
        (0.69, 0.75, "Q5"),  # a point below it
        (0.69, 0.69, "F16"),
        (0.69, 0.90, "Q5"),  # better than F16 is good enough too
    ],
)
def test_the_smallest_that_stays_within_the_drop(q4: float, q5: float, chosen: str) -> None:
    assert choose(base_F16=BASE, F16=F16, Q4=model(105, q4), Q5=model(112, q5)).model == chosen


def test_the_base_is_never_recommended() -> None:
    assert choose(base_F16=model(1, 0.99), F16=F16, Q4=model(105, 0.75)).model == "Q4"


def test_memory_counts_weights_cache_and_a_tenth() -> None:
    models = {"F16": model(3000, 0.75), "Q4": model(1000, 0.2)}
    assert choose(memory_gb=3.3, **models).model == "F16"  # 3.0 × 1.1, to the byte
    assert choose(memory_gb=3.29, **models).model == "Q4"
    cached = models | {"F16": model(3000, 0.75, kv_cache_bytes=500 * MB)}
    assert choose(memory_gb=3.8, **cached).model == "Q4"
    advice = recommend(cached, memory_gb=8, max_task_drop=5, context_ratio=4)
    assert advice.arithmetic["F16"] == "3.00 GB weights + 2.00 GB KV cache + 10 % = 5.50 GB"
    assert advice.arithmetic["Q4"] == "1.00 GB weights + KV cache not measured + 10 % = 1.10 GB"


def test_nothing_fits_is_said() -> None:
    advice = choose(memory_gb=0.1, F16=F16, Q4=model(105, 0.75))
    assert advice.model is None
    assert advice.reason == "No level fits in 0.1 GB: Q4, the smallest, needs 0.12 GB."
    assert "report.memory_gb" in advice.warnings[0]


def test_none_good_enough_gives_the_best_score_and_a_warning() -> None:
    advice = choose(memory_gb=0.2, F16=F16, Q4=model(105, 0.5), Q5=model(112, 0.6))
    assert advice.model == "Q5"
    assert advice.warnings[0].startswith("Nothing that fits in 0.2 GB stays within 5 points of F16")


@pytest.mark.parametrize(("same_top", "chosen"), [(0.9, "Q4"), (0.899, "F16"), (None, "F16")])
def test_without_a_score_the_top_token_decides_and_the_rule_is_stated(same_top: float | None, chosen: str) -> None:
    advice = choose(F16=model(270, same_top=1.0), Q4=model(105, same_top=same_top))
    assert advice.model == chosen
    assert "ranks the same token first as F16 at 90% of the positions" in advice.reason


def test_overlapping_intervals_are_called_noise() -> None:
    advice = choose(max_task_drop=20, F16=F16, Q4=model(105, 0.70))
    assert "the difference is within the noise of 64 rows" in advice.reason
    apart = choose(max_task_drop=20, F16=F16, Q4=model(105, 0.60))
    assert apart.model == "Q4"
    assert "noise of 64 rows" not in apart.reason
    assert "the intervals lie apart" in apart.reason


def test_a_model_that_does_not_beat_the_base_is_the_first_warning() -> None:
    for score, words in [(0.10, "does not measurably beat the untuned base"), (0.15, "does not measurably beat"), (0.0, "does not measurably beat")]:
        advice = choose(max_task_drop=90, base_F16=BASE, F16=F16, Q4=model(105, score))
        assert words in advice.warnings[0]
    worse = choose(max_task_drop=90, base_F16=model(270, 0.5), F16=F16, Q4=model(105, 0.2))
    assert worse.warnings[0].startswith("Q4 is worse than the untuned base")
    assert all("base" not in warning for warning in choose(base_F16=BASE, F16=F16, Q4=model(105, 0.75)).warnings)


def test_without_a_score_the_base_is_compared_by_perplexity() -> None:
    models = {"base_F16": model(270, perplexity=5.0), "F16": model(270, perplexity=6.0, same_top=1.0)}
    assert choose(**models).warnings[0] == "F16's held-out perplexity is not below the untuned base's (6.00 against 5.00)."


def test_rows_too_few_for_the_drop_are_pointed_out() -> None:
    assert any("raise evaluate.task_rows" in warning for warning in choose(F16=F16, Q4=model(105, 0.75)).warnings)
    assert choose(F16=model(270, 0.75, 0.02), Q4=model(105, 0.75, 0.02)).warnings == ()


SCORES = st.floats(0, 1)
LEVELS = st.dictionaries(st.sampled_from(["Q4", "Q5", "Q6", "Q8"]), st.tuples(st.integers(50, 400), SCORES), max_size=4)


@given(LEVELS, SCORES, st.floats(0.05, 1), st.floats(0, 100))
def test_the_rule_holds_for_any_figures(levels: dict[str, tuple[int, float]], best: float, memory_gb: float, drop: float) -> None:
    models = {"F16": model(300, best)} | {name: model(size, score) for name, (size, score) in levels.items()}
    advice = choose(memory_gb=memory_gb, max_task_drop=drop, **models)
    fits = {name: found for name, found in models.items() if round(found["bytes"] * MEMORY_MARGIN) <= memory_gb * 1e9}
    good = [found["bytes"] for found in fits.values() if (best - found["task"]["score"]) * 100 <= drop + 1e-9]
    if not fits:
        assert advice.model is None
    elif good:
        assert advice.model in fits
        assert models[advice.model]["bytes"] == min(good)
    else:
        assert advice.model is not None
        assert models[advice.model]["task"]["score"] == max(found["task"]["score"] for found in fits.values())
