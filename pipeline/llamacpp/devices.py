"""Find the GPUs that a built llama.cpp can use now, and how many layers of a GGUF fit their free memory: the
values of `n_gpu_layers: auto` and `parallel: auto`.

The memory is read just before a file is loaded, because two models may share a card. llama-server would find
the number itself (`--fit`), but the binding would not, and the number is recorded.
"""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pipeline.config.sections.values import ALL_LAYERS, AUTO
from pipeline.core.errors import ConfigError, ToolError
from pipeline.gguf.file import check_gguf, kv_cache_bytes
from pipeline.llamacpp.tools import Toolchain, find_toolchain

SPARE = 1 << 30  # bytes of each GPU that stay free, as llama.cpp's own --fit leaves them
BUFFERS = 0.1  # share of weights and KV cache for compute buffers, as in `pipeline.planning.serving`
SLOTS = 4  # parallel answers on a GPU, where they are faster together
LINE = re.compile(r"^ +(\S+): (.*) \((\d+) MiB, (\d+) MiB free\)$", re.MULTILINE)


@dataclass(frozen=True)
class Device:
    """GPU as llama.cpp sees it, with its total and free memory in bytes."""

    name: str
    description: str
    memory: int
    free: int


def devices(tools: Toolchain) -> list[Device]:
    """Return the GPUs that this build can use; none of a build for the CPU, or if no driver shows one."""
    try:
        done = subprocess.run(
            [tools.tool("llama-server"), "--list-devices"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [
        Device(name, description, int(memory) << 20, int(free) << 20)
        for name, description, memory, free in LINE.findall(done.stdout)
    ]


def sees_gpu(home: str | None) -> bool:
    """Return True if the llama.cpp in use (`home`: machine.llama_cpp) sees a GPU or will once it is built."""
    try:
        return bool(devices(find_toolchain(home)))
    except ToolError:
        return True


def gpu_layers(tools: Toolchain, model: Path, wanted: int | Literal["auto"], *, tokens: int) -> int:
    """Return the number of layers of `model` to put on the GPU, with a KV cache of `tokens`: `wanted`, or as
    many as fit.

    Raises `ConfigError` for a number that this build would ignore.
    """
    if wanted == 0:
        return 0
    gpus = devices(tools)
    if wanted == AUTO:
        room = sum(max(0, gpu.free - SPARE) for gpu in gpus)
        return fitting(model, tokens, room) if gpus else 0
    if not gpus:
        raise ConfigError(
            "Q-LLAMACPP-024",
            f"n_gpu_layers is {wanted}, and the llama.cpp in {tools.bin} sees no GPU, so it would ignore "
            "that: set it to auto or 0, or build llama.cpp for the GPU with `make setup LLAMA=auto`",
        )
    return wanted


def fitting(model: Path, tokens: int, room: int) -> int:
    """Return the number of layers that fit `room` bytes, each with its part of a KV cache of `tokens`;
    `ALL_LAYERS` if all do. The embeddings and the head are counted as one additional layer.
    """
    fields = check_gguf(model).fields
    layers = fields.get(f"{fields.get('general.architecture')}.block_count")
    if not isinstance(layers, int) or layers < 1:
        return 0
    cache = kv_cache_bytes(model, tokens) or 0
    layer = (model.stat().st_size + cache) * (1 + BUFFERS) / (layers + 1)
    count = int(room / layer)
    return ALL_LAYERS if count > layers else count


def placement(
    tools: Toolchain,
    model: Path,
    *,
    ctx_size: int,
    parallel: int | Literal["auto"],
    n_gpu_layers: int | Literal["auto"],
) -> tuple[int, int]:
    """Return (parallel answers, layers on the GPU) of a server. More than one answer at once is faster only
    if layers are on the GPU, and with one every run gives the same result.
    """
    slots = SLOTS if parallel == AUTO else parallel
    layers = gpu_layers(tools, model, n_gpu_layers, tokens=ctx_size * slots)
    return (slots if layers or parallel != AUTO else 1), layers
