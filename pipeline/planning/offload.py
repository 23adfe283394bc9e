"""What `train.offload_layers` takes off the GPU, and what it copies there (`pipeline.models.offload`)."""

from math import ceil

from pipeline.config.sections import Train, Training
from pipeline.core.cpu import Device
from pipeline.core.errors import ConfigError
from pipeline.planning.quantized import QuantizedBase
from pipeline.planning.shape import Shape
from pipeline.planning.weights import ELEMENT, first_trained, held_quantized

# assumed: bytes a second from pinned memory to the GPU, over PCIe 3.0 × 16 or 4.0 × 8 (15.8 GB/s by the
# standards)
PCIE = 12e9


def check_offload(train: Train, device: Device) -> None:
    """Raise `ConfigError` where weights should be kept off a GPU that there is none of."""
    if train.offload_layers and device == "cpu":
        raise ConfigError(
            "Q-PLANNING-008",
            f"train.offload_layers is {train.offload_layers}, which spares a GPU's memory, and training is "
            "on the CPU: set it to 0",
        )


def offloaded_bytes(shape: Shape, train: Training, quantized: QuantizedBase | None = None) -> list[int]:
    """Bytes in main memory of each of the first `train.offload_layers` layers."""
    return layer_bytes(shape, train, quantized)[: train.offload_layers]


def layer_bytes(shape: Shape, train: Training, quantized: QuantizedBase | None = None) -> list[int]:
    """Bytes of the linears' weights of each layer, of NF4 without the scales."""
    if held := held_quantized(train, quantized):
        return list(held.layers)
    each = sum(
        (ceil(one.weights / 2) if train.quantization == "nf4" else one.weights * element) * one.copies
        for one in shape.linears
        for element in (ELEMENT[train.bnb_4bit_compute_dtype],)
    )
    return [each] * shape.layers


def copied_bytes(
    shape: Shape, train: Training, quantized: QuantizedBase | None = None, *, forwards: float = 0.0
) -> float:
    """Bytes that go to the GPU for a forward and its backward, at most: each offloaded layer once, and again
    from the first that trains on (where a layer is recomputed, that and its backward share a copy).
    `forwards` more are counted on top, as `duration.forwards` has them.
    """
    if not train.offload_layers:
        return 0.0
    layers = offloaded_bytes(shape, train, quantized)
    return sum(layers) * (1 + forwards) + sum(layers[first_trained(shape, train) :])
