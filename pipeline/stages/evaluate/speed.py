"""How fast a GGUF reads prompts and writes answers (median and spread of several runs), and what it takes to
serve it.

Speed is measured by `llama-bench`. If models with and without an adapter are compared, it is measured in
process, since llama-bench takes no adapter. Serving is measured as `serve` in params.yaml says: seconds until
it answers, and memory.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from pipeline.config.sections import Evaluate, Serve
from pipeline.core.progress import progress
from pipeline.llamacpp.logits import GgufModel, open_gguf
from pipeline.llamacpp.server import serving
from pipeline.llamacpp.server_command import BATCH_TOKENS
from pipeline.llamacpp.server_process import peak_memory
from pipeline.llamacpp.tools import Toolchain, bench

GENERATED = 32  # tokens written in each run
ANSWER_TOKENS = 8  # written by the server that is measured
IN_PROCESS = "llama.cpp in the measuring process"


def speed(model: Path, settings: Evaluate, tools: Toolchain) -> dict[str, Any]:
    """Tokens per second at each of `prompt_lengths` and `generation_depths`, under `speed` and, as single
    figures, beside it.

    The prompt's single figure is the longest's, generation's the first depth's; `_spread` is half of highest
    − lowest run. Raises `ToolError` if llama-bench fails.
    """
    asked = (
        ("--n-prompt", numbers(settings.prompt_lengths), "--n-gen", "0"),
        ("--n-prompt", "0", "--n-gen", str(GENERATED), "--n-depth", numbers(settings.generation_depths)),
    )
    load = {
        "repetitions": settings.repetitions,
        "threads": settings.threads,
        "n_gpu_layers": settings.n_gpu_layers,
    }
    tests = []
    with progress(
        f"evaluate: {model.name}, speed", len(settings.prompt_lengths) + len(settings.generation_depths)
    ) as advance:
        for arguments in asked:
            for test in bench(tools, model, arguments, **load):
                tests.append(test)
                advance(1)
    return figures([test for test in tests if test["n_prompt"]], [test for test in tests if test["n_gen"]])


def speed_in_process(model: Path, lora: Path | None, settings: Evaluate, tools: Toolchain) -> dict[str, Any]:
    """The same figures through the binding, with the adapter `lora` on the model if given; `speed.by` says
    that llama-bench had no part in it.

    As llama-bench does, it reads random tokens, writes tokens one by one, and throws a first run away. Raises
    `ToolError` if llama.cpp can't.
    """
    lengths, depths = dict.fromkeys(settings.prompt_lengths), dict.fromkeys(settings.generation_depths)
    room = max([*lengths, *(depth + GENERATED for depth in depths)])
    load = {"threads": settings.threads, "n_gpu_layers": settings.n_gpu_layers}
    label = f"evaluate: {(lora or model).name}, speed"
    with (
        open_gguf(tools, model, ctx_size=room, lora=lora, **load) as loaded,
        progress(label, len(lengths) + len(depths)) as advance,
    ):
        ids = np.random.default_rng(settings.seed).integers(0, loaded.vocabulary, room).tolist()
        only(loaded, ids[: min(lengths)])
        prompt, generation = [], []
        for length in lengths:
            prompt.append(
                {
                    "n_prompt": length,
                    "samples_ts": [
                        one_run(loaded, ids[:length], 0, length) for _ in range(settings.repetitions)
                    ],
                }
            )
            advance(1)
        for depth in depths:
            only(loaded, ids[:depth])
            samples = [
                one_run(loaded, ids[: depth + GENERATED], depth, 1) for _ in range(settings.repetitions)
            ]
            generation.append({"n_depth": depth, "n_gen": GENERATED, "samples_ts": samples})
            advance(1)
    found = figures(prompt, generation)
    return found | {"speed": found["speed"] | {"by": IN_PROCESS}}


def only(model: GgufModel, ids: list[int]) -> None:
    """Forget everything and read `ids`."""
    model.keep(0)
    if ids:
        model.read(ids, 0, {len(ids) - 1})


def one_run(model: GgufModel, ids: list[int], start: int, together: int) -> float:
    """Tokens per second of reading `ids` behind the first `start` of them, which stand there already, so many
    `together`.
    """
    if model.keep(start) < start:  # the architecture forgets all or nothing
        only(model, ids[:start])
    begin = time.perf_counter()
    for place in range(start, len(ids), together):
        some = ids[place : place + together]
        model.read(some, place, {len(some) - 1})
    return (len(ids) - start) / (time.perf_counter() - begin)


def figures(prompts: Sequence[Mapping[str, Any]], generations: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The stage's figures of tests as llama-bench describes them."""
    prompt = [{"tokens": test["n_prompt"], **runs(test)} for test in prompts]
    generation = [{"depth": test["n_depth"], "tokens": test["n_gen"], **runs(test)} for test in generations]
    longest = max(prompt, key=lambda one: one["tokens"])
    return {
        "speed": {"prompt": prompt, "generation": generation},
        "prompt_tok_s": longest["median"],
        "prompt_tok_s_spread": spread(longest),
        "generation_tok_s": generation[0]["median"],
        "generation_tok_s_spread": spread(generation[0]),
    }


