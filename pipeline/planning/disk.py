"""The disk plan: bytes of everything that training and the stages after it write."""

from collections.abc import Sequence

from pipeline.llamacpp.levels import split_level
from pipeline.planning.shape import Shape
from pipeline.planning.weights import lora_parameters, optimizer_bytes
from pipeline.sections import UNTUNED, Train

# bits per weight of whole files, Llama-3.1-8B (llama.cpp, tools/quantize/README.md)
BITS = {
    "Q2_K": 3.1593, "Q3_K_S": 3.6429, "Q3_K_M": 3.9960, "Q3_K_L": 4.2979, "IQ3_XXS": 3.2548, "IQ3_XS": 3.4977, "IQ3_S": 3.6606,
    "IQ3_M": 3.7628, "IQ4_XS": 4.4597, "IQ4_NL": 4.6818, "Q4_K_S": 4.6672, "Q4_K_M": 4.8944, "Q5_K_S": 5.5704, "Q5_K_M": 5.7036,
    "Q6_K": 6.5633, "Q8_0": 8.5008,
}  # fmt: skip
OTHER_BITS = 8.5008  # a level that isn't listed: the widest that is
K_BLOCK = 256  # weights in a block of the K types; narrower rows fall back to wider types
CACHE = "copies in DVC's cache"
TOKENIZER = 20_000_000  # tokenizer, template and settings beside weights, generously
STATE = 100_000  # of a checkpoint: random state, scheduler, marker


def plan_disk(shape: Shape, train: Train, levels: Sequence[str]) -> dict[str, int]:
    """Bytes on disk by artifact: checkpoints (one above `save_total_limit` while it is written), adapter, merged model, GGUFs.

    DVC's cache holds one more copy of each but the checkpoints, unless the file system shares blocks (Btrfs, XFS).
    """
    adapter = 4 * lora_parameters(shape, train)
    checkpoint = adapter + optimizer_bytes(shape, train) + STATE
    whole = 2 * shape.parameters
    falls_back = any(width % K_BLOCK for width in (shape.hidden, shape.queries, shape.intermediate))
    sizes = {
        "checkpoints": checkpoint * (train.save_total_limit + 1),
        "adapter": adapter + TOKENIZER,
        "merged model": whole + TOKENIZER,
        "F16 GGUF": whole,
        "base-F16 GGUF": whole,
        "LoRA GGUF": adapter // 2,
    }
    for level in levels:
        bits = OTHER_BITS if falls_back else BITS.get(split_level(level.removeprefix(UNTUNED))[0], OTHER_BITS)
        sizes[f"{level} GGUF"] = int(shape.parameters * bits / 8)
    return sizes | {CACHE: sum(sizes.values()) - sizes["checkpoints"]}
