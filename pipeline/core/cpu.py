"""Which type training computes in where `train.bnb_4bit_compute_dtype` leaves it to the machine.

bfloat16 halves the memory of float32 and is as fast or faster where the hardware multiplies it. A CPU that
doesn't, as most in desktops and laptops, is ten times slower in it than in float32, and more: torch has no
kernel for it there but a plain loop.
"""

import os
from pathlib import Path
from typing import Literal

from pipeline.core.errors import ToolError

ComputeDtype = Literal["bfloat16", "float16", "float32"]
Device = Literal["cuda", "cpu"]
CARDS = "CUDA_VISIBLE_DEVICES"
# as Linux names what multiplies bfloat16: x86's AVX512-BF16 and AMX-BF16 (x86's are `flags`), ARM's FEAT_BF16
# (ARM's are `Features`)
INSTRUCTIONS = {"avx512_bf16", "amx_bf16", "bf16"}


def training_device(wanted: Literal["auto", "cpu", "gpu"] = "auto") -> Device:
    """What torch, which this imports, trains on here; `cpu` hides the GPUs from this process.

    Raises `ToolError` where a `gpu` is wanted and torch sees none.
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


def fast_dtype(device: Device) -> ComputeDtype:
    """bfloat16 on a GPU and on a CPU that multiplies it, else float32."""
    return "bfloat16" if device == "cuda" or multiplies_bfloat16() else "float32"


def multiplies_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the CPU has instructions for products of bfloat16; False if unknown (not Linux)."""
    return not INSTRUCTIONS.isdisjoint(instructions(cpuinfo))


def instructions(cpuinfo: Path = Path("/proc/cpuinfo")) -> set[str]:
    """What the CPU can do, as Linux names it; empty if unknown."""
    fields = cpu_fields(cpuinfo)
    return {word for kind in ("flags", "Features") for word in fields.get(kind, "").split()}


def cpu_fields(cpuinfo: Path) -> dict[str, str]:
    """What Linux says of the last core, by name; nothing if there is no such file."""
    if not cpuinfo.is_file():
        return {}
    fields = (
        line.split(":", 1)
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
        if ":" in line
    )
    return {key.strip(): value.strip() for key, value in fields}
