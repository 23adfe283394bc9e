"""pipeline.stages.report.quality_plot: the Pareto front, and a drawing that says what it shows."""

import re

from hypothesis import given
from hypothesis import strategies as st
from report_inputs import MODELS, evaluation

from pipeline.gate.recommend import Recommendation
from pipeline.stages.report.level_table import Cell, level_rows
from pipeline.stages.report.quality_plot import Place, pareto_front, quality_plot

EVALUATIONS = {model: evaluation(model) for model in MODELS}


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=12))
def test_the_front_is_what_nothing_beats(sizes_and_values: list[tuple[int, int]]) -> None:
    places = [
        Place(str(number), size, value, value, value) for number, (size, value) in enumerate(sizes_and_values)
    ]
    front = pareto_front(places)
    for one in places:
        beaten = any(
            other.size <= one.size
            and other.value >= one.value
            and (other.size, other.value) != (one.size, one.value)
            for other in places
        )
        assert beaten == ((one.size, one.value) not in {(other.size, other.value) for other in front})


def test_the_words_name_each_model_with_its_interval_and_the_front() -> None:
    drawn = quality_plot(EVALUATIONS, "Q4_K_M")
    assert "Q4_K_M 105.5 MB, 75.3 (68.8 to 81.2)" in drawn
    # at the same size the tuned one is better
    assert "where nothing smaller is as good: base-Q4_K_M" not in drawn
    assert drawn.endswith("</svg>\n") or drawn.rstrip().endswith("</svg>")
    assert "nothing smaller is as good: Q4_K_M, F16." in drawn
    assert quality_plot(EVALUATIONS, "Q4_K_M") == drawn


def test_a_name_never_lies_on_another() -> None:
    many = {
        f"Q{number}_K_M": evaluation("Q4_K_M") | {"bytes": 60_000_000 + number * 9_000_000}
        for number in range(12)
    }
    drawn = quality_plot(many, None)
    places = [
        tuple(map(float, found)) for found in re.findall(r'x="([\d.]+)" y="([\d.]+)"[^>]*>Q\d+_K_M<', drawn)
    ]
    assert len(places) == 12
    assert all(abs(a - c) > 35 or abs(b - d) >= 10 for i, (a, b) in enumerate(places) for c, d in places[:i])


def test_without_scores_divergence_is_drawn_and_without_that_nothing() -> None:
    unscored = {model: found | {"task": None} for model, found in EVALUATIONS.items()}
    drawn = quality_plot(unscored, None)
    assert "same top token as the 16-bit model" in drawn
    assert "base-Q4_K_M" not in drawn
    assert quality_plot({"F16": {"bytes": 1}}, None) == ""


def test_a_score_that_is_null_is_not_drawn_and_has_no_interval() -> None:
    null = {"rows": 64, "score": None, "score_low": None, "score_high": None}
    unmarked = EVALUATIONS | {"base-F16": EVALUATIONS["base-F16"] | {"task": null}}
    assert "base-F16" not in quality_plot(unmarked, None)
    assert "task score" in quality_plot(unmarked, None)
    assert "same top token as the 16-bit model" in quality_plot(
        EVALUATIONS | {"F16": EVALUATIONS["F16"] | {"task": null}}, None
    )
    (row,) = level_rows({"base-F16": unmarked["base-F16"]}, {}, Recommendation(None, "", (), {}, ()))
    assert row["groups"]["Task"][0] == Cell(None, "–")


def test_a_score_of_some_rows_says_of_how_many() -> None:
    task = EVALUATIONS["F16"]["task"]
    few = task | {"scores": {task["scorer"]: task["scores"][task["scorer"]] | {"measured": 3}}}
    (row,) = level_rows({"F16": EVALUATIONS["F16"] | {"task": few}}, {}, Recommendation(None, "", (), {}, ()))
    assert row["groups"]["Task"][0].small == "69.4 to 81.4, 3 of 64"


def test_divergence_to_another_kind_of_model_says_so() -> None:
    rows = {
        row["model"]: row["groups"]["Divergence"]
        for row in level_rows(EVALUATIONS, {}, Recommendation(None, "", (), {}, ()))
    }
    assert [cell.small for cell in rows["base-F16"][1:]] == ["from F16"] * 4
    assert not any(cell.small for model in ("base-Q4_K_M", "F16", "Q4_K_M") for cell in rows[model][1:])
