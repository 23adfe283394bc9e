"""Sum up the strategies to ship, measured on the project's own data with several seeds: merged into 16 bit or
NF4, or an adapter on a level of the base.

Reads `reports/compare/` and writes `reports/strategies.json` (no seeds in it if `compare.seeds` is []). The
trainings and measurements are jobs of their own: `nf4`, `level`, `unquantized`, `measure`, beside this
module. Their scratch, `models/.compare/`, is removed here. Command: `python -m pipeline compare`
"""

from pathlib import Path
from typing import Any

from pipeline.config.params import Params
from pipeline.config.strategies import FOLDER, MERGED_16, STRATEGIES
from pipeline.core.locks import absent, stages_at_work
from pipeline.core.publish import read_json, remove, write_json
from pipeline.stages.compare.measure import MEASURED
from pipeline.stages.compare.projects import TRAINED
from pipeline.stages.compare.summary import summarize

TARGET = Path("reports/strategies.json")


def measured(root: Path, params: Params) -> list[dict[str, Any]]:
    """The figures of each seed, strategy and level. Raises `DataError` that names one that is missing."""
    levels, found = params.compare.levels, []
    for seed in params.compare.seeds:
        jobs = {f"{MERGED_16}-{seed}": f"compare_unquantized@{seed}"}
        jobs |= {
            name: f"compare_measure@{name}"
            for strategy in STRATEGIES
            for level in levels
            for name in [f"{strategy}-{level}-{seed}"]
        }
        for name, job in jobs.items():
            file = root / MEASURED / f"{name}.json"
            if not file.exists():
                raise absent(file, root, job)
            found.append(read_json(file, f"run `python -m pipeline {job}`"))
    return found


def forget_others(root: Path, params: Params) -> None:
    """Remove scratch, and what is left of seeds and levels that are not asked for any more: DVC's cache has
    it.
    """
    seeds, levels = params.compare.seeds, params.compare.levels
    trained = {f"{base}-{seed}" for base in ("nf4", *levels) for seed in seeds}
    named = {
        f"{part}-{seed}.json"
        for part in (MERGED_16, *(f"{strategy}-{level}" for strategy in STRATEGIES for level in levels))
        for seed in seeds
    }
    for folder, kept in ((TRAINED, trained), (MEASURED, named)):
        for path in (root / folder).glob("[!.]*"):
            if path.name not in kept:
                remove(path)
    if not any(stage.startswith("compare_") for stage in stages_at_work(root)):  # one may be run by hand
        remove(root / FOLDER)


def main(params: Params, root: Path) -> None:
    """Run the stage on the files below `root`."""
    settings, evaluate = params.compare, params.evaluate
    figures = measured(root, params)
    forget_others(root, params)
    if not figures:
        write_json(root / TARGET, {"seeds": []})
        print(
            "compare: not measured, for compare.seeds is []: set it to [42, 43, 44], say, to see which "
            "strategy to ship is best on your data"
        )
        return
    found = summarize(
        figures,
        seeds=settings.seeds,
        levels=settings.levels,
        sixteen=params.convert.type,
        scorer=evaluate.scorer,
        seed=evaluate.seed,
    )
    write_json(root / TARGET, found)
    for level in found["levels"].values():
        print(f"compare: {level['sentence']}")
