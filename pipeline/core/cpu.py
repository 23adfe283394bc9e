"""The device that training computes on, and what its CPU multiplies."""

import os
from pathlib import Path
from typing import Literal

from pipeline.core.errors import ToolError

ComputeDtype = Literal["bfloat16", "float16", "float32"]
Device = Literal["cuda", "cpu"]
CARDS = "CUDA_VISIBLE_DEVICES"
# CPU features with products of bfloat16, as Linux names them: AVX512-BF16 and AMX-BF16 on x86 (listed under
# `flags`), FEAT_BF16 on ARM (listed under `Features`).
INSTRUCTIONS = {"avx512_bf16", "amx_bf16", "bf16"}
# The variable that limits the instructions of oneDNN, which multiplies bfloat16 for PyTorch, and its values
# that leave out those above.
LIMIT = "ONEDNN_MAX_CPU_ISA"
WITHOUT_BFLOAT16 = {"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX512_CORE", "AVX512_CORE_VNNI"}


def training_device(wanted: Literal["auto", "cpu", "gpu"] = "auto") -> Device:
    """Return the device that torch trains on here. Imports torch; `cpu` hides the GPUs from this process.

    Raises `ToolError` if a `gpu` is wanted and torch sees none.
    """
    import torch

    if wanted == "cpu":
        os.environ[CARDS] = ""
        return "cpu"
    if torch.cuda.is_available():
        return "cuda"
    if wanted == "gpu":
        raise ToolError(
            "Q-CORE-010",
            f"train.device is gpu, and torch {torch.__version__} sees none: install the build for this "
            "machine's (`make setup TORCH=auto`), or set it to auto",
        )
    return "cpu"


def multiplied_in() -> Literal["bfloat16", "float32"]:
    """Return the type in which this CPU multiplies numbers of bfloat16."""
    return "bfloat16" if multiplies_bfloat16() else "float32"


def multiplies_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Return True if the CPU has instructions for products of bfloat16, and PyTorch may use them; False if
    unknown (not Linux).

    Most CPUs of desktops and laptops have none: see `pipeline.models.wide_products`.
    """
    if os.environ.get(LIMIT, "").upper() in WITHOUT_BFLOAT16:
        return False
    return not INSTRUCTIONS.isdisjoint(instructions(cpuinfo))


def instructions(cpuinfo: Path = Path("/proc/cpuinfo")) -> set[str]:
    """Return the CPU's features under their Linux names; empty if unknown."""
    fields = cpu_fields(cpuinfo)
    return {word for kind in ("flags", "Features") for word in fields.get(kind, "").split()}


def cpu_fields(cpuinfo: Path) -> dict[str, str]:
    """Return the fields that Linux reports for the last core, by name; empty if there is no such file."""
    if not cpuinfo.is_file():
        return {}
    fields = (
        line.split(":", 1)
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
        if ":" in line
    )
    return {key.strip(): value.strip() for key, value in fields}
