"""compare's summary of what its jobs measured: intervals know of rows and of seeds, differences are paired,
and the advice follows the figures.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden import Golden

from pipeline.__main__ import run as run_stage
from pipeline.config.strategies import (
    MERGED_16,
    STRATEGIES,
)
from pipeline.metrics.statistics import CHANCE, half_width

Scores = Sequence[Sequence[float]]  # of each seed, of each row
Summary = dict[str, Any]
DISK = dict(zip(STRATEGIES, (900, 901, 400, 110, 200, 700, 1000), strict=True))
SHIPPED = dict(zip(STRATEGIES, (100, 100, 110, 110, 100, 100, 100), strict=True))
TIMED: dict[str, Any] = {"shipped": {"median": 60.0}, "disturbed": False}


def run(strategy: str, seed: int, points: Sequence[float], **changed: Any) -> dict[str, Any]:
    """Return the figures that a job measured; `changed` ones replace the defaults."""
    return {
        "strategy": strategy,
        "level": "Q4_0",
        "seed": seed,
        "points": {f"row-{place}": score for place, score in enumerate(points)},
        "shipped": {"GGUF": SHIPPED[strategy]},
        "disk": {"GGUF": DISK[strategy]},
        "kld": 0.0,
        "same_top": 1.0,
        "stopped": 1.0,
        "valid": 1.0,
        "speed": TIMED,
        "training": {"seconds": 1.0, "peak_memory_bytes": 1},
        "machine": "here",
        "measuring_seconds": 1.0,
    } | changed


@pytest.fixture
def compared(tmp_path: Path) -> Callable[..., Summary]:
    return partial(compare, tmp_path)


def compare(root: Path, points: dict[str, Scores], **changed: dict[str, dict[str, Any]]) -> Summary:
    """reports/strategies.json of scores by strategy; `changed` are figures of a strategy, by their name. The
    merge in 16 bits answers as the first strategy.
    """
    first = next(iter(points.values()))
    seeds = range(1, len(first) + 1)
    settings = {"seeds": list(seeds), "levels": ["Q4_0"], "strategies": list(points)}
    folder = root / "reports/compare"
    folder.mkdir(parents=True, exist_ok=True)
    for place, seed in enumerate(seeds):
        untuned = {"untuned_general": changed["general"]["untuned"]} if "general" in changed else {}
        merged = run(MERGED_16, seed, first[place], level="F16", **untuned)
        (folder / f"{MERGED_16}-{seed}.json").write_text(json.dumps(merged))
        for strategy, scores in points.items():
            own = {name: of[strategy] for name, of in changed.items() if strategy in of}
            file = folder / f"{strategy}-Q4_0-{seed}.json"
            file.write_text(json.dumps(run(strategy, seed, scores[place], **own)))
    params = {"compare": settings, "convert": {"type": "F16"}}
    (root / "params.yaml").write_text(json.dumps(params), encoding="utf-8")
    run_stage("compare", root, None)
    summary: Summary = json.loads((root / "reports/strategies.json").read_text())
    return summary


def difference(compared: Callable[..., Summary], first: Scores, second: Scores) -> dict[str, Any]:
    """The second's less the first's."""
    level = compared({MERGED_16: np.array(first).tolist(), "merged_nf4": np.array(second).tolist()})
    (found,) = level["levels"]["Q4_0"]["differences"]
    return dict(found)


# ---- statistics


def scores(
    random: np.random.Generator,
    seeds: int,
    rows: int,
    *,
    of_seeds: float = 0.05,
    of_rows: float = 0.3,
    of_both: float = 0.2,
) -> Any:
    """Scores around 0.5 with so much spread by seed, by row, and by both."""
    return (
        0.5
        + of_seeds * random.normal(size=(seeds, 1))
        + of_rows * random.normal(size=(1, rows))
        + of_both * random.normal(size=(seeds, rows))
    )


@pytest.mark.parametrize(("seeds", "least"), [(1, 0.92), (2, 0.85), (3, 0.90), (12, 0.92)])
@pytest.mark.parametrize(
    ("of_seeds", "of_rows", "of_both"),
    [(0.0, 0.3, 0.2), (0.02, 0.2, 0.2), (0.05, 0.05, 0.2), (0.05, 0.0, 0.01), (0.0, 0.0, 0.3)],
)
def test_the_interval_holds_the_truth_as_often_as_it_says(
    seeds: int, least: float, of_seeds: float, of_rows: float, of_both: float
) -> None:
    random = np.random.default_rng(0)
    drawn = (
        scores(random, seeds, 60, of_seeds=of_seeds if seeds > 1 else 0, of_rows=of_rows, of_both=of_both)
        for _ in range(400)
    )
    assert sum(abs(one.mean() - 0.5) <= half_width(one) for one in drawn) / 400 >= least


def test_one_seed_has_the_rows_own_interval_and_equal_scores_have_none() -> None:
    from scipy.stats import t

    rows = np.random.default_rng(2).random((1, 30))
    low, high = t.interval(0.95, 29, rows.mean(), rows.std(ddof=1) / 30**0.5)
    assert half_width(rows) == pytest.approx((high - low) / 2)
    assert half_width(rows.T) == half_width(rows)
    assert half_width(np.full((3, 20), 0.7)) < 1e-12


def test_a_difference_is_paired(compared: Callable[..., Summary]) -> None:
    random = np.random.default_rng(2)
    first = scores(random, 3, 100, of_seeds=0.0)
    second = first + 0.02 + 0.01 * random.normal(size=first.shape)  # hard rows are hard for both
    found = difference(compared, first, second)
    assert found["measurable"]
    assert 1.0 < found["low"] < found["points"] < found["high"] < 3.0
    back = difference(compared, second, first)
    assert (back["points"], back["p_value"]) == (-found["points"], found["p_value"])
    assert not difference(compared, first, np.roll(second, 50, axis=1))["measurable"]


def test_no_difference_is_none_and_one_seed_that_is_better_by_luck_is_not_measurable(
    compared: Callable[..., Summary],
) -> None:
    same = np.random.default_rng(3).random((3, 50))
    found = difference(compared, same, same)
    figures = [found[name] for name in ("points", "low", "high", "p_value", "measurable")]
    assert figures == [0, 0, 0, 1, False]
    lucky = same.copy()
    lucky[0] += 0.2
    found = difference(compared, same, lucky)
    assert not found["measurable"]  # the test over rows is certain, the seeds are not
    assert found["p_value"] < CHANCE
    assert difference(compared, same[:1], lucky[:1])["measurable"]  # of one seed nobody knows


def test_a_single_score_says_nothing(compared: Callable[..., Summary]) -> None:
    found = compared({MERGED_16: [[1.0]], "merged_nf4": [[0.0]]})["levels"]["Q4_0"]
    best = found["strategies"][MERGED_16]
    assert (best["score_low"], best["score_high"]) == (0.0, 1.0)
    assert [found["differences"][0][name] for name in ("low", "high")] == [-100.0, 100.0]


# ---- the recommendation

FIRST_FOUR = (MERGED_16, "merged_nf4", "lora_nf4", "lora_level")
EQUAL = dict.fromkeys((MERGED_16, "lora_level", "scales_level"), 70.0)
# as fast as 0.65 of what it is without the adapter
SLOW = {"lora_level": {"shipped": {"median": 39.0}, "bare": {"median": 60.0}, "disturbed": False}}
ROWS = 128


def signs(strategy: str) -> Any:
    """1 or -1 for each row, half of them each, that have nothing to do with another strategy's."""
    place = list(STRATEGIES).index(strategy) + 1
    return np.array([1 - 2 * ((row & place).bit_count() % 2) for row in range(ROWS)])


