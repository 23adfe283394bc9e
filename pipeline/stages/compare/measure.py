"""Measure one strategy at one level with one seed: answers and their scores, divergence from the trained
model, general ability, speed, sizes. This job is that of the strategies which train on NF4; the others' are
`measure_level`, `measure_scales` and `measure_distilled`, beside this module.

Reads what was trained (`models/compare/nf4-SEED/`), `models/base/`, `models/base.json`,
`models/gguf/NAME-base-F16.gguf`, `data/final/test.jsonl`, `data/evaluation/`. Writes
`reports/compare/STRATEGY-LEVEL-SEED.json`. The model that is measured is made below `models/.compare/` and
removed at the end. Command: `python -m pipeline compare_measure@merged_16-Q4_K_M-42`
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pipeline.chat.selection import answerable_rows
from pipeline.chat.tokens import load_tokenizer
from pipeline.config.params import Params
from pipeline.config.products import ModelFiles
from pipeline.config.sections import Evaluate
from pipeline.config.strategies import FOLDER, STRATEGIES, title, training_of
from pipeline.core.errors import GateError
from pipeline.core.hardware import machine
from pipeline.core.publish import read_json, remove, write_json
from pipeline.llamacpp.server import serving
from pipeline.llamacpp.tools import Llama, Toolchain, find_toolchain
from pipeline.metrics.answer_speed import answer_speed, cpu_time, other_load, runs_of
from pipeline.metrics.answers import answer_rows, score_answers
from pipeline.metrics.divergence import compare, gguf_speaker
from pipeline.metrics.general import ask_general
from pipeline.stages.compare.made import TUNED_FILE, Made, make_adapted, make_merged
from pipeline.stages.compare.projects import (
    TRAINED,
    base_links,
    level_settings,
    open_project,
    untuned_gguf,
)
from pipeline.stages.compare.reference import load_reference, tokenizer_folder
from pipeline.subprojects.processes import Settings, run_module, size_of

MEASURED = Path("reports/compare")  # a file for each measurement
TIMED = 5  # answers whose speed is measured, after one that isn't
PROMPT, TOKENS = 128, 64  # tokens in front of them, and in each
Make = Callable[[Params, Path, Path, str, Toolchain], Made]


def main(params: Params, root: Path, item: str) -> None:
    """Run the job for the strategy, level and seed `item` on the files below `root`."""
    make = make_merged if STRATEGIES[item.partition("-")[0]].merge_base else make_adapted
    record_item(params, root, item, make)


def record_item(params: Params, root: Path, item: str, make: Make) -> None:
    """Measure what `make` makes for the strategy, level and seed `item`, and write the figures."""
    strategy, level, seed = item.split("-")
    record(params, root, strategy, level, int(seed), item, make)


def record(params: Params, root: Path, strategy: str, level: str, seed: int, name: str, make: Make) -> None:
    """Measure `strategy` at `level` with `seed` in the sub-project `name`, and write the figures. With the
    merged model in 16 bits comes the untuned base's general ability.
    """
    started = time.monotonic()
    trained = root / TRAINED / training_of(strategy, level, seed)
    training = read_json(trained / "train.json", "run `snakemake`")
    tools = find_toolchain(params.machine.llama_cpp)
    remove(root / FOLDER / name)  # of a killed run
    project = open_project(root, name, params, *needs(root, name, strategy, seed, trained))
    made = make(params, root, project, level, tools)
    # a process of its own: the trained model's memory is free after it
    run_module(
        "pipeline.stages.compare.reference",
        str(project),
        str(root.resolve() / "data/final/test.jsonl"),
        str(params.evaluate.seed),
        str(params.evaluate.ctx_size),
        what=f"asking the trained model of {name}",
    )
    took = ("seconds", "tokens_per_second", "peak_memory_bytes", "steps", "loss_last", "parts")
    figures = measure(made, project, params, root, tools) | {
        "strategy": strategy,
        "level": level,
        "seed": seed,
        "training": {key: training[key] for key in took if key in training},
    }
    if level == params.convert.type:
        untuned = Made(untuned_gguf(root, params), None, {})
        figures["untuned_general"] = general(untuned, project, params, root, tools)
    figures["measuring_seconds"] = round(time.monotonic() - started, 1)
    write_json(root / MEASURED / f"{name}.json", figures)
    remove(project)
    print(f"compare: measured: {title(strategy, level)}, seed {seed}")


def needs(root: Path, name: str, strategy: str, seed: int, trained: Path) -> tuple[Settings, dict[str, Path]]:
    """The settings and links of the sub-project `name`, in which `strategy` is measured."""
    chosen = STRATEGIES[strategy]
    if chosen.training == "nf4":
        settings: Settings = {"merge": {"base": chosen.merge_base or "16-bit"}}
        return settings, base_links(root) | {"models/adapter": trained / "adapter"}
    if chosen.training == "level":
        return level_settings(root, name, seed), {"models/adapter": trained / "adapter"}
    return level_settings(root, name, seed, TUNED_FILE), {"models/adapter": trained}


# ---- its figures


def measure(made: Made, project: Path, params: Params, root: Path, tools: Toolchain) -> dict[str, Any]:
    """Everything of one strategy, whose reference is in `project`.

    Raises `ToolError` if llama.cpp can't serve it, `GateError` if its logits can't be compared.
    """
    settings = params.evaluating
    rows = answerable_rows(root / "data/final/test.jsonl", params.compare.rows, settings.seed)
    answers = answer_rows(made.gguf, list(rows), settings, tools, lora=made.lora)
    scored = score_answers(
        answers, settings.scorers, settings.seed, judge=settings.judge, external=settings.external, root=root
    )
    return {
        "points": {answer["id"]: answer["score"] for answer in answers},
        "valid": scored["valid"],
        "stopped": scored["stopped"],
        "shipped": {"GGUF": size_of(made.gguf)} | ({"LoRA GGUF": size_of(made.lora)} if made.lora else {}),
        "disk": made.disk,
        "general": general(made, project, params, root, tools),
        "speed": generation_speed(made.gguf, made.lora, settings, tools),
        "machine": machine(),
        **divergence(made, project, settings, tools),
    }


def general(made: Made, project: Path, params: Params, root: Path, tools: Toolchain) -> dict[str, Any] | None:
    """Which general questions what is shipped answers right; None if `evaluate.general` names none."""
    tokenizer = load_tokenizer(tokenizer_folder(project))
    found = ask_general(made.gguf, tokenizer, root, params.evaluating, tools, made.lora)
    return {key: found[key] for key in ("file", "sha256", "score", "right")} if found else None


def generation_speed(gguf: Path, lora: Path | None, settings: Evaluate, tools: Toolchain) -> dict[str, Any]:
    """Tokens per second of generation by llama-server's own timings: "shipped", and "bare" without the
    adapter if there is one.

    The same prompt, one answer at a time, with and without in turn, so that a machine that slows down slows
    both. Both servers map one file. `other_load` and `disturbed` say whether others kept the machine busy.
    """
    llama, room = Llama(tools, settings.threads, settings.n_gpu_layers), PROMPT + TOKENS + 64
    with ExitStack() as up:
        servers = {"shipped": up.enter_context(serving(llama, ModelFiles(gguf, lora), ctx_size=room))}
        if lora:
            servers["bare"] = up.enter_context(serving(llama, ModelFiles(gguf), ctx_size=room))
        before = cpu_time()
        turns = [
            {name: answer_speed(server, PROMPT, TOKENS).generation for name, server in servers.items()}
            for _ in range(TIMED + 1)
        ][1:]
        others = other_load(before, cpu_time())
    speeds: dict[str, Any] = {name: runs_of([turn[name] for turn in turns]) for name in servers}
    return speeds | others.as_values()


def divergence(made: Made, project: Path, settings: Evaluate, tools: Toolchain) -> dict[str, float | int]:
    """Mean KL divergence (nats) of what is shipped from the trained model, how often both choose alike."""
    reference = load_reference(project)
    with gguf_speaker(
        made.gguf, reference.prompts, threads=settings.threads, tools=tools, lora=made.lora
    ) as speaker:
        found = compare(reference, (speaker(prompt) for prompt in reference.prompts))
    if not found.comparable:
        raise GateError(
            "Q-COMPARE-005",
            f"{made.gguf.name} can't be compared with what was trained ({found.fault}): run "
            "`snakemake --forcerun compare_nf4 compare_level compare_scales compare_distilled`, which trains "
            "again",
        )
    return {
        "kld": found.kld,
        "same_top": found.same_top,
        "kld_rows": len(found.kld_rows),
        "positions": found.positions,
    }
