"""What a GGUF takes when it is served as `serve` in params.yaml says: seconds until it answers, and memory."""

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from pipeline.config.sections import Serve
from pipeline.llamacpp.server import BATCH_TOKENS, serving
from pipeline.llamacpp.server_process import peak_memory
from pipeline.llamacpp.tools import Toolchain

ANSWER_TOKENS = 8


def serving_figures(model: Path, settings: Serve, tools: Toolchain, lora: Path | None = None) -> dict[str, Any]:
    """Start llama-server at the serving context (`lora` put on the model), let it answer a prompt of a whole batch, and look at its process.

    `load_seconds` is from its start until it is healthy, with the file in the page cache (it was just read); `peak_memory_bytes` is its largest
    resident memory, mapped weights included, where the system has /proc, and `gpu_memory_bytes` what the driver says it holds; else None.
    A shorter prompt leaves buffers untouched, so that they are not resident yet. A full context takes more still (SmolLM2-135M with 4,096 tokens:
    252 MB against 245; with `flash_attn` off 355), and so does a prompt cache, which is empty here.
    Raises `ToolError` where it doesn't come up or answer.
    """
    up = serving(
        tools, model, ctx_size=settings.ctx_size, parallel=settings.parallel, threads=settings.threads, n_gpu_layers=settings.n_gpu_layers,
        flash_attn=settings.flash_attn, lora=lora,
    )  # fmt: skip
    begin = time.perf_counter()
    with up as server:
        seconds = time.perf_counter() - begin
        ids = server.post("/tokenize", {"content": "Hello! " * BATCH_TOKENS})["tokens"]
        length = min(BATCH_TOKENS, settings.ctx_size - ANSWER_TOKENS)
        server.post("/completion", {"prompt": ids[:length], "n_predict": ANSWER_TOKENS, "temperature": 0})
        return {
            "ctx_size": settings.ctx_size, "parallel": settings.parallel, "n_gpu_layers": settings.n_gpu_layers, "load_seconds": round(seconds, 2),
            "peak_memory_bytes": peak_memory(server.process.pid),
            "gpu_memory_bytes": gpu_memory(server.process.pid) if settings.n_gpu_layers else None,
        }  # fmt: skip


def gpu_memory(pid: int) -> int | None:
    """What a process holds on all GPUs by `nvidia-smi`, in bytes; None where there is none, or where it can't see the process."""
    if not shutil.which("nvidia-smi"):
        return None
    command = ["nvidia-smi", "--query-compute-apps=pid,used_gpu_memory", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env={**os.environ, "LC_ALL": "C"})
    return held_by(pid, done.stdout) if done.returncode == 0 else None


def held_by(pid: int, listing: str) -> int | None:
    """A process's memory in nvidia-smi's lines "pid, MiB", in bytes; None where it isn't listed with a number."""
    rows = [line.split(",") for line in listing.splitlines() if line.count(",") == 1]
    held = [int(amount) for process, amount in rows if process.strip() == str(pid) and amount.strip().isdigit()]
    return sum(held) << 20 if held else None
