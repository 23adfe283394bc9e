"""Collect a sweep's results for `reports/sweep/NAME.json` and decide which finalist is best, by the mean over
seeds that the search has not used. A finalist was chosen for a low value with the search's own seed, and luck
is part of that value.

Every finalist is trained with the same seeds, so they are compared pairwise by seed (Student's t; p-values
corrected by Holm's method over all pairs). Seeds are the only source of chance in these intervals: all are
measured on the same held-out rows, and other rows may rank them differently.
"""

import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.config.params_text import as_yaml
from pipeline.core.text import listed, plural
from pipeline.extras.sweep.space import Space
from pipeline.extras.sweep.study import LOG, SWEEPS
from pipeline.metrics.statistics import CHANCE, half_width, holm
from pipeline.pages.formats import number

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

Trials = Mapping[str, "FrozenTrial"]
Values = Mapping[int, Mapping[int, float]]  # {finalist: {seed: value}}


def collect(name: str, space: Space, search: Trials, seeds: Trials) -> dict[str, Any]:
    """Return the report of a sweep, finished or not."""
    searched = all_done(search, space)
    best = finalists(search, space) if searched else []
    trained = {number: trainings(seeds, number) for number in best}
    enough_seeds = (len(values | failed) >= space.seeds for values, failed in trained.values())
    ended = searched and all(enough_seeds)
    complete = {number: values for number, (values, failed) in trained.items() if not failed}
    failures = ", ".join(
        f"trial {number} (seed {seed} failed, see {SWEEPS / name / f'seed-{number}-{seed}' / LOG})"
        for number, (_, failed) in trained.items()
        for seed in list(failed)[:1]
    )
    verdict: dict[str, Any] | None = None
    sentence = "No winner yet: trials or trainings with other seeds are missing."
    if ended and complete:
        left_out = f"Left out: {failures}." if failures else ""
        verdict = decide(complete, maximize=space.maximize, metric=space.metric, left_out=left_out)
        sentence = verdict["sentence"]
    elif ended:
        why = f"each finalist has a training that failed: {failures}" if best else no_trial(search, name)
        sentence = f"No winner: {why}."
    report: dict[str, Any] = {
        "name": name,
        "space": space.model_dump(mode="json"),
        "maximize": space.maximize,
        "trials": [described(trial, space) for trial in search.values()],
        "finalists": [
            {
                "trial": number,
                "values": {str(seed): value for seed, value in values.items()},
                "failed": {str(seed): reason for seed, reason in failed.items()},
            }
            for number, (values, failed) in trained.items()
        ],
        "ended": ended,
        "verdict": verdict,
        "sentence": sentence,
    }
    if verdict:
        won = space.decoded(search[f"trial-{verdict['winner']}"].params)
        report["apply"] = apply(won)
    return report


def described(trial: "FrozenTrial", space: Space) -> dict[str, Any]:
    """Return a trial as JSON."""
    about = trial.user_attrs
    return {
        "trial": number_of(about["job"]),
        "state": trial.state.name.lower(),
        "value": trial.value if trial.value is not None and math.isfinite(trial.value) else None,
        "settings": space.decoded(trial.params),
        "steps": about.get("steps"),
        "seconds": about.get("seconds"),
        "reason": about.get("reason", ""),
        "evaluations": {
            str(step): value for step, value in trial.intermediate_values.items() if math.isfinite(value)
        },
        "ended": trial.datetime_complete.isoformat() if trial.datetime_complete else None,
    }


def number_of(job: str) -> int:
    """Return the number of a job: 7 for "trial-7"."""
    return int(job.rpartition("-")[2])


def all_done(search: Trials, space: Space) -> bool:
    """Return True if every trial has finished."""
    jobs = (f"trial-{number}" for number in range(space.trials))
    return all(job in search and search[job].state.is_finished() for job in jobs)


def finalists(search: Trials, space: Space) -> list[int]:
    """Return the numbers of the best trials with different settings, the best first."""
    sign = -1 if space.maximize else 1
    ended = [
        (sign * trial.value, number_of(job), repr(sorted(trial.params.items())))
        for job, trial in search.items()
        if trial.state.name == "COMPLETE" and trial.value is not None
    ]
    numbers: dict[str, int] = {}  # best trial of each combination of settings
    for _, best, settings in sorted(ended):
        numbers.setdefault(settings, best)
    return list(numbers.values())[: space.finalists]


