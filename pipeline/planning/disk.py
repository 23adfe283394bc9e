"""The disk plan: bytes of everything that training and the stages after it write."""

from collections.abc import Mapping, Sequence

from pipeline.config.sections import UNTUNED, LoraType, Training
from pipeline.planning.budget import file_bytes
from pipeline.planning.quantized import QuantizedBase
from pipeline.planning.rollouts import made_file
from pipeline.planning.shape import Shape
from pipeline.planning.weights import lora_bytes, optimizer_bytes, trained_tensors, tunes_scales

CACHE = "copies in DVC's cache"
BASE = "base"
TOKENIZER = 20_000_000  # tokenizer, template and settings beside weights, generously
STATE = 100_000  # of a checkpoint: random state, scheduler, marker


def plan_disk(
    shape: Shape,
    train: Training,
    levels: Sequence[str],
    lora: LoraType = "F16",
    *,
    untuned: bool = True,
    base: int | None = None,
    quantized: QuantizedBase | None = None,
) -> dict[str, int]:
    """Bytes on disk by artifact: checkpoints (one above `save_total_limit` while it is written), adapter,
    merged model, GGUFs.

    Trained on a GGUF (`train.quantization` gguf) nothing is merged: what comes is the adapter, in its folder
    and as a GGUF of type `lora`, or the base's file with trained scales (`quantized`).
    `untuned` says whether the untuned base's 16-bit GGUF is made. `BASE` is
    what is there before (`base` bytes, by default its 16-bit weights). DVC's cache holds one more copy of
    each but the checkpoints, and of the base, whatever `uncached` says: it remembers runs with all that they
    made. None where the file system shares blocks (Btrfs, XFS).
    """
    adapter = 4 * sum(trained_tensors(shape, train, quantized))
    checkpoint = adapter + optimizer_bytes(shape, train, quantized) + STATE
    if tunes_scales(train):
        assert quantized  # else `trained_tensors` would have said so
        made = {"tuned GGUF": quantized.file}
    else:
        made = {"LoRA GGUF": lora_bytes(shape, train, lora)}
    sizes = {
        "checkpoints": checkpoint * (train.save_total_limit + 1),
        "adapter": adapter + TOKENIZER,
        **made,
    }
    if train.quantization != "gguf":
        sizes["merged model"] = 2 * shape.parameters + TOKENIZER
        for level in ("F16", *(["base-F16"] if untuned else []), *levels):
            sizes[f"{level} GGUF"] = file_bytes(shape, level.removeprefix(UNTUNED))
    before = 2 * shape.parameters if base is None else base
    copies = sum(sizes.values()) - sizes["checkpoints"] + (quantized.file if quantized else before)
    if rollouts := made_file(shape, train):
        sizes["GGUF for rollouts"] = rollouts  # among the checkpoints
    return sizes | {BASE: before, CACHE: copies}


def own_bytes(sizes: Mapping[str, int]) -> int:
    """What training and the stages after it write, of `plan_disk`: neither the base nor DVC's copies."""
    return sum(size for name, size in sizes.items() if name not in (BASE, CACHE))
