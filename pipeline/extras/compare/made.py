"""The model that is measured, made in a sub-project from the training result, as the stages make it."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pipeline.config.params import Params
from pipeline.config.strategies import STRATEGIES, Job
from pipeline.core.errors import DataError
from pipeline.core.hashing import file_hash, json_hash
from pipeline.core.publish import read_json, remove
from pipeline.extras.compare.projects import (
    LEVEL_FILE,
    PATCH,
    TRAINED,
    base_level,
    base_links,
    open_level,
    open_project,
    quantize,
    untuned_gguf,
)
from pipeline.gguf.base_files import MODEL_FILE
from pipeline.gguf.patch import apply_patch, read_patch
from pipeline.gguf.provenance import adapter_fields
from pipeline.llamacpp.converters import base_fields, lora_to_gguf
from pipeline.llamacpp.tools import find_toolchain
from pipeline.subprojects.processes import run_stage, size_of

TUNED_FILE = "tuned.gguf"  # file in a sub-project: a level with trained scales


class Made(NamedTuple):
    """Files to ship, the sub-project that made them, and the bytes that they needed on the disk at once, by
    name.
    """

    project: Path
    gguf: Path
    lora: Path | None
    disk: dict[str, int]


def make_merged(params: Params, root: Path, job: Job, name: str = "") -> Made:
    """Merge, convert to 16 bit and quantize as the stages do, in the sub-project `name` (by default the job's
    own). Files that the next step doesn't need are removed.
    """
    sixteen = make_sixteen(params, root, job, name or job.name)
    if job.level == params.convert.type:
        return sixteen
    target = sixteen.gguf.with_name(f"{params.convert.name}-{job.level}.gguf")
    gguf = quantize(params, sixteen.gguf, target, job.level)
    remove(sixteen.gguf)
    return Made(sixteen.project, gguf, None, sixteen.disk | {"GGUF": size_of(gguf)})


def make_sixteen(params: Params, root: Path, job: Job, name: str) -> Made:
    """Make the merged model as a GGUF in 16 bits, in the sub-project `name`."""
    project = open_on_nf4(params, root, job, name)
    kind = params.convert.type
    folder = project / "models/gguf"
    stem = params.convert.name
    run_stage(project, "merge")
    run_stage(project, "convert")
    sixteen = folder / f"{stem}-{kind}.gguf"
    merged = project / "models/merged"
    disk = {
        "base": size_of(root / "models/base"),
        "merged model": size_of(merged),
        f"{kind} GGUF": size_of(sixteen),
    }
    remove(merged)
    remove(folder / untuned_gguf(root, params).name)
    return Made(project, sixteen, None, disk)


def make_adapted(params: Params, root: Path, job: Job) -> Made:
    """Make the base's level, and the adapter that was trained on NF4 as a GGUF, as stage convert makes it."""
    project = open_on_nf4(params, root, job, job.name)
    tools = find_toolchain(params.machine.llama_cpp)
    gguf = base_level(params, root, project, job.level)
    base = project / "models/base"
    adapter = project / "models/adapter"
    lora = lora_file(params, project)
    fields = {
        **base_fields(project / "models/base.json", tools),
        **adapter_fields(adapter),
        "general.name": lora.stem,
    }
    lora_to_gguf(tools, adapter, base, lora, params.convert.type, fields)
    disk = {"base": size_of(base), "GGUF": size_of(gguf), "LoRA GGUF": size_of(lora)}
    return Made(project, gguf, lora, disk)


def make_on_level(params: Params, root: Path, job: Job) -> Made:
    """Make the base's level, and the adapter that was trained on it as a GGUF.

    Raises `DataError` if the level is no longer the file that was trained on.
    """
    adapter = root / TRAINED / job.training / "adapter"
    project = open_level(params, root, job, {"models/adapter": adapter})
    gguf = base_level(params, root, project, job.level)
    lora = lora_file(params, project)
    weights = read_json(adapter / "run.json", "run `snakemake`")["base"]["weights_sha256"]
    if weights != json_hash({MODEL_FILE: file_hash(gguf)}):
        raise another_file(job)
    run_stage(project, "base")
    run_stage(project, "lora")
    return Made(project, gguf, lora, {"GGUF": size_of(gguf), "LoRA GGUF": size_of(lora)})


def make_scaled(params: Params, root: Path, job: Job) -> Made:
    """Make the base's level with scales that learned the task, or the base's answers and then the task.
    Raises `DataError` as `with_scales` does.
    """
    project = open_tuned(params, root, job)
    gguf = base_level(params, root, project, job.level)
    disk = {"GGUF": size_of(gguf)}
    if STRATEGIES[job.strategy].taught_by:
        disk["distilled GGUF"] = size_of(gguf)
        original = untuned_gguf(root, params)  # its answers are learned
        disk[f"{params.convert.type} GGUF"] = size_of(original)
    return with_scales(job, Made(project, gguf, None, disk))


def make_merged_scaled(params: Params, root: Path, job: Job) -> Made:
    """Make the merged model's level with scales that learned its answers. Raises `DataError` as `with_scales`
    does.
    """
    project = open_tuned(params, root, job)
    merged = make_merged(params, root, job, f"{job.name}-merged")
    level = merged.gguf.replace(project / LEVEL_FILE)
    remove(merged.project)
    return with_scales(job, Made(project, level, None, merged.disk))


Make = Callable[[Params, Path, Job], Made]


def maker_of(job: Job) -> Make:
    """Return the function that makes the model of the job's strategy."""
    strategy = STRATEGIES[job.strategy]
    if strategy.on_nf4:
        return make_adapted if strategy.beside else make_merged
    if strategy.beside:
        return make_on_level
    return make_merged_scaled if strategy.taught_by == "merged" else make_scaled


def open_on_nf4(params: Params, root: Path, job: Job, name: str) -> Path:
    """Return the sub-project `name` with the base and the adapter that was trained on NF4 with the job's
    seed.
    """
    settings = {"merge": {"base": STRATEGIES[job.strategy].merge_base}}
    links = base_links(root) | {"models/adapter": root / TRAINED / job.on_nf4 / "adapter"}
    return open_project(root, name, params, settings, links)


def open_tuned(params: Params, root: Path, job: Job) -> Path:
    """Return the job's sub-project, whose base is the level with the trained scales."""
    return open_level(params, root, job, {"models/adapter": root / TRAINED / job.training}, file=TUNED_FILE)


def with_scales(job: Job, level: Made) -> Made:
    """Apply the patch that was trained to the level, and make the result the base of its sub-project.

    Raises `DataError` if the level is no longer the file that was trained.
    """
    patch = level.project / "models/adapter" / PATCH
    tuned = level.project / TUNED_FILE
    if read_patch(patch)["base_sha256"] != file_hash(level.gguf):
        raise another_file(job)
    apply_patch(level.gguf, patch, tuned)
    remove(level.gguf)
    run_stage(level.project, "base")
    return Made(level.project, tuned, None, level.disk | {"tuned GGUF": size_of(tuned)})


def another_file(job: Job) -> DataError:
    """Return the error for a level that was made again and differs from the file that the job trained on."""
    return DataError(
        "Q-COMPARE-008",
        f"{job.level}, made again, is another file than {job.name} was trained on, as another build of "
        f"llama.cpp may make it: run `python -m pipeline compare_train@{job.name}`, which trains on this one",
    )


def lora_file(params: Params, project: Path) -> Path:
    """Return the path of the adapter's GGUF in a sub-project."""
    return project / f"models/gguf/{params.convert.name}-lora.gguf"