def numbers(values: list[int]) -> str:
    """A list as llama-bench takes it, each value once."""
    return ",".join(str(value) for value in dict.fromkeys(values))


def runs(test: Mapping[str, Any]) -> dict[str, Any]:
    """Median, lowest and highest of a test's runs, in tokens per second, and how many there are."""
    speeds = test["samples_ts"]
    return {
        "median": round(median(speeds), 2),
        "low": round(min(speeds), 2),
        "high": round(max(speeds), 2),
        "runs": len(speeds),
    }


def spread(one: Mapping[str, Any]) -> float:
    """Half the distance between the lowest and the highest run."""
    half: float = (one["high"] - one["low"]) / 2
    return round(half, 2)


def serving_figures(
    model: Path, settings: Serve, tools: Toolchain, lora: Path | None = None
) -> dict[str, Any]:
    """Start llama-server at the serving context (`lora` put on the model), let it answer a prompt of a
    complete batch, and look at its process.

    `load_seconds` is from its start until it is healthy, with the file in the page cache (it was just read);
    `peak_memory_bytes` is its largest resident memory, mapped weights included, where the system has /proc,
    and `gpu_memory_bytes` what the driver says it holds; else None. A shorter prompt leaves buffers
    untouched, so that they are not resident yet. A full context takes more still (SmolLM2-135M with 4,096
    tokens: 252 MB against 245; with `flash_attn` off 355), and so does a prompt cache, which is empty here.
    Raises `ToolError` if it doesn't come up or answer.
    """
    up = serving(
        tools,
        model,
        ctx_size=settings.ctx_size,
        parallel=settings.parallel,
        threads=settings.threads,
        n_gpu_layers=settings.n_gpu_layers,
        flash_attn=settings.flash_attn,
        lora=lora,
    )
    begin = time.perf_counter()
    with up as server:
        seconds = time.perf_counter() - begin
        ids = server.post("/tokenize", {"content": "Hello! " * BATCH_TOKENS})["tokens"]
        length = min(BATCH_TOKENS, settings.ctx_size - ANSWER_TOKENS)
        server.post("/completion", {"prompt": ids[:length], "n_predict": ANSWER_TOKENS, "temperature": 0})
        return {
            "ctx_size": settings.ctx_size,
            "parallel": settings.parallel,
            "n_gpu_layers": settings.n_gpu_layers,
            "load_seconds": round(seconds, 2),
            "peak_memory_bytes": peak_memory(server.process.pid),
            "gpu_memory_bytes": gpu_memory(server.process.pid) if settings.n_gpu_layers else None,
        }


def gpu_memory(pid: int) -> int | None:
    """What a process holds on all GPUs by `nvidia-smi`, in bytes; None if there is none, or where it can't
    see the process.
    """
    if not shutil.which("nvidia-smi"):
        return None
    command = ["nvidia-smi", "--query-compute-apps=pid,used_gpu_memory", "--format=csv,noheader,nounits"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, env={**os.environ, "LC_ALL": "C"}
    )
    return held_by(pid, done.stdout) if done.returncode == 0 else None


def held_by(pid: int, listing: str) -> int | None:
    """A process's memory in nvidia-smi's lines "pid, MiB", in bytes; None if it isn't listed with a
    number.
    """
    rows = [line.split(",") for line in listing.splitlines() if line.count(",") == 1]
    held = [
        int(amount) for process, amount in rows if process.strip() == str(pid) and amount.strip().isdigit()
    ]
    return sum(held) << 20 if held else None
