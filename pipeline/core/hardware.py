"""What this machine is made of, for the run record: CPU, memory, GPU; nothing that names the machine or its
user.

What can't be found out is None.
"""

import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

from pipeline.core.cpu import cpu_fields, instructions

QUERY = ("name", "memory.total", "driver_version")  # of nvidia-smi
# what Linux calls the instructions that most decide how fast products are, the fastest first; virtual
# machines of one name differ in them
FASTEST = ("amx_bf16", "avx512_bf16", "avx512f", "avx2", "sve", "asimd")


def hardware() -> dict[str, Any]:
    """CPU and its cores (those that this process may use, and all), bytes of memory, the GPUs."""
    import psutil

    return {
        "cpu": cpu_name(),
        "cores": usable_cores(),
        "cores_of_the_machine": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": gpus(),
    }


def usable_cores() -> int | None:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def machine(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """What speeds depend on, in a line: the CPU, its fastest instructions, the cores that this process may
    use, the GPUs.
    """
    known = instructions(cpuinfo)
    parts = [
        cpu_name(cpuinfo) or "an unknown CPU",
        next((name for name in FASTEST if name in known), ""),
        f"{usable_cores()} cores",
    ]
    return ", ".join([*filter(None, parts), *(gpu["name"] for gpu in gpus() or [])])


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str | None:
    """The CPU's name as it gives it itself: on Linux from `cpuinfo`, on macOS from sysctl, else from the
    platform.
    """
    if cpuinfo.is_file():
        names = cpu_fields(cpuinfo)
        return names.get("model name") or names.get("Model") or platform.machine()  # ARM's has no model name
    return _text_of("sysctl", "-n", "machdep.cpu.brand_string") or platform.processor() or None


def gpus() -> list[dict[str, Any]] | None:
    """Name, bytes of memory and driver of each NVIDIA GPU; none without their tool, None if it fails."""
    if not shutil.which("nvidia-smi"):
        return []
    output = _text_of("nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits")
    return None if output is None else [_gpu(line) for line in output.splitlines()]


def _gpu(line: str) -> dict[str, Any]:
    name, mebibytes, driver = (part.strip() for part in line.split(","))
    return {
        "name": name,
        "memory_bytes": int(mebibytes) << 20 if mebibytes.isdigit() else None,
        "driver": driver,
    }


def _text_of(*command: str) -> str | None:
    """A command's output, None if it can't be run or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
