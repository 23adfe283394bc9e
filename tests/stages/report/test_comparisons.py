"""pipeline.stages.report.comparisons and forgetting: who is compared with whom, and that noise is called
noise.
"""

import pytest
from report_inputs import MODELS, evaluation

from pipeline.pages.formats import p_value
from pipeline.stages.report.comparisons import (
    against_base,
    against_reference,
    compare,
    differences_plot,
    task_scores,
)
from pipeline.stages.report.forgetting import forgetting_values, forgotten

SCORES = {
    "base-F16": [0.0] * 40,
    "base-Q4_K_M": [0.0] * 40,
    "F16": [1.0] * 38 + [0.0] * 2,
    "Q4_K_M": [1.0] * 37 + [0.0] * 3,
    "Q2_K": [1.0] * 10 + [0.0] * 30,
}


def test_levels_are_compared_with_their_own_16_bit_model_and_with_the_base_at_the_same_level() -> None:
    found = {(one.first, one.second): one.verdict for one in against_reference(SCORES, "F16", 1)}
    assert found == {
        ("base-F16", "base-Q4_K_M"): "noise",
        ("F16", "Q4_K_M"): "noise",
        ("F16", "Q2_K"): "worse",
    }
    assert {(one.first, one.second): one.verdict for one in against_base(SCORES, 1)} == {
        ("base-F16", "F16"): "better",
        ("base-Q4_K_M", "Q4_K_M"): "better",
    }


def test_only_rows_that_both_have_a_score_for_are_compared() -> None:
    found = compare("a", "b", {"a": [1.0, None, 0.0, 1.0], "b": [0.0, 1.0, None, 1.0]}, 1)
    assert found is not None
    assert (found.rows, found.difference.points) == (2, -50.0)
    assert compare("a", "b", {"a": [None], "b": [1.0]}, 1) is None
    assert compare("a", "c", {"a": [1.0]}, 1) is None
    assert compare("a", "b", {"a": [1.0], "b": [1.0, 0.0]}, 1) is None


def test_where_the_interval_says_otherwise_the_test_decides_and_says_so() -> None:
    five_of_64 = compare("a", "b", {"a": [1.0] * 64, "b": [0.0] * 5 + [1.0] * 59}, 1)
    assert five_of_64 is not None
    assert five_of_64.difference.high < 0
    assert (five_of_64.verdict, five_of_64.words) == ("noise", "within the noise by the test, p = 0.062")
    ten = compare("a", "b", {"a": [1.0] * 64, "b": [0.0] * 10 + [1.0] * 54}, 1)
    assert ten is not None
    assert ten.words == "worse, more than noise"


@pytest.mark.parametrize(
    ("p", "shown"),
    [
        (0.0004, "p < 0.001"),
        (0.032, "p = 0.032"),
        (0.0496, "p = 0.0496"),
        (0.04999, "p = 0.0499"),
        (0.05, "p = 0.050"),
    ],
)
def test_a_p_below_the_limit_is_never_shown_as_the_limit(p: float, shown: str) -> None:
    assert p_value(p) == shown


def test_answers_without_any_score_are_no_scores() -> None:
    assert task_scores({"F16": [{"score": None}], "Q4": [{"score": 1.0}, {"score": None}]}) == {
        "Q4": [1.0, None]
    }


def test_the_drawing_says_in_words_what_it_shows() -> None:
    drawn = differences_plot(against_reference(SCORES, "F16", 1), "drawn", "Levels")
    assert "Q2_K minus F16 −70.0" in drawn
    assert "worse, more than noise" in drawn
    assert differences_plot([], "drawn", "Levels") == ""


@pytest.mark.parametrize(("lost", "warned"), [(2, False), (20, True)])
def test_forgetting_is_warned_of_only_beyond_noise(lost: int, warned: bool) -> None:
    evaluations = {model: evaluation(model) for model in MODELS}
    right = list(evaluations["base-F16"]["general"]["right"])
    known = [number for number, one in enumerate(right) if one][:lost]
    evaluations["Q4_K_M"]["general"] |= {
        "right": [0 if number in known else one for number, one in enumerate(right)]
    }
    found = forgotten(evaluations, 1)
    assert ("Q4_K_M" in found) == warned
    values = forgetting_values(evaluations, 1)
    assert values is not None
    assert len(values["warnings"]) == warned
    assert [subject for subject, _ in values["subjects"]] == ["arithmetic", "geography", "language", "logic"]


def test_what_nobody_asked_was_not_forgotten() -> None:
    assert forgetting_values({"F16": {"general": None}}, 1) is None
    assert forgotten({"F16": {}}, 1) == {}
