"""Measure one strategy at one level with one seed: answers and their scores, divergence from the trained
model, general ability, speed, sizes.

Reads the training results (`models/compare/STRATEGY-LEVEL-SEED/`, `models/compare/nf4-SEED/`),
`models/base/`, `models/base.json`, `models/gguf/NAME-base-F16.gguf`, `data/final/test.jsonl`,
`data/evaluation/`. Writes `reports/compare/STRATEGY-LEVEL-SEED.json`. The model that is measured is made
below `models/.compare/` and removed at the end.
Command: `python -m pipeline compare_measure@merged_16-Q4_K_M-42`
"""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pipeline.chat.selection import COMPARED_ROWS, answerable_rows
from pipeline.chat.tokens import load_tokenizer
from pipeline.config.params import Params
from pipeline.config.products import ModelFiles
from pipeline.config.sections import Evaluate
from pipeline.config.strategies import FOLDER, Job, title
from pipeline.core.errors import GateError
from pipeline.core.hardware import machine
from pipeline.core.publish import read_json, remove, write_json
from pipeline.extras.compare.made import Made, Make, maker_of
from pipeline.extras.compare.projects import TRAINED, untuned_gguf
from pipeline.extras.compare.reference import load_reference, tokenizer_folder
from pipeline.llamacpp.logits import open_gguf
from pipeline.llamacpp.server import serving
from pipeline.llamacpp.tools import Toolchain, find_toolchain, llama_of
from pipeline.metrics.answer_speed import answer_speed, cpu_time, other_load, runs_of
from pipeline.metrics.asking import answers_of, evaluated_server, score_answers
from pipeline.metrics.divergence import compare, gguf_speaker
from pipeline.metrics.general import ROWS, general_ability
from pipeline.metrics.general_questions import load_questions
from pipeline.subprojects.processes import run_module, size_of

MEASURED = Path("reports/compare")  # one file per measurement
TIMED = 5  # timed answers, after one that isn't
PROMPT = 128  # tokens before each answer
TOKENS = 64  # tokens in each answer


def main(params: Params, root: Path, item: str) -> None:
    """Run the job for the strategy, level and seed `item` on the files below `root`."""
    job = Job.of(item)
    record(params, root, job, maker_of(job))


def record(params: Params, root: Path, job: Job, make: Make) -> None:
    """Measure the model that `make` makes for `job`, and write the figures. The record of the merged model in
    16 bits also contains the untuned base's general ability.
    """
    started = time.monotonic()
    training = read_json(root / TRAINED / job.training / "train.json", "run `snakemake`")
    tools = find_toolchain(params.machine.llama_cpp)
    remove(root / FOLDER / job.name)  # files of a killed run
    product = make(params, root, job)
    # A process of its own, which frees the trained model's memory.
    run_module(
        "pipeline.extras.compare.reference",
        str(product.project),
        str(root.resolve() / "data/final/test.jsonl"),
        str(params.preprocess.max_length),
        what=f"asking the trained model of {job.name}",
    )
    took = ("seconds", "tokens_per_second", "peak_memory_bytes", "steps", "loss_last", "parts")
    figures = measure(product, params, root, tools) | {
        "strategy": job.strategy,
        "level": job.level,
        "seed": job.seed,
        "training": {key: training[key] for key in took if key in training},
    }
    if job.level == params.convert.type:
        untuned = product._replace(gguf=untuned_gguf(root, params))
        figures["untuned_general"] = general(untuned, params, root, tools)
    figures["measuring_seconds"] = round(time.monotonic() - started, 1)
    write_json(root / MEASURED / f"{job.name}.json", figures)
    remove(product.project)
    print(f"compare: measured: {title(job.strategy, job.level)}, seed {job.seed}")


# ---- its figures


def measure(product: Made, params: Params, root: Path, tools: Toolchain) -> dict[str, Any]:
    """Return all figures of one strategy, whose reference is in the sub-project.

    Raises `ToolError` if llama.cpp can't serve it, `GateError` if its logits can't be compared.
    """
    settings = params.evaluating
    rows = answerable_rows(root / "data/final/test.jsonl", COMPARED_ROWS, settings.scorers)
    with evaluated_server(product.gguf, settings, tools, product.lora) as server:
        answers = answers_of(server, list(rows), settings, (product.lora or product.gguf).name)
    scored = score_answers(
        answers, settings.scorers, judge=settings.judge, external=settings.external, root=root
    )
    shipped = {"GGUF": size_of(product.gguf)}
    if product.lora:
        shipped["LoRA GGUF"] = size_of(product.lora)
    return {
        "points": {answer["id"]: answer["score"] for answer in answers},
        "valid": scored["valid"],
        "stopped": scored["stopped"],
        "shipped": shipped,
        "disk": product.disk,
        "general": general(product, params, root, tools),
        "speed": generation_speed(product.gguf, product.lora, settings, tools),
        "machine": machine(),
        **divergence(product, settings, tools),
    }


def general(product: Made, params: Params, root: Path, tools: Toolchain) -> dict[str, Any] | None:
    """Return which general questions the shipped files answer right; None if `evaluate.general`
    names none.
    """
    settings = params.evaluating
    questions = load_questions(settings.general, root)
    if not questions:
        return None
    llama = llama_of(tools, settings)
    files = ModelFiles(product.gguf, product.lora)
    tokenizer = load_tokenizer(tokenizer_folder(product.project))
    with open_gguf(llama, files, ctx_size=settings.ctx_size, rows=ROWS) as loaded:
        answered = general_ability(loaded, tokenizer, questions)
    return {key: answered[key] for key in ("file", "sha256", "score", "right")}


def generation_speed(gguf: Path, lora: Path | None, settings: Evaluate, tools: Toolchain) -> dict[str, Any]:
    """Return tokens per second of generation by llama-server's own timings: "shipped", and "bare" without the
    adapter if there is one.

    The prompt is the same, one answer at a time, and both servers take turns, so that a machine that slows
    down slows both. Both servers map one file. `other_load` and `disturbed` report whether other processes
    kept the machine busy.
    """
    llama = llama_of(tools, settings)
    room = PROMPT + TOKENS + 64
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


def divergence(product: Made, settings: Evaluate, tools: Toolchain) -> dict[str, float | int]:
    """Return the mean KL divergence (nats) of the shipped files from the trained model, and the share of
    positions with the same top token.
    """
    reference = load_reference(product.project)
    with gguf_speaker(
        product.gguf, reference.prompts, threads=settings.threads, tools=tools, lora=product.lora
    ) as speaker:
        figures = compare(reference, (speaker(prompt) for prompt in reference.prompts))
    if figures.fault:
        raise GateError(
            "Q-COMPARE-005",
            f"{product.gguf.name} can't be compared with what was trained ({figures.fault}): run "
            "`snakemake --forcerun compare_nf4 compare_train`, which trains again",
        )
    return {
        "kld": figures.kld,
        "same_top": figures.same_top,
        "kld_rows": len(figures.kld_rows),
        "positions": figures.positions,
    }
