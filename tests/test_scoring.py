"""scoring: points per field, validity, and an interval that holds the mean."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.scoring import exact_match, interval, json_fields

REFERENCE = json.dumps({"module": "os", "required": ["path"], "n": 1, "flag": True})


@pytest.mark.parametrize(
    ("answer", "points", "valid"),
    [
        (REFERENCE, 1.0, True),
        ('{"module": "os", "required": ["path"]}', 0.5, True),
        ('{"module": "os", "required": ["path"], "n": true, "flag": 1}', 0.5, True),  # 1 is not true
        ('{"module": "sys", "extra": 1}', 0.0, True),
        ("[1]", 0.0, False),
        ("Sure! " + REFERENCE, 0.0, False),
        ("", 0.0, False),
        ("[" * 100_000, 0.0, False),
    ],
)
def test_json_fields(answer: str, points: float, valid: bool) -> None:
    score = json_fields(REFERENCE, answer)
    assert (score.points, score.valid) == (points, valid)


def test_a_reference_that_is_no_object_is_an_error() -> None:
    with pytest.raises(ValueError, match="no JSON object"):
        json_fields("four", "{}")


def test_exact_match() -> None:
    assert exact_match("42", " 42\n").points == 1.0
    assert exact_match("42", "42.0").points == 0.0
    assert not exact_match("42", "  ").valid


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50))
def test_the_interval_is_ordered_in_range_and_repeatable(points: list[float]) -> None:
    low, high = interval(points, seed=0)
    assert min(points) - 1e-9 <= low <= high <= max(points) + 1e-9
    assert interval(points, seed=0) == (low, high)


def test_the_interval_covers_the_true_mean_about_95_times_in_100() -> None:
    import random

    draw = random.Random(1)  # noqa: S311
    held = 0
    for seed in range(200):
        low, high = interval([float(draw.random() < 0.7) for _ in range(60)], seed)
        held += low <= 0.7 <= high
    assert 180 <= held <= 200


def test_more_rows_make_a_narrower_interval() -> None:
    few, many = interval([0.0, 1.0] * 10, seed=1), interval([0.0, 1.0] * 250, seed=1)
    assert many[1] - many[0] < (few[1] - few[0]) / 3
