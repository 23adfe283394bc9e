"""The disk plan: bytes of everything that training and the stages after it write."""

from collections.abc import Sequence

from pipeline.planning.level_bytes import level_bytes
from pipeline.planning.shape import Shape
from pipeline.planning.ways import lora_bytes
from pipeline.planning.weights import lora_parameters, optimizer_bytes
from pipeline.sections import UNTUNED, LoraType, Training

CACHE = "copies in DVC's cache"
TOKENIZER = 20_000_000  # tokenizer, template and settings beside weights, generously
STATE = 100_000  # of a checkpoint: random state, scheduler, marker


def plan_disk(shape: Shape, train: Training, levels: Sequence[str], lora: LoraType = "F16") -> dict[str, int]:
    """Bytes on disk by artifact: checkpoints (one above `save_total_limit` while it is written), adapter, merged model, GGUFs.

    Trained on a GGUF (`train.quantization` gguf) nothing is merged: what comes is the adapter, in its folder and as a GGUF of type `lora`.
    DVC's cache holds one more copy of each but the checkpoints, unless the file system shares blocks (Btrfs, XFS).
    """
    adapter = 4 * lora_parameters(shape, train)
    checkpoint = adapter + optimizer_bytes(shape, train) + STATE
    sizes = {
        "checkpoints": checkpoint * (train.save_total_limit + 1),
        "adapter": adapter + TOKENIZER,
        "LoRA GGUF": lora_bytes(shape, train, lora),
    }
    if train.quantization != "gguf":
        sizes |= merged_model(shape, levels)
    return sizes | {CACHE: sum(sizes.values()) - sizes["checkpoints"]}


def merged_model(shape: Shape, levels: Sequence[str]) -> dict[str, int]:
    """Bytes of the merged model and of the GGUFs that are made of it and of the untuned base."""
    sizes = {
        "merged model": 2 * shape.parameters + TOKENIZER,
        "F16 GGUF": level_bytes(shape, "F16"),
        "base-F16 GGUF": level_bytes(shape, "F16"),
    }
    return sizes | {f"{level} GGUF": level_bytes(shape, level.removeprefix(UNTUNED)) for level in levels}