def trainings(seeds: Trials, number: int) -> tuple[dict[int, float], dict[int, str]]:
    """Return a finalist's finished trainings: {seed: value} of the complete ones, and {seed: reason} of the
    others, for example those that diverged.
    """
    values: dict[int, float] = {}
    failed: dict[int, str] = {}
    of_finalist = [trial for trial in seeds.values() if trial.user_attrs["of"] == number]
    for trial in sorted(of_finalist, key=lambda trial: trial.user_attrs["seed"]):
        seed = trial.user_attrs["seed"]
        if trial.state.name != "COMPLETE" and trial.state.is_finished():
            failed[seed] = trial.user_attrs.get("reason", "")
        elif trial.state.name == "COMPLETE" and trial.value is not None:
            values[seed] = trial.value
    return values, failed


def no_trial(search: Trials, name: str) -> str:
    """Return the reason that there is no winner: no trial was completed. It names the log of the first."""
    states = Counter(trial.state.name.lower() for trial in search.values())
    counts = listed([f"{count} {state}" for state, count in sorted(states.items())])
    return f"no trial reached its end ({counts}; the first one's log is {SWEEPS / name / 'trial-0' / LOG})"


def apply(settings: Mapping[str, Any]) -> str:
    """Return the command that trains with these settings. It writes them into `params.yaml`."""
    words = (shlex.quote(f"{key}={as_yaml(value)}") for key, value in settings.items())
    return f"quench run train {' '.join(words)}"


def decide(values: Values, *, maximize: bool, metric: str, left_out: str = "") -> dict[str, Any]:
    """Find the winner by its mean and the finalists within its noise, and describe them in a sentence.
    `values` contains at least two seeds, the same for all. `left_out` is a sentence that lists the missing
    finalists with the reason.
    """
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in values.values())))
    table = {trial: [by_seed[seed] for seed in seeds] for trial, by_seed in values.items()}
    means = {trial: mean_of(scores) for trial, scores in table.items()}
    winner = (max if maximize else min)(means, key=lambda trial: means[trial]["mean"])
    others = [trial for trial in table if trial != winner]
    tests = {trial: compared(table[winner], table[trial]) for trial in others}
    # The p-values are corrected for all pairs: the same values have chosen which of them contain the winner.
    pairs = list(combinations(table, 2))
    raised = holm([compared(table[first], table[second])["p_value"] for first, second in pairs])
    for pair, p_value in zip(pairs, raised, strict=True):
        if winner in pair:
            tests[sum(pair) - winner]["p_value"] = p_value
    alike = [trial for trial in others if not tests[trial]["p_value"] < CHANCE]
    return {
        "winner": winner,
        "seeds": seeds,
        "means": {str(trial): mean for trial, mean in means.items()},
        "differences": {str(trial): test for trial, test in tests.items()},
        "alike": alike,
        "sentence": f"{sentence(winner, means[winner], others, alike, seeds, metric)} {left_out}".rstrip(),
    }


def mean_of(values: Sequence[float]) -> dict[str, float]:
    """Return the mean over seeds with its 95 % interval."""
    mean = fmean(values)
    half = half_width(np.array(values)[:, None])
    return {"mean": mean, "low": mean - half, "high": mean + half}


def compared(first: Sequence[float], second: Sequence[float]) -> dict[str, float]:
    """Compare `second` less `first` by seed: mean with 95 % interval, two-sided p of no difference."""
    from scipy.stats import ttest_1samp

    differences = np.array(second) - np.array(first)
    difference = mean_of(differences.tolist())
    if np.allclose(differences, differences[0], rtol=1e-9, atol=0):  # There is no spread to compare with.
        return difference | {"p_value": 0.0 if differences.any() else 1.0}
    return difference | {"p_value": float(ttest_1samp(differences, 0.0).pvalue)}


def sentence(
    winner: int, mean: Mapping[str, float], others: list[int], alike: list[int], seeds: list[int], metric: str
) -> str:
    """Return the verdict as a sentence."""
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
