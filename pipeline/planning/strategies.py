"""The strategies from a base and data to a model that is served at a level: what each downloads, needs on
disk, ships, and takes while it trains.

Pure arithmetic. Checkpoints and the adapter's folder are alike in all and left out, and so is what only
comparisons take (the untuned base's GGUF).
"""

from dataclasses import dataclass, replace

from pipeline.config.sections import LoraType, Quantization, Train
from pipeline.planning.level_bytes import level_bytes
from pipeline.planning.memory_reductions import Setup
from pipeline.planning.quantized import SCRATCH, quantized_level
from pipeline.planning.shape import Shape
from pipeline.planning.weights import lora_parameters, tunes_scales

LORA_BYTES = {"F16": 2, "F32": 4}


@dataclass(frozen=True)
class Strategy:
    """One strategy; bytes. `training` is the memory plan's total, None where the level has types that can't
    be trained on.
    """

    name: str
    download: int
    on_disk: int
    shipped: tuple[int, ...]  # of each file
    training: int | None
    quantization: (
        Quantization  # of base.quantization: the strategy that a configuration takes is the one with its own
    )


def strategies(setup: Setup, level: str, lora: LoraType = "F16") -> list[Strategy]:
    """The four strategies to ship `level` of the model of `setup`, each trained with its settings on its
    device.

    `setup.quantized` is the level's GGUF where it is known; else its bytes are computed.
    """
    shape, train = setup.shape, setup.train
    quantized = setup.quantized or quantized_level(shape, level)
    sixteen, file, adapter = 2 * shape.parameters, quantized.file, lora_bytes(shape, train, lora)
    merged = 2 * sixteen + level_bytes(shape, "F16") + file  # base, merged model and GGUFs at once

    def memory(quantization: Quantization) -> int:
        return (
            replace(setup, quantized=quantized).at(setup.max_length, quantization=quantization).plan().total
        )

    nf4 = memory("nf4")
    on_level = memory("gguf") if quantized.ggml_types <= set(SCRATCH) else None
    scaled = tunes_scales(train)  # then the tuned file is all that ships
    return [
        Strategy(f"train unquantized, merge, make {level}", sixteen, merged, (file,), memory("none"), "none"),
        Strategy(f"train on NF4, merge, make {level}", sixteen, merged, (file,), nf4, "nf4"),
        Strategy(
            f"train on NF4, put the adapter on {level}",
            sixteen + file,
            sixteen + file + adapter,
            (file, adapter),
            nf4,
            "nf4",
        ),
        Strategy(
            f"train the scales of {level}" if scaled else f"train on {level} itself",
            quantized.made_from or file,
            quantized.made_from + file + (file if scaled else adapter),
            (file,) if scaled else (file, adapter),
            on_level,
            "gguf",
        ),
    ]


def lora_bytes(shape: Shape, train: Train, ggml_type: LoraType) -> int:
    """Bytes of the adapter's GGUF: Σ r·(in + out) × 2 in F16, × 4 in F32; its header is some kilobytes."""
    return lora_parameters(shape, train) * LORA_BYTES[ggml_type]
