"""How fast llama-server generates with what is shipped, and what the adapter costs."""

from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from pipeline.config.sections import Evaluate
from pipeline.core.other_load import cpu_time, other_load
from pipeline.llamacpp.server import serving
from pipeline.llamacpp.tools import Toolchain
from pipeline.metrics.answer_speed import answer_speed

TIMED = 5  # answers whose speed is measured, after one that isn't
PROMPT, TOKENS = 128, 64  # tokens in front of them, and in each


def generation_speed(gguf: Path, lora: Path | None, settings: Evaluate, tools: Toolchain) -> dict[str, Any]:
    """Tokens per second of generation by llama-server's own timings: "shipped", and "bare" without the
    adapter if there is one.

    The same prompt, one answer at a time, with and without in turn, so that a machine that slows down slows
    both. Both servers map one file. `other_load` and `disturbed` say whether others kept the machine busy.
    """
    load: dict[str, Any] = {
        "ctx_size": PROMPT + TOKENS + 64,
        "threads": settings.threads,
        "n_gpu_layers": settings.n_gpu_layers,
    }
    with ExitStack() as up:
        servers = {"shipped": up.enter_context(serving(tools, gguf, **load, lora=lora))}
        if lora:
            servers["bare"] = up.enter_context(serving(tools, gguf, **load))
        before = cpu_time()
        turns = [
            {name: answer_speed(server, PROMPT, TOKENS).generation for name, server in servers.items()}
            for _ in range(TIMED + 1)
        ][1:]
        others = other_load(before, cpu_time())
    taken = {name: [turn[name] for turn in turns] for name in servers}
    return {
        name: {"median": round(median(one), 2), "low": round(min(one), 2), "high": round(max(one), 2)}
        for name, one in taken.items()
    } | others.as_values()