def rows_of(strategy: str, points: float, noise: float, right: float) -> Any:
    """Scores of mean `points` in which differences below some 5 points are noise if `noise` is 1; so many of
    100 rows have all points.
    """
    whole = round(right / 100 * ROWS)
    shares = points / 100 + 0.19 * noise * signs(strategy)
    if whole:
        rest = (points / 100 * ROWS - whole) / (ROWS - whole)
        shares = np.array([1.0] * whole + [rest] * (ROWS - whole))
    return shares


def advice(
    compared: Callable[..., Summary],
    points: dict[str, float],
    noise: float = 1,
    *,
    right: dict[str, float] | None = None,
    seeds: int = 3,
    **changed: dict[str, Any],
) -> Summary:
    """The level's part where strategies score so many points; the same for each seed."""
    of_rows = {
        name: rows_of(name, score, noise, (right or {}).get(name, 0)) for name, score in points.items()
    }
    found = compared({name: [rows.tolist()] * seeds for name, rows in of_rows.items()}, **changed)
    return dict(found["levels"]["Q4_0"])


ADVICE = [
    ((70, 70, 70, 80), 1, "lora_level", True),
    ((80, 70, 60, 70), 1, MERGED_16, True),
    ((70, 80, 60, 70), 1, "merged_nf4", True),
    ((60, 60, 80, 70), 1, "lora_nf4", True),
    ((70, 71, 72, 69), 1, "lora_level", False),
    ((80, 79, 60, 60), 1, MERGED_16, False),
    ((80, 79, 78, 60), 1, "lora_nf4", False),
    ((0, 0, 0, 0), 0, "lora_level", False),
]


