"""The figures of strategies in the docs are what stage compare computes of the rows in measured/.

adapters.jsonl is from 2026-11-21, scales.jsonl from 2026-11-23. Each line is a model with its points by row.
"""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from pipeline.core.places import PROJECT
from pipeline.extras.compare.statistics import Scores, difference, mean_of
from pipeline.extras.compare.summary import matrix, perfect_rows

Model = tuple[str, str]  # level and strategy
F16, Q4_K_M, Q4_0, Q2_K = ((level, "merged_16") for level in ("F16", "Q4_K_M", "Q4_0", "Q2_K"))
# in the order of the table in docs/which-way-to-ship.md
STRATEGIES: list[Model] = [
    F16,
    Q4_K_M,
    ("Q4_K_M", "lora_level"),
    ("Q4_K_M", "scales_level"),
    Q4_0,
    ("Q4_0", "lora_level"),
    ("Q4_0", "scales_level"),
    ("Q4_0", "distilled_scales"),
    ("Q4_0", "merged_distilled"),
    Q2_K,
    ("Q2_K", "scales_level"),
]
# in the order of the table in docs/measurements.md: the second less the first
DIFFERENCES: list[tuple[Model, Model]] = [
    (Q4_K_M, ("Q4_K_M", "lora_level")),
    (Q4_K_M, ("Q4_K_M", "scales_level")),
    (Q4_0, ("Q4_0", "lora_level")),
    (Q4_0, ("Q4_0", "scales_level")),
    (Q2_K, ("Q2_K", "scales_level")),
    (F16, ("Q4_0", "scales_level")),
    (F16, ("Q4_0", "distilled_scales")),
]


@cache
def points(model: Model) -> Scores:
    """The scores of one level and strategy, (seeds, rows)."""
    runs = {}
    for name in ("scales", "adapters"):  # where both have a seed, that of the other two seeds' machine counts
        for line in Path(__file__).with_name("measured").joinpath(f"{name}.jsonl").open(encoding="utf-8"):
            run = json.loads(line)
            if (run["level"], run["strategy"]) == model:
                runs[run["seed"]] = run
    seeds = sorted(runs)
    assert seeds in ([42, 43, 44], [42])
    return matrix([runs[seed] for seed in seeds], sorted(runs[42]["points"]))


def table(page: str, heading: str) -> list[list[str]]:
    """The cells of the table that begins with `heading`, without heading and rule."""
    text = (PROJECT / "docs" / page).read_text(encoding="utf-8").partition(heading)[2]
    lines = text.partition("\n\n")[0].splitlines()[2:]
    return [line.strip("| ").split(" | ") for line in lines]


def shown(scores: Scores) -> str:
    """A mean in points of 100, with its interval if seeds were repeated."""
    value, low, high = (f"{100 * one:.1f}" for one in mean_of(scores))
    return f"{value} ({low} to {high})" if len(scores) > 1 else value


@pytest.mark.parametrize(("place", "model"), list(enumerate(STRATEGIES)), ids=map("-".join, STRATEGIES))
def test_the_page_shows_the_scores_of_the_rows(place: int, model: Model) -> None:
    rows = table("which-way-to-ship.md", "| strategy | points of 100 |")
    assert len(rows) == len(STRATEGIES)
    scores = points(model)
    assert rows[place][1:3] == [shown(scores), shown(perfect_rows(scores))]


@pytest.mark.parametrize(("place", "models"), list(enumerate(DIFFERENCES)))
def test_the_page_shows_the_differences_of_the_rows(place: int, models: tuple[Model, Model]) -> None:
    rows = table("measurements.md", "| strategy | less | points of 100 |")
    assert len(rows) == len(DIFFERENCES)
    first, second = map(points, models)
    found = [difference(of(first), of(second)) for of in (np.asarray, perfect_rows)]
    assert rows[place][2:] == [f"{one.points:+.1f} ({one.low:+.1f} to {one.high:+.1f})" for one in found]
