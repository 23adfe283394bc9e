"""The disk plan: bytes of everything that training and the stages after it write."""

from collections.abc import Sequence

from pipeline.planning.level_bytes import level_bytes
from pipeline.planning.shape import Shape
from pipeline.planning.weights import lora_parameters, optimizer_bytes
from pipeline.sections import UNTUNED, Train

CACHE = "copies in DVC's cache"
TOKENIZER = 20_000_000  # tokenizer, template and settings beside weights, generously
STATE = 100_000  # of a checkpoint: random state, scheduler, marker


def plan_disk(shape: Shape, train: Train, levels: Sequence[str]) -> dict[str, int]:
    """Bytes on disk by artifact: checkpoints (one above `save_total_limit` while it is written), adapter, merged model, GGUFs.

    DVC's cache holds one more copy of each but the checkpoints, unless the file system shares blocks (Btrfs, XFS).
    """
    adapter = 4 * lora_parameters(shape, train)
    checkpoint = adapter + optimizer_bytes(shape, train) + STATE
    sizes = {
        "checkpoints": checkpoint * (train.save_total_limit + 1),
        "adapter": adapter + TOKENIZER,
        "merged model": 2 * shape.parameters + TOKENIZER,
        "F16 GGUF": level_bytes(shape, "F16"),
        "base-F16 GGUF": level_bytes(shape, "F16"),
        "LoRA GGUF": adapter // 2,
    }
    sizes |= {f"{level} GGUF": level_bytes(shape, level.removeprefix(UNTUNED)) for level in levels}
    return sizes | {CACHE: sum(sizes.values()) - sizes["checkpoints"]}