def more_rows_all_right(compared: Callable[..., Summary]) -> Summary:
    """Return the advice where more rows are entirely right: that is no noise, whatever the score says."""
    right = {MERGED_16: 10.0, "lora_level": 30.0, "scales_level": 12.0}
    return advice(compared, EQUAL | {"lora_level": 71.0}, right=right, speed=SLOW)


def general(right: int) -> dict[str, Any]:
    """So many of 100 questions answered right."""
    return {"right": [1] * right + [0] * (100 - right), "sha256": "of the questions", "score": right / 100}


def test_what_the_advice_says(compared: Callable[..., Summary], snapshot: Any) -> None:
    forgot = {name: general(50 if name == "scales_level" else 65) for name in ("untuned", *EQUAL)}

    def said() -> Iterator[Summary]:
        for points, noise, *taken in ADVICE:
            found = advice(compared, dict(zip(FIRST_FOUR, points, strict=True)), noise)
            assert [found["recommended"], found["decided"]] == taken
            yield found
        yield advice(compared, EQUAL, speed=SLOW)
        yield more_rows_all_right(compared)
        yield advice(compared, dict(zip(FIRST_FOUR, (70, 70, 70, 80), strict=True)), seeds=1)
        yield advice(compared, EQUAL | {"scales_level": 90.0}, general=forgot)

    assert "".join(f"{one['sentence']}\n" for one in said()) == snapshot(extension_class=Golden)


def test_of_equals_the_faster_is_taken_however_little_disk_an_adapter_needs(
    compared: Callable[..., Summary],
) -> None:
    assert advice(compared, EQUAL, speed=SLOW)["recommended"] == "scales_level"
    best = advice(compared, EQUAL | {"lora_level": 90.0}, speed=SLOW)
    assert best["recommended"] == "lora_level"  # though slow
    two = dict.fromkeys(("lora_nf4", "lora_level"), 70.0)
    assert advice(compared, two, speed=SLOW)["recommended"] == "lora_nf4"
    # the best score is no excuse for fewer rows that are all right
    right = {MERGED_16: 10.0, "scales_level": 19.0}
    found = advice(compared, {MERGED_16: 70.3, "scales_level": 70.2}, right=right)
    assert (found["recommended"], found["decided"]) == ("scales_level", True)
    found = more_rows_all_right(compared)
    assert (found["recommended"], found["decided"]) == ("lora_level", True)
    # nor are more rows that are all right one for a lower score
    found = advice(compared, {MERGED_16: 80.0, "scales_level": 60.0}, right={"scales_level": 30.0})
    assert (found["recommended"], found["decided"]) == (MERGED_16, True)


@pytest.mark.parametrize(
    ("shipped", "bare", "disturbed", "taken"),
    [
        (60.0, None, False, "lora_level"),
        (45.0, 60.0, False, "scales_level"),
        (57.6, 60.0, False, "lora_level"),  # 0.96: as fast
        (61.0, 60.0, False, "lora_level"),  # noise
        (20.0, 60.0, True, "lora_level"),  # nothing says that it is slower
    ],
)
def test_an_adapters_speed_is_a_part_of_that_without(
    compared: Callable[..., Summary], shipped: float, bare: float | None, disturbed: bool, taken: str
) -> None:
    speed = {"shipped": {"median": shipped}, "disturbed": disturbed}
    speed |= {} if bare is None else {"bare": {"median": bare}}
    assert advice(compared, EQUAL, speed={"lora_level": speed})["recommended"] == taken
