"""What trains here: the GPU that the driver shows, or main memory."""

import os
import shutil
import subprocess
from dataclasses import dataclass

from pipeline.config.sections import Train
from pipeline.core.cpu import Device
from pipeline.core.errors import ToolError
from pipeline.core.units import MEMORY_GB, memory_gb
from pipeline.planning.activations import Loss
from pipeline.planning.steps import needs_gpu


@dataclass(frozen=True)
class Card:
    """A device and its entire memory in bytes."""

    name: str
    memory: int
    device: Device

    @property
    def words(self) -> str:
        """Its name and its memory; that of `--vram` has it in its name."""
        return (
            self.name
            if f" {self.memory / MEMORY_GB:g} GB" in self.name
            else f"{self.name} of {memory_gb(self.memory)}"
        )


def query(*what: str) -> list[list[str]]:
    """What nvidia-smi answers, a list of fields per line. Raises `ToolError` where it fails."""
    try:
        done = subprocess.run(
            ["nvidia-smi", *what, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
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


def first_gpu() -> Card | None:
    """The GPU that training takes: the first one that CUDA_VISIBLE_DEVICES leaves; None if there is none."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not shutil.which("nvidia-smi") or visible in ("", "-1"):
        return None
    chosen = [f"--id={visible.partition(',')[0]}"] if visible else []
    lines = query("--query-gpu=name,memory.total", *chosen)
    return Card(lines[0][0], int(lines[0][1]) << 20, "cuda") if lines else None


def main_memory() -> Card:
    """This machine's main memory, in which a CPU trains."""
    return Card("main memory", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "cpu")


def wants_gpu(train: Train) -> bool:
    """Whether the settings say that training is for a GPU."""
    return train.loss == "liger" or needs_gpu(train.optim) or train.offload_layers > 0


def loss_on(device: Device, train: Train, *, mixture: bool = False) -> Loss:
    """`train.loss` on a device: auto is liger on a GPU, chunked on a CPU, for a mixture of experts and where
    norms train.
    """
    if train.loss == "auto":
        return "liger" if device == "cuda" and not mixture and not train.modules_to_save else "chunked"
    return train.loss
