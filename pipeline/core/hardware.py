"""The hardware of this machine: CPU, memory, GPUs. Nothing here identifies the machine or its user.

Set-up, doctor, plan and the run record read it. It needs only the standard library, because it runs before
anything is installed. Unknown values are None.
"""

import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pipeline.core.cpu import CARDS, Device, cpu_fields, instructions
from pipeline.core.errors import ToolError
from pipeline.core.units import MEMORY_GB, memory_gb

QUERY = ("name", "memory.total", "driver_version", "compute_cap")  # fields that nvidia-smi is queried for
# CPU features that most decide how fast products are, the fastest first, under their Linux names. Virtual
# machines of one name differ in them.
FASTEST = ("amx_bf16", "avx512_bf16", "avx512f", "avx2", "sve", "asimd")


@dataclass(frozen=True)
class Accelerator:
    """A GPU as its driver's tool reports it.

    `memory` is in bytes, None if the GPU shares the machine's. `capability` is "8.9" for an NVIDIA card,
    "gfx1100" for an AMD one.
    """

    kind: Literal["cuda", "rocm"]
    name: str
    memory: int | None = None
    driver: str | None = None
    capability: str | None = None


@dataclass(frozen=True)
class Card:
    """A device that trains or serves, and its entire memory in bytes."""

    name: str
    memory: int
    device: Device

    @property
    def words(self) -> str:
        """Its name and its memory; a card given with `--vram` has the memory in its name."""
        in_name = f" {self.memory / MEMORY_GB:g} GB" in self.name
        return self.name if in_name else f"{self.name} of {memory_gb(self.memory)}"


def first_gpu() -> Card | None:
    """Return the GPU that training uses; None if there is none.

    If it shares main memory, all of that counts as its own.
    """
    gpu = accelerator()
    return Card(gpu.name, gpu.memory or main_memory().memory, "cuda") if gpu else None


def main_memory() -> Card:
    """Return this machine's main memory, in which a CPU trains."""
    return Card("main memory", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "cpu")


def accelerator() -> Accelerator | None:
    """Return this process's GPU: the first that CUDA_VISIBLE_DEVICES leaves; None if there is none.

    Raises `ToolError` if nvidia-smi is installed and fails.
    """
    visible = os.environ.get(CARDS)
    if visible in ("", "-1", "NoDevFiles"):  # SLURM sets NoDevFiles
        return None
    selected = [f"--id={visible.partition(',')[0]}"] if visible else []
    return next(iter(_accelerators(*selected)), None)


def _accelerators(*which: str) -> list[Accelerator]:
    """Return NVIDIA's GPUs, or AMD's if there is no nvidia-smi."""
    if shutil.which("nvidia-smi"):
        try:
            lines = nvidia_smi(f"--query-gpu={','.join(QUERY)}", *which)
        except ToolError:  # Drivers before 510 don't know compute_cap; a broken driver fails again.
            lines = nvidia_smi(f"--query-gpu={','.join(QUERY[:-1])}", *which)
        return [_of_nvidia(*line[: len(QUERY)]) for line in lines]
    return _of_rocm(_text_of("rocminfo") or "")


def nvidia_smi(*what: str) -> list[list[str]]:
    """Return nvidia-smi's answer, a list of fields per line. Raises `ToolError` if it fails."""
    try:
        done = subprocess.run(
            ["nvidia-smi", *what, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired as error:
        raise ToolError(
            "Q-PLANNING-003", "nvidia-smi doesn't answer within 30 s: fix the driver, or restart the machine"
        ) from error
    if done.returncode != 0:
        raise ToolError(
            "Q-PLANNING-003",
            f"nvidia-smi fails ({' '.join((done.stderr or done.stdout).split())[:200]}): fix the driver",
        )
    return [[field.strip() for field in line.split(",")] for line in done.stdout.splitlines() if line.strip()]


def _of_nvidia(name: str, mebibytes: str = "", driver: str = "", capability: str = "") -> Accelerator:
    memory = int(mebibytes) << 20 if mebibytes.isdigit() else None
    known_capability = capability if re.fullmatch(r"\d+\.\d+", capability) else None
    return Accelerator("cuda", name, memory, driver or None, known_capability)


def _of_rocm(listing: str) -> list[Accelerator]:
    """Return the GPUs among rocminfo's agents. It reports the size of a memory pool in KB."""
    cards = []
    for agent in re.split(r"^Agent \d+", listing, flags=re.MULTILINE)[1:]:
        names = dict(re.findall(r"^ {2}(Name|Marketing Name|Device Type): +(.+?) *$", agent, re.MULTILINE))
        if names.get("Device Type") == "GPU":
            pool = re.search(r"Segment: +GLOBAL.*?Size: +(\d+)", agent, re.DOTALL)
            name = names.get("Marketing Name") or names["Name"]
            memory = int(pool[1]) << 10 if pool else None
            cards.append(Accelerator("rocm", name, memory, capability=names["Name"]))
    return cards


def hardware() -> dict[str, Any]:
    """Return the CPU, its cores (usable by this process, and all), bytes of memory, and the GPUs."""
    import psutil

    return {
        "cpu": cpu_name(),
        "cores": usable_cores(),
        "cores_of_the_machine": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": gpus(),
    }


def usable_cores() -> int | None:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def machine(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return a line with all that speeds depend on.

    It contains the CPU, its fastest instructions, the usable cores and the GPUs.
    """
    features = instructions(cpuinfo)
    parts = [
        cpu_name(cpuinfo) or "an unknown CPU",
        next((name for name in FASTEST if name in features), ""),
        f"{usable_cores()} cores",
    ]
    return ", ".join([*filter(None, parts), *(gpu["name"] for gpu in gpus() or [])])


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str | None:
    """Return the CPU's own name: from `cpuinfo` on Linux, sysctl on macOS, otherwise from the platform."""
    if cpuinfo.is_file():
        names = cpu_fields(cpuinfo)
        return names.get("model name") or names.get("Model") or platform.machine()  # ARM lists no model name
    return _text_of("sysctl", "-n", "machdep.cpu.brand_string") or platform.processor() or None


def gpus() -> list[dict[str, Any]] | None:
    """Return name, bytes of memory and driver of each GPU.

    It is an empty list without their tool, None if the tool fails.
    """
    try:
        return [
            {"name": card.name, "memory_bytes": card.memory, "driver": card.driver}
            for card in _accelerators()
        ]
    except (ToolError, OSError):
        return None


def _text_of(*command: str) -> str | None:
    """Return a command's output; None if it can't be run or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
