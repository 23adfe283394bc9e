"""Measure one strategy at one level with one seed: answers and their scores, divergence from the trained
model, speed, sizes.

Reads what was trained (`models/compare/nf4-SEED/` or `models/compare/LEVEL-SEED/`), `models/base/`,
`models/base.json`, `models/gguf/NAME-base-F16.gguf`, `data/final/test.jsonl`, `data/evaluation/`. Writes
`reports/compare/STRATEGY-LEVEL-SEED.json`. The model that is measured is made below `models/.compare/` and
removed at the end. Command: `python -m pipeline compare_measure@merged_16-Q4_K_M-42`
"""

import time
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.chat.held_out import answerable_rows
from pipeline.config.params import Params
from pipeline.config.sections import Evaluate
from pipeline.config.strategies import FOLDER, STRATEGIES, title
from pipeline.core.errors import DataError, GateError
from pipeline.core.hardware import machine
from pipeline.core.hashing import file_hash, json_hash
from pipeline.core.publish import read_json, remove, write_json
from pipeline.gguf.base_files import MODEL_FILE
from pipeline.gguf.provenance import adapter_fields
from pipeline.llamacpp.converters import base_fields, lora_to_gguf, quantize_gguf
from pipeline.llamacpp.tools import Toolchain, find_toolchain
from pipeline.metrics.answers import answer_rows, score_answers
from pipeline.metrics.divergence import compare, gguf_speaker
from pipeline.stages.compare.projects import (
    TRAINED,
    base_links,
    level_settings,
    open_project,
    quantize_base,
    untuned_gguf,
)
from pipeline.stages.compare.reference import load_reference
from pipeline.stages.compare.speed import generation_speed
from pipeline.subprojects.folder import size_of
from pipeline.subprojects.processes import run_module, run_stage

MEASURED = Path("reports/compare")  # a file for each measurement


class Made(NamedTuple):
    """What is shipped, and the bytes that had to lie on disk at once to make it, by name."""

    gguf: Path
    lora: Path | None
    disk: dict[str, int]


def main(params: Params, root: Path, item: str) -> None:
    """Run the job for the strategy, level and seed `item` on the files below `root`."""
    strategy, level, seed = item.split("-")
    record(params, root, strategy, level, int(seed), item)


def record(params: Params, root: Path, strategy: str, level: str, seed: int, name: str) -> None:
    """Measure `strategy` at `level` with `seed` in the sub-project `name`, and write the figures."""
    started, chosen = time.monotonic(), STRATEGIES[strategy]
    trained = root / TRAINED / f"{level if chosen.on_level else 'nf4'}-{seed}"
    training = read_json(trained / "train.json", "run `snakemake`")
    tools = find_toolchain(params.llamacpp.home)
    remove(root / FOLDER / name)  # of a killed run
    settings, links = {"merge": {"base": chosen.merge_base or "16-bit"}}, base_links(root)
    if chosen.on_level:
        settings, links = level_settings(root, name, seed), {}
    project = open_project(root, name, params, settings, links | {"models/adapter": trained / "adapter"})
    make = make_merged if chosen.merge_base else make_on_level if chosen.on_level else make_adapted
    made = make(params, root, project, level, tools)
    # a process of its own: the trained model's memory is free after it
    run_module(
        "pipeline.stages.compare.reference",
        str(project),
        str(root.resolve() / "data/final/test.jsonl"),
        what=f"asking the trained model of {name}",
    )
    took = ("seconds", "tokens_per_second", "peak_memory_bytes", "steps", "loss_last")
    figures = measure(made, project, params, root, tools) | {
        "strategy": strategy,
        "level": level,
        "seed": seed,
        "training": {key: training[key] for key in took},
        "measuring_seconds": round(time.monotonic() - started, 1),
    }
    write_json(root / MEASURED / f"{name}.json", figures)
    remove(project)
    print(f"compare: measured: {title(strategy, level)}, seed {seed}")


# ---- the model that is measured


def make_merged(params: Params, root: Path, project: Path, level: str, tools: Toolchain) -> Made:
    """Merge, convert to 16 bit and quantize, each by its stage or as it does; what the next step does not
    need is removed.
    """
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
    if level == kind:
        return Made(sixteen, None, disk)
    made = folder / f"{stem}-{level}.gguf"
    quantize_gguf(
        tools, sixteen, made, level, params.quantize.nthreads, tensor_types=params.quantize.tensor_types
    )
    remove(sixteen)
    return Made(made, None, disk | {"GGUF": size_of(made)})


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
        raise DataError(
            "Q-COMPARE-008",
            f"{level} of the base, made again, is another file than {trained.parent} was trained on, as "
            "another build of llama.cpp may make it: run `python -m pipeline "
            f"compare_level@{trained.parent.name}`, which trains on this one",
        )
    run_stage(project, "base")
    run_stage(project, "lora")
    return Made(gguf, lora, {"GGUF": size_of(gguf), "LoRA GGUF": size_of(lora)})


def lora_file(params: Params, project: Path) -> Path:
    """The adapter as a GGUF, in a sub-project."""
    return project / f"models/gguf/{params.convert.name}-lora.gguf"


# ---- its figures


def measure(made: Made, project: Path, params: Params, root: Path, tools: Toolchain) -> dict[str, Any]:
    """Everything of one strategy, whose reference is in `project`.

    Raises `ToolError` if llama.cpp can't serve it, `GateError` if its logits can't be compared.
    """
    settings = params.evaluate
    rows = answerable_rows(root / "data/final/test.jsonl", params.compare.rows, settings.seed)
    answers = answer_rows(made.gguf, list(rows), settings, tools, lora=made.lora)
    scored = score_answers(answers, settings.scorers, settings.seed, judge=settings.judge, root=root)
    return {
        "points": {answer["id"]: answer["score"] for answer in answers},
        "valid": scored["valid"],
        "stopped": scored["stopped"],
        "shipped": {"GGUF": size_of(made.gguf)} | ({"LoRA GGUF": size_of(made.lora)} if made.lora else {}),
        "disk": made.disk,
        "speed": generation_speed(made.gguf, made.lora, settings, tools),
        "machine": machine(),
        **divergence(made, project, settings, tools),
    }


def divergence(made: Made, project: Path, settings: Evaluate, tools: Toolchain) -> dict[str, float | int]:
    """Mean KL divergence (nats) of what is shipped from the model that training had, and how often both
    choose the same token first.
    """
    reference = load_reference(project)
    with gguf_speaker(
        made.gguf, reference.prompts, threads=settings.threads, tools=tools, lora=made.lora
    ) as speaker:
        found = compare(reference, (speaker(prompt) for prompt in reference.prompts))
    if not found.comparable:
        raise GateError(
            "Q-COMPARE-005",
            f"{made.gguf.name} can't be compared with what was trained ({found.fault}): run "
            "`snakemake --forcerun compare_nf4 compare_level`, which trains again",
        )
    return {
        "kld": found.kld,
        "same_top": found.same_top,
        "kld_rows": len(found.kld_rows),
        "positions": found.positions,
    }
