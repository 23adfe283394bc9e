"""Speed of a GGUF at reading prompts and writing answers (median, spread over runs), and its serving cost.

Speed is what llama-server reports for its own answers, with the adapter on the model if there is one. Serving
is measured with the `serve` settings in params.yaml: seconds until it answers, and memory.
"""

import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.config.products import ModelFiles
from pipeline.config.sections import Serve
from pipeline.core.errors import ToolError
from pipeline.core.hardware import nvidia_smi
from pipeline.core.progress import progress
from pipeline.core.usage import peak_memory
from pipeline.llamacpp.server import Server, serving
from pipeline.llamacpp.server_command import BATCH_TOKENS
from pipeline.llamacpp.tools import Toolchain, llama_of
from pipeline.metrics.answer_speed import answer_speed, cpu_time, other_load, runs_of

PROMPT_LENGTHS = (128, 512)  # lengths of the measured prompts, in tokens
DEPTHS = (0, 512)  # tokens already in the context when the speed of generation is measured
GENERATED = 32  # tokens written per run
RUNS = 2  # runs per speed
ROOM = max(*PROMPT_LENGTHS, *(max(depth, 1) + GENERATED for depth in DEPTHS)) + 1  # tokens of context
ANSWER_TOKENS = 8  # tokens written by the server that is measured


def speed(server: Server) -> dict[str, Any]:
    """Return tokens per second at each of `PROMPT_LENGTHS` and `DEPTHS` that fits the model's context, by the
    server's timings: all under `speed`, and single figures next to it.

    The single figure of prompts is the longest prompt's, that of generation the first depth's; `_spread` is
    half the distance from the lowest to the highest run. `speed.other_load` is the share of the machine's CPU
    time that other processes used meanwhile, and `speed.disturbed` is True if that spoilt the figures.
    """
    context = server.client.get("/props").json()["default_generation_settings"]["n_ctx"]
    lengths = [length for length in PROMPT_LENGTHS if length < context]
    depths = [depth for depth in DEPTHS if max(depth, 1) + GENERATED <= context]
    # A prompt as long as a depth is measured together with it. Generation needs at least one token before it.
    generating = {max(depth, 1): GENERATED for depth in depths}
    lengths_run = dict.fromkeys(lengths, 1) | generating
    answer_speed(server, min(lengths_run), 1)  # a first run that is not counted
    before = cpu_time()
    with progress("evaluate: speed", len(lengths_run)) as advance:
        measured = {}
        for length, tokens in lengths_run.items():
            measured[length] = [answer_speed(server, length, tokens) for _ in range(RUNS)]
            advance(1)
    load = other_load(before, cpu_time())
    prompt = [{"tokens": length, **runs([run.prompt for run in measured[length]])} for length in lengths]
    generation = [
        {"depth": depth, "tokens": GENERATED, **runs([run.generation for run in measured[max(depth, 1)]])}
        for depth in depths
    ]
    longest = max(prompt, key=lambda run: run["tokens"])
    return {
        "speed": {"prompt": prompt, "generation": generation, **load.as_values()},
        "prompt_tok_s": longest["median"],
        "prompt_tok_s_spread": spread(longest),
        "generation_tok_s": generation[0]["median"],
        "generation_tok_s_spread": spread(generation[0]),
    }


def runs(speeds: Sequence[float]) -> dict[str, Any]:
    """Return median, lowest and highest speed of the runs, in tokens per second, and the number of runs."""
    return {**runs_of(speeds), "runs": len(speeds)}


def spread(figures: Mapping[str, Any]) -> float:
    """Return half the distance between the lowest and the highest run."""
    half: float = (figures["high"] - figures["low"]) / 2
    return round(half, 2)


def serving_figures(
    model: Path, settings: Serve, tools: Toolchain, lora: Path | None = None
) -> dict[str, Any]:
    """Start llama-server at the serving context (with `lora` if given), let it answer a prompt of a complete
    batch, and measure its process.

    `load_seconds` is the time from its start until it is ready, with the file in the page cache (it was just
    read). `peak_memory_bytes` is its largest resident memory, mapped weights included, if the system has
    /proc, otherwise None. `gpu_memory_bytes` is what the driver reports, None if it can't be seen. A shorter
    prompt leaves buffers untouched, so that they are not resident yet. A full context takes more
    (SmolLM2-135M with 4,096 tokens: 252 MB against 245; with `serve.flash_attn` off 355), and so does a
    prompt cache, which is empty here. Raises `ToolError` if it doesn't start or answer.
    """
    llama = llama_of(tools, settings)
    files = ModelFiles(model, lora)
    up = serving(
        llama,
        files,
        ctx_size=settings.ctx_size,
        parallel=settings.parallel,
        flash_attn=settings.flash_attn,
    )
    begin = time.perf_counter()
    with up as server:
        seconds = time.perf_counter() - begin
        ids = server.post("/tokenize", {"content": "Hello! " * BATCH_TOKENS})["tokens"]
        length = min(BATCH_TOKENS, settings.ctx_size - ANSWER_TOKENS)
        server.post("/completion", {"prompt": ids[:length], "n_predict": ANSWER_TOKENS, "temperature": 0})
        return {
            "ctx_size": settings.ctx_size,
            "parallel": server.parallel,
            "n_gpu_layers": server.n_gpu_layers,
            "load_seconds": round(seconds, 2),
            "peak_memory_bytes": peak_memory(server.process.pid),
            "gpu_memory_bytes": gpu_memory(server.process.pid) if server.n_gpu_layers else None,
        }


def gpu_memory(pid: int) -> int | None:
    """Return the memory of a process on all GPUs by `nvidia-smi`, in bytes; None if it can't be seen."""
    if not shutil.which("nvidia-smi"):
        return None
    try:
        return held_by(pid, nvidia_smi("--query-compute-apps=pid,used_gpu_memory"))
    except ToolError:
        return None


def held_by(pid: int, lines: Sequence[Sequence[str]]) -> int | None:
    """Return a process's memory in bytes, from nvidia-smi's lines (pid, MiB); None without a number."""
    mebibytes = [
        int(line[1]) for line in lines if line[0] == str(pid) and len(line) == 2 and line[1].isdigit()
    ]
    return sum(mebibytes) << 20 if mebibytes else None
