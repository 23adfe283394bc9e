"""The model that is measured: made of what was trained, in a sub-project, as the stages make it."""

from pathlib import Path
from typing import NamedTuple

from pipeline.config.params import Params
from pipeline.core.errors import DataError
from pipeline.core.hashing import file_hash, json_hash
from pipeline.core.publish import read_json, remove
from pipeline.gguf.base_files import MODEL_FILE
from pipeline.gguf.patch import apply_patch, read_patch
from pipeline.gguf.provenance import adapter_fields
from pipeline.llamacpp.converters import Quantizing, base_fields, lora_to_gguf, quantize_gguf
from pipeline.llamacpp.tools import Llama, Toolchain
from pipeline.stages.compare.projects import (
    LEVEL_FILE,
    PATCH,
    TRAINED,
    base_links,
    open_project,
    quantize_base,
    untuned_gguf,
)
from pipeline.subprojects.processes import run_stage, size_of

TUNED_FILE = "tuned.gguf"  # in a sub-project: a level with trained scales


class Made(NamedTuple):
    """What is shipped, and the bytes that had to lie on disk at once to make it, by name."""

    gguf: Path
    lora: Path | None
    disk: dict[str, int]


def make_merged(params: Params, root: Path, project: Path, level: str, tools: Toolchain) -> Made:
    """Merge, convert to 16 bit and quantize as the stages do; what the next step doesn't need is removed."""
    sixteen = make_sixteen(params, root, project)
    if level == params.convert.type:
        return sixteen
    made = quantize_merged(params, project, sixteen.gguf, level, tools)
    remove(sixteen.gguf)
    return Made(made, None, sixteen.disk | {"GGUF": size_of(made)})


def make_sixteen(params: Params, root: Path, project: Path) -> Made:
    """The merged model as a GGUF in 16 bits."""
    kind, folder, stem = params.convert.type, project / "models/gguf", params.convert.name
    run_stage(project, "merge")
    run_stage(project, "convert")
    sixteen, merged = folder / f"{stem}-{kind}.gguf", project / "models/merged"
    disk = {
        "base": size_of(root / "models/base"),
        "merged model": size_of(merged),
        f"{kind} GGUF": size_of(sixteen),
    }
    remove(merged)
    remove(folder / untuned_gguf(root, params).name)
    return Made(sixteen, None, disk)


def quantize_merged(params: Params, project: Path, sixteen: Path, level: str, tools: Toolchain) -> Path:
    """Write the merged model in `sixteen` at `level` into `project`; the file."""
    made = project / f"models/gguf/{params.convert.name}-{level}.gguf"
    options = Quantizing(tensor_types=params.quantize.tensor_types)
    quantize_gguf(Llama(tools, params.machine.threads), sixteen, made, level, options)
    return made


def make_adapted(params: Params, root: Path, project: Path, level: str, tools: Toolchain) -> Made:
    """The base's level, and the adapter that was trained on NF4 as a GGUF, as stage convert makes it."""
    gguf = quantize_base(root, params, project, level, tools)
    base, adapter, lora = project / "models/base", project / "models/adapter", lora_file(params, project)
    fields = {
        **base_fields(project / "models/base.json", tools),
        **adapter_fields(adapter),
        "general.name": lora.stem,
    }
    lora_to_gguf(tools, adapter, base, lora, params.convert.type, fields)
    return Made(gguf, lora, {"base": size_of(base), "GGUF": size_of(gguf), "LoRA GGUF": size_of(lora)})


def make_on_level(params: Params, root: Path, project: Path, level: str, tools: Toolchain) -> Made:
    """The base's level, and the adapter that was trained on it as a GGUF.

    Raises `DataError` if the level is no longer the file that was trained on.
    """
    gguf = quantize_base(root, params, project, level, tools)
    lora, trained = lora_file(params, project), (project / "models/adapter").resolve()
    weights = read_json(trained / "run.json", "run `snakemake`")["base"]["weights_sha256"]
    if weights != json_hash({MODEL_FILE: file_hash(gguf)}):
        raise another_file(level, f"compare_level@{trained.parent.name}")
    run_stage(project, "base")
    run_stage(project, "lora")
    return Made(gguf, lora, {"GGUF": size_of(gguf), "LoRA GGUF": size_of(lora)})


def make_scaled(params: Params, root: Path, project: Path, level: str, tools: Toolchain) -> Made:
    """The base's level with the scales that were trained. Raises `DataError` as `with_scales` does."""
    gguf = quantize_base(root, params, project, level, tools)
    return with_scales(project, gguf, level, "compare_scales", {"GGUF": size_of(gguf)})


def make_distilled(params: Params, root: Path, project: Path, level: str, tools: Toolchain) -> Made:
    """The base's level with scales that learned its answers, then the task. Raises as `with_scales` does."""
    gguf = quantize_base(root, params, project, level, tools)
    disk = {
        f"{params.convert.type} GGUF": size_of(untuned_gguf(root, params)),  # it is read while answers are
        "GGUF": size_of(gguf),
        "distilled GGUF": size_of(gguf),
    }
    return with_scales(project, gguf, level, "compare_distilled", disk)


def make_merged_distilled(
    params: Params, root: Path, project: Path, level: str, tools: Toolchain, *, seed: int
) -> Made:
    """The merged model's level with scales that learned its answers. Raises as `with_scales` does."""
    links = base_links(root) | {"models/adapter": root / TRAINED / f"nf4-{seed}/adapter"}
    before = open_project(root, f"{project.name}-merged", params, {}, links)
    merged = make_merged(params, root, before, level, tools)
    gguf = project / LEVEL_FILE
    merged.gguf.replace(gguf)
    remove(before)
    return with_scales(project, gguf, level, "compare_distilled", merged.disk)


def with_scales(project: Path, gguf: Path, level: str, stage: str, disk: dict[str, int]) -> Made:
    """What the patch that was trained makes of the level `gguf`, as the base of `project`; `disk` is what was
    needed up to here.

    Raises `DataError` if the level is no longer the file that was trained.
    """
    trained = (project / "models/adapter").resolve()
    patch, target = trained / PATCH, project / TUNED_FILE
    if read_patch(patch)["base_sha256"] != file_hash(gguf):
        raise another_file(level, f"{stage}@{trained.name}")
    apply_patch(gguf, patch, target)
    remove(gguf)
    run_stage(project, "base")
    return Made(target, None, disk | {"tuned GGUF": size_of(target)})


def another_file(level: str, job: str) -> DataError:
    """The level, made again, is another file than `job` trained on."""
    return DataError(
        "Q-COMPARE-008",
        f"{level}, made again, is another file than {job.partition('@')[2]} was trained on, as another build "
        f"of llama.cpp may make it: run `python -m pipeline {job}`, which trains on this one",
    )


def lora_file(params: Params, project: Path) -> Path:
    """The adapter as a GGUF, in a sub-project."""
    return project / f"models/gguf/{params.convert.name}-lora.gguf"
