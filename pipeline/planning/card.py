"""What trains here: the GPU that the driver shows, or main memory."""

import os
from dataclasses import dataclass

from pipeline.config.sections import Train
from pipeline.core.cpu import Device
from pipeline.core.hardware import accelerator
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


def first_gpu() -> Card | None:
    """The GPU that training takes; None if there is none. One that shares the machine's memory has all of
    it.
    """
    found = accelerator()
    return Card(found.name, found.memory or main_memory().memory, "cuda") if found else None


def main_memory() -> Card:
    """This machine's main memory, in which a CPU trains."""
    return Card("main memory", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "cpu")


def wants_gpu(train: Train) -> bool:
    """Whether the settings say that training is for a GPU."""
    return (
        train.device == "gpu" or train.loss == "liger" or needs_gpu(train.optim) or train.offload_layers > 0
    )


def loss_on(device: Device, train: Train, *, mixture: bool = False) -> Loss:
    """`train.loss` on a device: auto is liger on a GPU, chunked on a CPU, for a mixture of experts and where
    norms train.
    """
    if train.loss == "auto":
        return "liger" if device == "cuda" and not mixture and not train.modules_to_save else "chunked"
    return train.loss
