"""Which finalist is best? By the mean over seeds that the search has not seen: a finalist was chosen for a
low value with the search's own seed, which luck is part of.

Every finalist is trained with the same seeds, so they are compared pairwise by seed (Student's t; p-values
raised by Holm's method, for all pairs). Seeds are the only chance in these intervals: all are measured on the
same held-out rows, and other rows may rank them otherwise.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean
from typing import Any

import numpy as np

from pipeline.config.strategies import CHANCE
from pipeline.core.wording import listed, plural
from pipeline.metrics.paired import holm
from pipeline.pages.formats import number
from pipeline.stages.compare.statistics import half_width

Values = Mapping[int, Mapping[int, float]]  # {finalist: {seed: value}}


def decide(values: Values, *, maximize: bool, metric: str, left_out: str = "") -> dict[str, Any]:
    """The winner by its mean, what can't be told from it, and a sentence. `values` has two seeds at least,
    the same for all; `left_out` says in a sentence which finalists are missing there, and why.
    """
    seeds = sorted(set.intersection(*(set(one) for one in values.values())))
    table = {trial: [one[seed] for seed in seeds] for trial, one in values.items()}
    means = {trial: mean_of(found) for trial, found in table.items()}
    winner = (max if maximize else min)(means, key=lambda trial: means[trial]["mean"])
    others = [trial for trial in table if trial != winner]
    tests = {trial: compared(table[winner], table[trial]) for trial in others}
    # raised by all pairs: which of them the winner is in, the same values have chosen
    pairs = list(combinations(table, 2))
    raised = holm([compared(table[one], table[two])["p_value"] for one, two in pairs])
    for pair, p_value in zip(pairs, raised, strict=True):
        if winner in pair:
            tests[sum(pair) - winner]["p_value"] = p_value
    alike = [trial for trial in others if not tests[trial]["p_value"] < CHANCE]
    return {
        "winner": winner,
        "seeds": seeds,
        "means": {str(trial): one for trial, one in means.items()},
        "differences": {str(trial): one for trial, one in tests.items()},
        "alike": alike,
        "sentence": f"{sentence(winner, means[winner], others, alike, seeds, metric)} {left_out}".rstrip(),
    }


def mean_of(found: Sequence[float]) -> dict[str, float]:
    """The mean over seeds with its 95 % interval."""
    mean, half = fmean(found), half_width(np.array(found)[:, None])
    return {"mean": mean, "low": mean - half, "high": mean + half}


def compared(first: Sequence[float], second: Sequence[float]) -> dict[str, float]:
    """`second` less `first`, seed by seed: mean with its 95 % interval, and the two-sided p of no
    difference.
    """
    from scipy.stats import ttest_1samp

    differences = np.array(second) - np.array(first)
    found = mean_of(differences.tolist())
    if np.allclose(differences, differences[0], rtol=1e-9, atol=0):  # no spread to compare with
        return found | {"p_value": 0.0 if differences.any() else 1.0}
    return found | {"p_value": float(ttest_1samp(differences, 0.0).pvalue)}


def sentence(
    winner: int, mean: Mapping[str, float], others: list[int], alike: list[int], seeds: list[int], metric: str
) -> str:
    """The verdict in words."""
    value = (
        f"{metric} {number(mean['mean'], 4)} (95 %: {number(mean['low'], 4)} to {number(mean['high'], 4)})"
    )
    trained = f"over {plural(len(seeds), 'seed')} that the search did not use"
    if not others:
        return f"Trial {winner} has no other to be compared with: {value} {trained}."
    if alike:
        names = listed([f"trial {trial}" for trial in alike])
        return (
            f"Trial {winner} has the best mean, {value} {trained}, but it is not distinguishable from "
            f"{names}: which of them is better is not known."
        )
    return f"Trial {winner} is the best: {value} {trained}, distinguishable from every other finalist."
