"""Each strategy's figures as reports/strategies.json: means with intervals, differences, which to take."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from statistics import fmean, median
from typing import Any

import numpy as np

from pipeline.config.strategies import MERGED_16, STRATEGIES, Job, title
from pipeline.core.errors import DataError
from pipeline.stages.compare.recommendation import Measured, recommend
from pipeline.stages.compare.statistics import (
    Difference,
    General,
    Scores,
    change_row,
    difference,
    general_change,
    general_score,
    mean_of,
)

Figures = Mapping[str, Any]
DISK = (
    "base, merged model, 16-bit GGUF, level and each copy of it with other scales together, as the stages "
    "leave them; checkpoints, the adapter, what only comparisons read and what a level was quantized "
    "from, unless its answers are learned, aside"
)


def summarize(
    figures: Sequence[Figures],
    *,
    seeds: Sequence[int],
    levels: Sequence[str],
    sixteen: str,
    scorer: str,
    seed: int,
) -> dict[str, Any]:
    """What reports/strategies.json holds; `figures` are `pipeline.stages.compare.measure`'s, `sixteen` is the
    16-bit type, `seed` draws the tests' swaps.

    Raises `DataError` where no row has a score from every strategy and seed.
    """
    rows = scored_rows(figures)
    if not rows:
        raise DataError(
            "Q-COMPARE-004",
            f"no held-out row has a score by {scorer} from every strategy: look at the judge, or take "
            "another scorer",
        )
    reference = of_strategy(figures, rows, sixteen, MERGED_16, seeds)
    untuned = [one.get("untuned_general") for one in mine(figures, sixteen, MERGED_16, seeds)]
    return {
        "seeds": list(seeds),
        "scorer": scorer,
        "rows": len(rows),
        "disk_counted": DISK,
        "machines": sorted({one["machine"] for one in figures}),
        "reference": {"level": sixteen, **reference},
        "untuned_general": general_score(untuned),
        "levels": {level: of_level(figures, rows, level, seeds, seed, untuned) for level in levels},
        "seconds": seconds(figures),
    }


def seconds(figures: Sequence[Figures]) -> float:
    """Time that the measurements took, and the trainings, each of which is in the figures of several."""
    trained: dict[str, float] = {}
    for one in figures:
        name = Job(one["strategy"], one["level"], one["seed"]).training
        trained |= one["training"].get("parts") or {name: one["training"]["seconds"]}
    total: float = sum(trained.values()) + sum(one["measuring_seconds"] for one in figures)
    return round(total, 1)


def scored_rows(figures: Sequence[Figures]) -> list[str]:
    """The rows that have a score everywhere, in the order in which they were answered."""
    return [row for row in figures[0]["points"] if all(one["points"].get(row) is not None for one in figures)]


def of_level(
    figures: Sequence[Figures],
    rows: Sequence[str],
    level: str,
    seeds: Sequence[int],
    seed: int,
    untuned: Sequence[General] = (),
) -> dict[str, Any]:
    """One level's strategies, their differences from each other (second less first, in points of 100), and
    the one to take. `untuned` is the untuned base's general ability, for each seed.
    """
    measured_here = {one["strategy"] for one in figures if one["level"] == level}
    asked = [strategy for strategy in STRATEGIES if strategy in measured_here]
    forgotten = {
        strategy: general_change(untuned, generals(figures, level, strategy, seeds), seed)
        for strategy in asked
    }
    strategies = {
        strategy: {"title": title(strategy, level), "general_change": change_row(forgotten[strategy])}
        | of_strategy(figures, rows, level, strategy, seeds)
        for strategy in asked
    }
    points = {strategy: matrix(figures, rows, level, strategy, seeds) for strategy in asked}
    pairs = list(combinations(asked, 2))
    differences = {pair: difference(points[pair[0]], points[pair[1]], seed) for pair in pairs}
    perfect = {
        pair: difference(all_right(points[pair[0]]), all_right(points[pair[1]]), seed) for pair in pairs
    }
    measured = {
        strategy: Measured(
            found["score"],
            found["disk_bytes"],
            found["bytes"],
            forgotten[strategy],
            part_of_speed(mine(figures, level, strategy, seeds)),
        )
        for strategy, found in strategies.items()
    }
    advice = recommend(level, measured, differences, perfect, len(seeds))
    return {
        "strategies": strategies,
        "differences": difference_rows(differences),
        "perfect_differences": difference_rows(perfect),
        "recommended": advice.strategy,
        "decided": advice.decided,
        "sentence": advice.sentence,
    }


def of_strategy(
    figures: Sequence[Figures], rows: Sequence[str], level: str, strategy: str, seeds: Sequence[int]
) -> dict[str, Any]:
    """One strategy's figures over the seeds: sizes and divergence as means, speeds as medians, scores."""
    own = mine(figures, level, strategy, seeds)
    points = matrix(figures, rows, level, strategy, seeds)
    score, perfect = mean_of(points), mean_of(all_right(points))
    speeds = undisturbed(own)
    bare = [speed["bare"]["median"] for speed in speeds if "bare" in speed]
    return {
        "bytes": round(fmean(sum(one["shipped"].values()) for one in own)),
        "shipped": own[0]["shipped"],
        "disk_bytes": round(fmean(sum(one["disk"].values()) for one in own)),
        "disk": own[0]["disk"],
        "score": score.value,
        "score_low": score.low,
        "score_high": score.high,
        "perfect": perfect.value,
        "perfect_low": perfect.low,
        "perfect_high": perfect.high,
        "general": general_score(generals(figures, level, strategy, seeds)),
        "kld": fmean(one["kld"] for one in own),
        "same_top": fmean(one["same_top"] for one in own),
        "tok_s": median(speed["shipped"]["median"] for speed in speeds) if speeds else None,
        "tok_s_bare": median(bare) if bare else None,
        "train_seconds": median(one["training"]["seconds"] for one in own),
        "train_memory": max(one["training"]["peak_memory_bytes"] for one in own),
        "by_seed": [
            {
                "seed": one["seed"],
                "score": float(points[place].mean()),
                "perfect": float(all_right(points[place]).mean()),
                "kld": one["kld"],
                "same_top": one["same_top"],
                "general": (one.get("general") or {}).get("score"),
                "stopped": one["stopped"],
                "valid": one["valid"],
                "speed": one["speed"],
                "training": one["training"],
            }
            for place, one in enumerate(own)
        ],
    }


