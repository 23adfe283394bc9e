"""Summarize the strategies to ship, measured on the project's own data with more than one seed: merged into
16 bit or NF4, an adapter on a level of the base, or a level with trained scales.

Reads `reports/compare/` and writes `reports/strategies.json`. The trainings and measurements are separate
jobs in the modules next to this one: `nf4`, `train`, `unquantized` and `measure`.
Command: `python -m pipeline compare`
"""

from pathlib import Path
from typing import Any

from pipeline.config.params import Params
from pipeline.config.strategies import MERGED_16, Job
from pipeline.core.locks import absent
from pipeline.core.publish import read_json, write_json
from pipeline.extras.compare.measure import MEASURED
from pipeline.extras.compare.summary import summarize

TARGET = Path("reports/strategies.json")


def measured(root: Path, params: Params) -> list[dict[str, Any]]:
    """Return the figures of each seed, strategy and level. Raises `DataError` that names a missing one."""
    jobs: dict[str, str] = {}
    for seed in params.compare.seeds:
        jobs[f"{MERGED_16}-{seed}"] = f"compare_unquantized@{seed}"
        for strategy in params.compare.strategies:
            for level in params.compare.levels:
                name = Job(strategy, level, seed).name
                jobs[name] = f"compare_measure@{name}"
    files = {root / MEASURED / f"{name}.json": job for name, job in jobs.items()}
    for file, job in files.items():
        if not file.exists():
            raise absent(file, root, job)
    return [read_json(file, f"run `python -m pipeline {job}`") for file, job in files.items()]


def main(params: Params, root: Path) -> None:
    """Run the stage on the files below `root`."""
    settings = params.compare
    evaluate = params.evaluating
    summary = summarize(
        measured(root, params),
        seeds=settings.seeds,
        levels=settings.levels,
        sixteen=params.convert.type,
        scorer=evaluate.scorer,
    )
    write_json(root / TARGET, summary)
    for level in summary["levels"].values():
        print(f"compare: {level['sentence']}")
