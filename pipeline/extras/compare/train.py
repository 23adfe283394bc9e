"""Train the files that one strategy ships at one level of `compare.levels` with one seed of `compare.seeds`.
Nothing is trained if it ships what stage compare_nf4 trained.

Reads `models/gguf/NAME-base-F16.gguf`, from which levels are made, `data/final/`, `data/distill/` and, for
the merged model, `models/base/`, `models/base.json` and `models/compare/nf4-SEED/`. Writes
`models/compare/STRATEGY-LEVEL-SEED/` (`pipeline.extras.compare.projects` shows its contents).
Command: `python -m pipeline compare_train@lora_level-Q4_K_M-42`
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.config.params import Params
from pipeline.config.strategies import STRATEGIES, Job
from pipeline.core.publish import publishing, read_json, remove, write_json
from pipeline.extras.compare.made import make_sixteen
from pipeline.extras.compare.projects import (
    LEVEL_FILE,
    TRAINED,
    base_level,
    open_level,
    publish_scales,
    quantize,
    train,
    train_scales,
    untuned_gguf,
)
from pipeline.subprojects.distill import ROWS, distilled_gguf
from pipeline.subprojects.processes import run_stage

LEARNED_FILE = "learned.gguf"  # file in a sub-project: the level that has learned the answers
AGAIN = "run `snakemake`"


def main(params: Params, root: Path, item: str) -> None:
    """Run the job for the strategy, level and seed `item` on the files below `root`."""
    job = Job.of(item)
    strategy = STRATEGIES[job.strategy]
    if strategy.on_nf4:
        name_training(root, job)
    elif strategy.beside:
        train_adapter(params, root, job)
    elif strategy.taught_by == "merged":
        distill_merged(params, root, job)
    elif strategy.taught_by:
        distill_then_tune(params, root, job)
    else:
        tune_scales(params, root, job)


def name_training(root: Path, job: Job) -> None:
    """Publish the name of the training on NF4 that the strategy uses. Each job has a folder of its own."""
    with publishing(root / TRAINED / job.name) as aside:
        aside.mkdir()
        write_json(aside / "training.json", {"training": job.training})


def train_adapter(params: Params, root: Path, job: Job) -> None:
    """Publish an adapter that was trained on the level."""
    project = open_level(params, root, job, on_rows(root))
    level = base_level(params, root, project, job.level)
    run_stage(project, "base")
    remove(level)
    run_stage(project, "preprocess")
    train(project, root / TRAINED / job.name)


def tune_scales(params: Params, root: Path, job: Job) -> None:
    """Publish the level's scales that learned the task."""
    project = open_level(params, root, job, on_rows(root), scales=True)
    level = base_level(params, root, project, job.level)
    tuned = train_scales(project, params)
    publish_scales(level, tuned, project / "models/adapter", report_in(project), root / TRAINED / job.name)
    remove(project)


def distill_then_tune(params: Params, root: Path, job: Job) -> None:
    """Publish the base's level that learned the untuned base's answers, then the task."""
    project = open_level(params, root, job, on_rows(root), file=LEARNED_FILE, scales=True)
    level = base_level(params, root, project, job.level)
    distilling = distillation_of(project)
    learned = distilled_gguf(
        distilling, params, untuned_gguf(root, params), job.level, root / "data", seed=job.seed
    )
    learned.replace(project / LEARNED_FILE)
    tuned = train_scales(project, params)
    task, before = report_in(project), report_in(distilling)
    report = both(task, before, {f"{job.name}, distillation": before, job.name: task})
    publish_scales(level, tuned, project / "models/adapter", report, root / TRAINED / job.name)
    remove(project)
    remove(distilling)


def distill_merged(params: Params, root: Path, job: Job) -> None:
    """Publish the merged model's level that learned the merged model's answers."""
    merged = make_sixteen(params, root, job, job.name)
    distilling = distillation_of(merged.project)
    tuned = distilled_gguf(distilling, params, merged.gguf, job.level, root / "data", seed=job.seed)
    level = quantize(params, merged.gguf, merged.project / LEVEL_FILE, job.level)
    task = read_json(root / TRAINED / job.on_nf4 / "train.json", AGAIN)
    after = report_in(distilling)
    report = both(task, after, {job.on_nf4: task, job.name: after})
    publish_scales(level, tuned, distilling / "models/adapter", report, root / TRAINED / job.name)
    remove(merged.project)
    remove(distilling)


def on_rows(root: Path) -> dict[str, Path]:
    """Return links to the project's rows, for a sub-project that trains on them."""
    folders = ("data/final", "data/augmented")
    return {folder: root / folder for folder in folders if (root / folder).is_dir()}


def distillation_of(project: Path) -> Path:
    """Return the sub-project in which the job of the sub-project `project` distills."""
    return project.with_name(f"{project.name}-distillation")


def report_in(project: Path) -> dict[str, Any]:
    """Return the training's report in a sub-project, with the rows that a distillation learned from."""
    report: dict[str, Any] = read_json(project / "reports/train.json", AGAIN)
    rows = project / ROWS
    if rows.exists():
        report["rows"] = read_json(rows, AGAIN)
    return report


def both(
    task: Mapping[str, Any], distillation: Mapping[str, Any], parts: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the reports of two trainings as one: their time together, the larger peak of memory (bytes),
    everything else from the task's. `parts` are the trainings by name.
    """
    peak = max(report["peak_memory_bytes"] for report in (task, distillation))
    seconds = {name: report["seconds"] for name, report in parts.items()}
    return {
        **task,
        "seconds": round(sum(seconds.values()), 1),
        "peak_memory_bytes": peak,
        "distillation": dict(distillation),
        "parts": seconds,
    }
