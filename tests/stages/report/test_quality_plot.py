"""pipeline.stages.report.quality_plot: the Pareto front, and a drawing that says what it shows."""

import random
import re
from typing import Any

from gate_inputs import evaluations_of
from report_inputs import MODELS, evaluation

from pipeline.stages.report.quality_plot import quality_plot as drawn_of

EVALUATIONS = {model: evaluation(model) for model in MODELS}


def quality_plot(found: dict[str, Any], recommended: str | None) -> str:
    return drawn_of(evaluations_of(found), recommended)


def front(found: dict[str, Any]) -> set[str]:
    """The names that the drawing says nothing smaller is as good as."""
    (names,) = re.findall(r"as good: ([^<]*)\.<", quality_plot(found, None))
    return set(names.split(", "))


def test_the_front_is_what_nothing_beats() -> None:
    assert front(EVALUATIONS) == {"Q4_K_M", "F16"}  # and not base-Q4_K_M, of the same size
    dice = random.Random(0)  # noqa: S311
    for count in (1, 5, 12):
        places = {f"Q{n}_K": (dice.randint(1, 9), dice.randint(0, 9)) for n in range(count)}
        drawn = {name: evaluation("F16") | {"bytes": size} for name, (size, _) in places.items()}
        for name, (_, score) in places.items():
            drawn[name]["task"] = drawn[name]["task"] | {"score": score / 10}
        on_the_front = {places[name] for name in front(drawn)}
        for size, score in set(places.values()):
            others = set(places.values()) - {(size, score)}
            is_beaten = any(other[0] <= size and other[1] >= score for other in others)
            assert is_beaten == ((size, score) not in on_the_front), places


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


def test_scores_that_are_all_zero_are_drawn_once() -> None:
    zero = {
        "score": 0.0,
        "score_low": 0.0,
        "score_high": 0.0,
        "rows": 16,
        "scorer": "exact_match",
        "stopped": 1.0,
    }
    found = {model: evaluation(model) | {"task": zero} for model in ("F16", "Q4_K_M", "base-F16")}
    drawn = quality_plot(found, None)
    assert drawn.count(">Q4_K_M</text>") == 1
