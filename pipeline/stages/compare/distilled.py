"""Train the scales of a level where they learn the answers of 16 bits: before the task, or instead of it.

    distilled_scales    the base's level learns the answers of the untuned base, then the task
    merged_distilled    the merged model's level learns the merged model's answers

Reads `models/gguf/NAME-base-F16.gguf`, `data/final/`, `data/distill/` and, for the merged model,
`models/base/`, `models/base.json` and `models/compare/nf4-SEED/`. Writes
`models/compare/STRATEGY-LEVEL-SEED/`: what makes the tuned GGUF of the level (`patch.safetensors`), how it
was trained (`run.json`) and the figures of both trainings (`train.json`). Command:
`python -m pipeline compare_distilled@distilled_scales-Q4_0-42`
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.config.params import Params
from pipeline.config.strategies import FOLDER, MERGED_DISTILLED
from pipeline.core.publish import read_json, remove
from pipeline.llamacpp.tools import find_toolchain
from pipeline.stages.compare.made import make_sixteen, quantize_merged
from pipeline.stages.compare.projects import (
    TRAINED,
    base_links,
    level_settings,
    open_project,
    publish_scales,
    quantize_base,
    scale_settings,
    train_scales,
    untuned_gguf,
)
from pipeline.subprojects.distill import ROWS, distilled_gguf

LEARNED_FILE = "learned.gguf"  # in a sub-project: the level that has learned the answers
AGAIN = "run `snakemake`"


def main(params: Params, root: Path, item: str) -> None:
    """Run the job for the strategy, level and seed `item` on the files below `root`."""
    strategy, level, seed = item.split("-")
    job = distill_merged if strategy == MERGED_DISTILLED else distill_then_tune
    job(params, root, item, level, int(seed))


def distill_then_tune(params: Params, root: Path, item: str, level: str, seed: int) -> None:
    """Publish the base's level that learned the untuned base's answers, then the task."""
    apart, learned = distillation_folder(root, item), root.resolve() / FOLDER / item / LEARNED_FILE
    settings = scale_settings(params, level_settings(root, item, seed, LEARNED_FILE))
    project = open_project(root, item, params, settings, {"data/final": root / "data/final"})
    file = quantize_base(root, params, project, level, find_toolchain(params.machine.llama_cpp))
    source = untuned_gguf(root, params)
    distilled_gguf(apart, params, source, level, root / "data", seed=seed).replace(learned)
    tuned = train_scales(project, params)
    task, before = report_in(project), report_in(apart)
    report = both(task, before, {f"{item}, distillation": before, item: task})
    publish_scales(file, tuned, project / "models/adapter", report, root / TRAINED / item)
    remove(project)
    remove(apart)


def distill_merged(params: Params, root: Path, item: str, level: str, seed: int) -> None:
    """Publish the merged model's level that learned the merged model's answers."""
    apart, trained = distillation_folder(root, item), root / TRAINED / f"nf4-{seed}"
    links = base_links(root) | {"models/adapter": trained / "adapter"}
    project, tools = open_project(root, item, params, {}, links), find_toolchain(params.machine.llama_cpp)
    sixteen = make_sixteen(params, root, project).gguf
    tuned = distilled_gguf(apart, params, sixteen, level, root / "data", seed=seed)
    file = quantize_merged(params, project, sixteen, level, tools)
    task, after = read_json(trained / "train.json", AGAIN), report_in(apart)
    report = both(task, after, {trained.name: task, item: after})
    publish_scales(file, tuned, apart / "models/adapter", report, root / TRAINED / item)
    remove(project)
    remove(apart)


def distillation_folder(root: Path, item: str) -> Path:
    """The sub-project in which the job for `item` distills."""
    return root.resolve() / FOLDER / f"{item}-distillation"


def report_in(project: Path) -> dict[str, Any]:
    """The training's report in a sub-project, with what a distillation learned from."""
    found: dict[str, Any] = read_json(project / "reports/train.json", AGAIN)
    rows = project / ROWS
    return found | ({"rows": read_json(rows, AGAIN)} if rows.exists() else {})


def both(
    task: Mapping[str, Any], distillation: Mapping[str, Any], parts: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """The report of two trainings as one: their time together, the larger peak of memory (bytes), all else
    the task's; `parts` are the trainings by name.
    """
    peak = max(one["peak_memory_bytes"] for one in (task, distillation))
    seconds = {name: one["seconds"] for name, one in parts.items()}
    return {
        **task,
        "seconds": round(sum(seconds.values()), 1),
        "peak_memory_bytes": peak,
        "distillation": dict(distillation),
        "parts": seconds,
    }
