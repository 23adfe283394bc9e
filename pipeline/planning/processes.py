"""What it takes of one card's memory that several processes train, and what `train.shard_base` takes off it
(`pipeline.stages.train.several`, `pipeline.models.sharded`).
"""

from pipeline.config.sections import Training
from pipeline.planning.offload import layer_bytes
from pipeline.planning.quantized import QuantizedBase
from pipeline.planning.shape import Shape

# estimated, not measured on GPUs: the layer that runs, the next, which FSDP2 gathers ahead, and what it
# gathers into
GATHERED = 3


def exchanged_bytes(trained: int, processes: int) -> int:
    """Bytes beside gradients of `trained` bytes: all of a round in one piece, what the others send, and this
    process's part of the sum.
    """
    return 0 if processes == 1 else 2 * trained + trained // processes


def shared_bytes(
    shape: Shape, train: Training, quantized: QuantizedBase | None, processes: int
) -> tuple[int, int]:
    """(bytes of the layers' linears that other processes hold, bytes of the layers that are put together at
    once); (0, 0) where every process has them all.
    """
    if not train.shard_base or processes == 1:
        return 0, 0
    layers = layer_bytes(shape, train, quantized)
    return sum(layers) - sum(layers) // processes, min(GATHERED * max(layers), sum(layers))
