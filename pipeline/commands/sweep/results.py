"""What a sweep found, as `reports/sweep/NAME.json` has it."""

import math
import shlex
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pipeline.commands.sweep.space import Space
from pipeline.commands.sweep.study import SWEEPS
from pipeline.commands.sweep.training import LOG
from pipeline.commands.sweep.verdict import decide
from pipeline.config.text import as_yaml
from pipeline.core.wording import listed

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

Trials = Mapping[str, "FrozenTrial"]


def collect(name: str, space: Space, search: Trials, seeds: Trials) -> dict[str, Any]:
    """The report of a sweep, finished or not."""
    searched = all_done(search, space)
    best = finalists(search, space) if searched else []
    repeated = {number: values_of(seeds, number) for number in best}
    failed = {number: failures_of(seeds, number) for number in best}
    ended = searched and all(len(repeated[number] | failed[number]) >= space.seeds for number in best)
    whole = {number: repeated[number] for number in best if not failed[number]}
    verdict, sentence = None, "No winner yet: trials or trainings with other seeds are missing."
    if ended and whole:
        left_out = f"Left out: {named(failed, name)}." if any(failed.values()) else ""
        verdict = decide(whole, maximize=space.maximize, metric=space.metric, left_out=left_out)
        sentence = verdict["sentence"]
    elif ended:
        sentence = f"No winner: {no_finalist(failed, name) if best else no_trial(search, name)}."
    report: dict[str, Any] = {
        "name": name,
        "space": space.model_dump(mode="json"),
        "maximize": space.maximize,
        "trials": [described(trial, space) for trial in search.values()],
        "finalists": [
            {
                "trial": number,
                "values": {str(seed): value for seed, value in repeated[number].items()},
                "failed": {str(seed): reason for seed, reason in failed[number].items()},
            }
            for number in best
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
    """A trial as JSON."""
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
    """7 of "trial-7"."""
    return int(job.rpartition("-")[2])


def all_done(search: Trials, space: Space) -> bool:
    """Whether every trial has ended."""
    jobs = (f"trial-{number}" for number in range(space.trials))
    return all(job in search and search[job].state.is_finished() for job in jobs)


def finalists(search: Trials, space: Space) -> list[int]:
    """The best trials of different settings, the best first."""
    ended = [
        (trial.value, number_of(job), trial.params)
        for job, trial in search.items()
        if trial.state.name == "COMPLETE" and trial.value is not None
    ]
    ended.sort(key=lambda one: (-one[0] if space.maximize else one[0], one[1]))
    found: dict[str, int] = {}
    for _, number, params in ended:
        found.setdefault(repr(sorted(params.items())), number)
    return list(found.values())[: space.finalists]


def values_of(seeds: Trials, number: int) -> dict[int, float]:
    """{seed: value} of a finalist's trainings that reached their end."""
    found = {
        trial.user_attrs["seed"]: trial.value
        for trial in seeds.values()
        if trial.user_attrs["of"] == number and trial.state.name == "COMPLETE" and trial.value is not None
    }
    return dict(sorted(found.items()))


def failures_of(seeds: Trials, number: int) -> dict[int, str]:
    """{seed: reason} of a finalist's trainings that ended before their end: they diverged, say."""
    found = {
        trial.user_attrs["seed"]: trial.user_attrs.get("reason", "")
        for trial in seeds.values()
        if trial.user_attrs["of"] == number and trial.state.is_finished() and trial.state.name != "COMPLETE"
    }
    return dict(sorted(found.items()))


def named(failed: Mapping[int, Mapping[int, str]], name: str) -> str:
    """Which finalists have a training that failed, with the log of the first such one."""
    return ", ".join(
        f"trial {number} (seed {seed} failed, see {SWEEPS / name / f'seed-{number}-{seed}' / LOG})"
        for number, seeds in failed.items()
        for seed in list(seeds)[:1]
    )


def no_finalist(failed: Mapping[int, Mapping[int, str]], name: str) -> str:
    """That every finalist has a training that failed."""
    return f"each finalist has a training that failed: {named(failed, name)}"


def no_trial(search: Trials, name: str) -> str:
    """That no trial reached its end, with the log of the first."""
    states = Counter(trial.state.name.lower() for trial in search.values())
    counts = listed([f"{count} {state}" for state, count in sorted(states.items())])
    return f"no trial reached its end ({counts}; the first one's log is {SWEEPS / name / 'trial-0' / LOG})"


def apply(settings: Mapping[str, Any]) -> str:
    """The command that trains with these settings, which it writes into `params.yaml`."""
    words = (shlex.quote(f"{key}={as_yaml(value)}") for key, value in settings.items())
    return f"quench run train {' '.join(words)}"
