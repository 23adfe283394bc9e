"""The strategies from a base and data to a model that is served at a level: what each downloads, needs on
disk, ships, and takes while it trains.

Pure arithmetic. Checkpoints and the adapter's folder are alike in all and left out, and so is what only
comparisons take (the untuned base's GGUF).
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

from pipeline.config.sections import LoraType, Quantization, Train
from pipeline.config.targets import LORA_ONLY, merged_only
from pipeline.planning.level_bytes import level_bytes
from pipeline.planning.memory_reductions import Setup
from pipeline.planning.quantized import SCRATCH, quantized_level
from pipeline.planning.shape import Shape
from pipeline.planning.weights import lora_parameters

LORA_BYTES = {"F16": 2, "F32": 4}


@dataclass(frozen=True)
class Strategy:
    """One strategy; bytes. `training` is the memory plan's total, the largest of its trainings, None where
    the level has types that can't be trained on.

    The strategy that a configuration takes is the one with its `quantization` (of the base) and `tuner`, not
    `distilled`: that is more than one run.
    """

    name: str
    download: int
    on_disk: int
    shipped: tuple[int, ...]  # of each file
    training: int | None
    quantization: Quantization
    tuner: Literal["lora", "scales"] = "lora"
    distilled: bool = False


def strategies(setup: Setup, level: str, lora: LoraType = "F16") -> list[Strategy]:
    """The strategies to ship `level` of the model of `setup`, each trained with its settings on its device.

    `setup.quantized` is the level's GGUF where it is known; else its bytes are computed. Those with an
    adapter's GGUF are left out where `train` has what such a file can't hold (`merged_only`).
    """
    shape, train = setup.shape, setup.train
    quantized = setup.quantized or quantized_level(shape, level)
    sixteen, file, adapter = 2 * shape.parameters, quantized.file, lora_bytes(shape, train, lora)
    original = level_bytes(shape, "F16")
    merged = 2 * sixteen + original + file  # base, merged model and GGUFs at once
    default = Train().model_dump()
    trainable = quantized.ggml_types <= set(SCRATCH)

    def memory(quantization: Quantization, tuner: Literal["lora", "scales"] = "lora") -> int:
        changed: dict[str, Any] = {"quantization": quantization, "tuner": tuner}
        if tuner == "scales":
            # what only an adapter has is refused beside it
            changed |= {"keep_quantized": True} | {key: default[key] for key in LORA_ONLY}
        return replace(setup, quantized=quantized).at(setup.max_length, **changed).plan().total

    nf4 = memory("nf4")
    scales = memory("gguf", "scales") if trainable and not shape.experts else None
    source = quantized.made_from or original  # whose answers the level learns
    known = [
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
            f"train on {level} itself",
            quantized.made_from or file,
            quantized.made_from + file + adapter,
            (file, adapter),
            memory("gguf") if trainable else None,
            "gguf",
        ),
        Strategy(
            f"tune the scales of {level} itself",
            quantized.made_from or file,
            quantized.made_from + 2 * file,  # the level and its copy with other scales
            (file,),
            scales,
            "gguf",
            "scales",
        ),
        Strategy(
            f"distill {level}, then tune its scales",
            source,
            source + 3 * file,
            (file,),
            scales,
            "gguf",
            "scales",
            distilled=True,
        ),
        Strategy(
            f"train on NF4, merge, make {level}, distill it",
            sixteen,
            merged + file,
            (file,),
            None if scales is None else max(nf4, scales),
            "nf4",
            distilled=True,
        ),
    ]
    if merged_only(train.model_dump()):
        known = [one for one in known if one.shipped != (file, adapter)]
    # no scales of a mixture can be trained
    return [one for one in known if not shape.experts or (one.tuner == "lora" and not one.distilled)]


def lora_bytes(shape: Shape, train: Train, ggml_type: LoraType) -> int:
    """Bytes of the adapter's GGUF: Σ r·(in + out) × 2 in F16, × 4 in F32; its header is some kilobytes."""
    return lora_parameters(shape, train) * LORA_BYTES[ggml_type]
