"""Each strategy's figures for reports/strategies.json: means with intervals, differences, and the
recommendation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from statistics import fmean, median
from typing import Any

import numpy as np

from pipeline.config.strategies import MERGED_16, STRATEGIES, Job, title
from pipeline.core.errors import DataError
from pipeline.extras.compare.recommendation import Measured, recommend
from pipeline.extras.compare.statistics import (
    Difference,
    General,
    Scores,
    difference,
    general_change,
    general_score,
    mean_of,
)

Figures = Mapping[str, Any]
Runs = Sequence[Figures]  # runs of one strategy at one level, in the order of the seeds
# figures of a run that the report contains unchanged
AS_MEASURED = ("seed", "kld", "same_top", "stopped", "valid", "speed", "training")
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
) -> dict[str, Any]:
    """Return the content of reports/strategies.json. `figures` come from `pipeline.extras.compare.measure`,
    `sixteen` is the 16-bit type.

    Raises `DataError` if no row has a score from every strategy and seed.
    """
    # Rows with a score everywhere, in the order in which they were answered.
    rows = [row for row in figures[0]["points"] if all(run["points"].get(row) is not None for run in figures)]
    if not rows:
        raise DataError(
            "Q-COMPARE-004",
            f"no held-out row has a score by {scorer} from every strategy: look at the judge, or take "
            "another scorer",
        )
    by_strategy = of_strategies(figures, seeds)
    reference = by_strategy[sixteen][MERGED_16]
    untuned = [run.get("untuned_general") for run in reference]
    return {
        "seeds": list(seeds),
        "scorer": scorer,
        "rows": len(rows),
        "disk_counted": DISK,
        "machines": sorted({run["machine"] for run in figures}),
        "reference": {"level": sixteen, **of_strategy(reference, rows)},
        "untuned_general": general_score(untuned),
        "levels": {level: of_level(by_strategy[level], rows, level, untuned) for level in levels},
        "seconds": seconds(figures),
    }


def of_strategies(figures: Sequence[Figures], seeds: Sequence[int]) -> dict[str, dict[str, Runs]]:
    """Return the figures by level and strategy, in the order of `STRATEGIES` and of the seeds."""
    runs = {(run["level"], run["strategy"], run["seed"]): run for run in figures}
    return {
        level: {
            strategy: [runs[level, strategy, seed] for seed in seeds]
            for strategy in STRATEGIES
            if (level, strategy, seeds[0]) in runs
        }
        for level in {run["level"] for run in figures}
    }


def seconds(figures: Sequence[Figures]) -> float:
    """Return the time of the measurements and of the trainings. The figures of more than one measurement may
    contain the same training, which counts once.
    """
    trained: dict[str, float] = {}
    for run in figures:
        name = Job(run["strategy"], run["level"], run["seed"]).training
        trained |= run["training"].get("parts") or {name: run["training"]["seconds"]}
    total: float = sum(trained.values()) + sum(run["measuring_seconds"] for run in figures)
    return round(total, 1)


def of_level(
    strategies: Mapping[str, Runs], rows: Sequence[str], level: str, untuned: Sequence[General]
) -> dict[str, Any]:
    """Return one level's strategies, their differences from each other (second less first, in points of 100),
    and the recommended one. `untuned` is the untuned base's general ability, for each seed.
    """
    changes = {name: general_change(untuned, generals(runs)) for name, runs in strategies.items()}
    summaries = {
        name: {"title": title(name, level), "general_change": change and change.record()}
        | of_strategy(strategies[name], rows)
        for name, change in changes.items()
    }
    points = {name: matrix(runs, rows) for name, runs in strategies.items()}
    right = {name: perfect_rows(scores) for name, scores in points.items()}
    pairs = list(combinations(strategies, 2))
    differences = {(a, b): difference(points[a], points[b]) for a, b in pairs}
    perfect = {(a, b): difference(right[a], right[b]) for a, b in pairs}
    measured = {
        name: Measured(
            summary["score"],
            summary["disk_bytes"],
            summary["bytes"],
            changes[name],
            part_of_speed(strategies[name]),
        )
        for name, summary in summaries.items()
    }
    return {
        "strategies": summaries,
        "differences": difference_rows(differences),
        "perfect_differences": difference_rows(perfect),
        **asdict(recommend(level, measured, differences, perfect, len(untuned))),
    }


def of_strategy(runs: Runs, rows: Sequence[str]) -> dict[str, Any]:
    """Return one strategy's figures over the seeds: sizes and divergence as means, speeds as
    medians, scores.
    """
    points = matrix(runs, rows)
    right = perfect_rows(points)
    score, score_low, score_high = mean_of(points)
    perfect, perfect_low, perfect_high = mean_of(right)
    speeds = undisturbed(runs)
    bare = [speed["bare"]["median"] for speed in speeds if "bare" in speed]
    return {
        "bytes": round(fmean(sum(run["shipped"].values()) for run in runs)),
        "shipped": runs[0]["shipped"],
        "disk_bytes": round(fmean(sum(run["disk"].values()) for run in runs)),
        "disk": runs[0]["disk"],
        "score": score,
        "score_low": score_low,
        "score_high": score_high,
        "perfect": perfect,
        "perfect_low": perfect_low,
        "perfect_high": perfect_high,
        "general": general_score(generals(runs)),
        "kld": fmean(run["kld"] for run in runs),
        "same_top": fmean(run["same_top"] for run in runs),
        "tok_s": median(speed["shipped"]["median"] for speed in speeds) if speeds else None,
        "tok_s_bare": median(bare) if bare else None,
        "train_seconds": median(run["training"]["seconds"] for run in runs),
        "train_memory": max(run["training"]["peak_memory_bytes"] for run in runs),
        "by_seed": [
            {key: run[key] for key in AS_MEASURED}
            | {
                "score": float(points[place].mean()),
                "perfect": float(right[place].mean()),
                "general": (run.get("general") or {}).get("score"),
            }
            for place, run in enumerate(runs)
        ],
    }


def part_of_speed(runs: Runs) -> float:
    """Return the speed of a strategy's shipped files as a share of that without the adapter: the median over
    seeds, with both timed in turn. It is at most 1. It is 1 without an adapter and if other load spoilt all
    speeds.
    """
    timed = [speed for speed in undisturbed(runs) if "bare" in speed]
    parts: list[float] = [speed["shipped"]["median"] / speed["bare"]["median"] for speed in timed]
    return min(1.0, median(parts)) if parts else 1.0


def undisturbed(runs: Runs) -> list[Mapping[str, Any]]:
    """Return the speeds that were measured while the machine did nothing else."""
    return [run["speed"] for run in runs if not run["speed"].get("disturbed")]


def generals(runs: Runs) -> list[General]:
    """Return one strategy's answers to the general questions; None if they were not asked."""
    return [run.get("general") for run in runs]


def matrix(runs: Runs, rows: Sequence[str]) -> Scores:
    """Return one strategy's scores, (seeds, rows), 0 to 1."""
    return np.array([[run["points"][row] for row in rows] for run in runs], dtype=np.float64)


def perfect_rows(points: Scores) -> Scores:
    """Return 1 for a row with all points, otherwise 0."""
    right: Scores = (points == 1.0).astype(np.float64)
    return right


def difference_rows(differences: Mapping[tuple[str, str], Difference]) -> list[dict[str, Any]]:
    """Return the differences as JSON."""
    return [
        {"first": first, "second": second, **difference.record()}
        for (first, second), difference in differences.items()
    ]
