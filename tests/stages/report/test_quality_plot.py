"""pipeline.stages.report.quality_plot: the Pareto front, and a drawing that says what it shows."""

import re
from typing import Any

from gate_inputs import evaluations_of
from hypothesis import given
from hypothesis import strategies as st
from report_inputs import MODELS, evaluation

from pipeline.stages.report.quality_plot import Place, pareto_front
from pipeline.stages.report.quality_plot import quality_plot as drawn_of

EVALUATIONS = {model: evaluation(model) for model in MODELS}


def quality_plot(found: dict[str, Any], recommended: str | None) -> str:
    return drawn_of(evaluations_of(found), recommended)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=12))
def test_the_front_is_what_nothing_beats(sizes_and_values: list[tuple[int, int]]) -> None:
    places = [Place(str(n), size, *[value] * 3) for n, (size, value) in enumerate(sizes_and_values)]
    front = pareto_front(places)
    for one in places:
        others = [each for each in places if (each.size, each.value) != (one.size, one.value)]
        beaten = any(each.size <= one.size and each.value >= one.value for each in others)
        assert beaten == ((one.size, one.value) not in {(other.size, other.value) for other in front})


def test_at_the_same_size_the_better_one_is_on_the_front() -> None:
    drawn = quality_plot(EVALUATIONS, "Q4_K_M")
    assert "as good: Q4_K_M, F16." in drawn  # and not base-Q4_K_M


def test_a_name_never_lies_on_another() -> None:
    sizes = {f"Q{number}_K_M": 60_000_000 + number * 9_000_000 for number in range(12)}
    drawn = quality_plot({name: evaluation("Q4_K_M") | {"bytes": size} for name, size in sizes.items()}, None)
    found = re.findall(r'x="([\d.]+)" y="([\d.]+)"[^>]*>Q\d+_K_M<', drawn)
    places = [tuple(map(float, place)) for place in found]
    assert len(places) == 12
    assert all(abs(a - c) > 35 or abs(b - d) >= 10 for i, (a, b) in enumerate(places) for c, d in places[:i])


def test_without_scores_divergence_is_drawn_and_without_that_nothing() -> None:
    unscored = {model: found | {"task": None} for model, found in EVALUATIONS.items()}
    drawn = quality_plot(unscored, None)
    assert "same top token" in drawn
    assert "base-Q4_K_M" not in drawn
    assert quality_plot({"F16": {"bytes": 1}}, None) == ""


def test_a_score_that_is_null_is_not_drawn() -> None:
    null = {"rows": 64, "score": None, "score_low": None, "score_high": None}
    unmarked = EVALUATIONS | {"base-F16": EVALUATIONS["base-F16"] | {"task": null}}
    assert "base-F16" not in quality_plot(unmarked, None)
    assert "task score" in quality_plot(unmarked, None)
    without = EVALUATIONS | {"F16": EVALUATIONS["F16"] | {"task": null}}
    assert "same top token" in quality_plot(without, None)
