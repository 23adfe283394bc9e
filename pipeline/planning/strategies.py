"""The ways from a base and data to a model that is served at a level: what each downloads, needs on disk, ships, and takes while it trains.

Pure arithmetic. Checkpoints and the adapter's folder are alike in all and left out, and so is what only comparisons take (the untuned base's GGUF).
"""

from dataclasses import dataclass, replace

from pipeline.config.sections import LoraType, Quantization, Train
from pipeline.planning.level_bytes import level_bytes
from pipeline.planning.memory_reductions import Setup
from pipeline.planning.quantized import SCRATCH, packed_level
from pipeline.planning.shape import Shape
from pipeline.planning.weights import lora_parameters

SIXTEEN = 2  # bytes of a weight in 16 bit
LORA_BYTES = {"F16": 2, "F32": 4}


@dataclass(frozen=True)
class Way:
    """One way; bytes. `training` is the memory plan's total, None where the level has types that can't be trained on."""

    name: str
    download: int
    on_disk: int
    shipped: tuple[int, ...]  # of each file
    training: int | None
    quantization: Quantization  # of base.quantization: the way that a configuration takes is the one with its own


def ways(setup: Setup, level: str, lora: LoraType = "F16") -> list[Way]:
    """The four ways to ship `level` of the model of `setup`, each trained with its settings on its device.

    `setup.packed` is the level's GGUF where it is known; else its bytes are computed.
    """
    shape, train = setup.shape, setup.train
    packed = setup.packed or packed_level(shape, level)
    sixteen, file, adapter = sixteen_bytes(shape), packed.file, lora_bytes(shape, train, lora)
    merged = merged_disk(shape, file)

    def memory(quantization: Quantization) -> int:
        return replace(setup, packed=packed).at(setup.max_length, quantization=quantization).plan().total

    nf4 = memory("nf4")
    on_level = memory("gguf") if packed.kinds <= set(SCRATCH) else None
    return [
        Way(f"train unquantised, merge, make {level}", sixteen, merged, (file,), memory("none"), "none"),
        Way(f"train on NF4, merge, make {level}", sixteen, merged, (file,), nf4, "nf4"),
        Way(f"train on NF4, put the adapter on {level}", sixteen + file, sixteen + file + adapter, (file, adapter), nf4, "nf4"),
        Way(f"train on {level} itself", packed.made_from or file, packed.made_from + file + adapter, (file, adapter), on_level, "gguf"),
    ]


def sixteen_bytes(shape: Shape) -> int:
    """Bytes of the base's 16-bit weights: parameters × 2."""
    return shape.parameters * SIXTEEN


def lora_bytes(shape: Shape, train: Train, kind: LoraType) -> int:
    """Bytes of the adapter's GGUF: Σ r·(in + out) × 2 in F16, × 4 in F32; its header is some kilobytes."""
    return lora_parameters(shape, train) * LORA_BYTES[kind]


def merged_disk(shape: Shape, level: int) -> int:
    """Bytes on disk at once where the adapter is merged: base, merged model, 16-bit GGUF (as large again, and its header), and `level`'s bytes."""
    return 2 * sixteen_bytes(shape) + level_bytes(shape, "F16") + level