def part_of_speed(own: Sequence[Figures]) -> float:
    """The speed of what one strategy ships as a part of that without the adapter: the median over seeds, each
    timed in turn; 1 without an adapter, which is the most, and where other load spoilt all of them.
    """
    timed = [speed for speed in undisturbed(own) if "bare" in speed]
    parts: list[float] = [speed["shipped"]["median"] / speed["bare"]["median"] for speed in timed]
    return min(1.0, median(parts)) if parts else 1.0


def undisturbed(own: Sequence[Figures]) -> list[Mapping[str, Any]]:
    """The speeds that were measured while the machine did nothing else."""
    return [one["speed"] for one in own if not one["speed"].get("disturbed")]


def mine(figures: Sequence[Figures], level: str, strategy: str, seeds: Sequence[int]) -> list[Figures]:
    """One strategy's figures at one level, in the order of the seeds."""
    found = {one["seed"]: one for one in figures if (one["level"], one["strategy"]) == (level, strategy)}
    return [found[seed] for seed in seeds]


def generals(figures: Sequence[Figures], level: str, strategy: str, seeds: Sequence[int]) -> list[General]:
    """One strategy's answers to the general questions, in the order of the seeds; None where not asked."""
    return [one.get("general") for one in mine(figures, level, strategy, seeds)]


def matrix(
    figures: Sequence[Figures], rows: Sequence[str], level: str, strategy: str, seeds: Sequence[int]
) -> Scores:
    """One strategy's scores, (seeds, rows), 0 to 1."""
    return np.array(
        [[one["points"][row] for row in rows] for one in mine(figures, level, strategy, seeds)],
        dtype=np.float64,
    )


def all_right(points: Scores) -> Scores:
    """1 where a row has all points, else 0."""
    right: Scores = (points == 1.0).astype(np.float64)
    return right


def difference_rows(differences: Mapping[tuple[str, str], Difference]) -> list[dict[str, Any]]:
    """Differences as JSON."""
    return [
        {"first": first, "second": second, **asdict(one), "measurable": one.measurable}
        for (first, second), one in differences.items()
    ]
