"""Keep the frozen weights of the first layers in main memory (`train.offload: 14`). They are copied to the
GPU when their layer runs, in the forward and again in the backward, and dropped when another layer's are
needed.

llama.cpp does the same with the layers that `-ngl` leaves to the CPU if a batch is large enough (32 tokens,
`ggml_backend_offload_op`): copying the weights costs less than computing on the CPU. The same operations run
on the same numbers, so losses and adapters are those of a run without it.

A weight has one parameter on the GPU for the entire run, whose memory is allocated and freed (as that of
PyTorch's FSDP). What autograd or bitsandbytes (`MatMul4Bit` keeps the weight itself, under checkpointing too)
has saved for the backward is a view of it, and is valid again once it is filled.
"""

from copy import copy
from typing import Any

import torch


def offload(model: Any, count: int) -> "Resident":
    """Move the frozen linears of the first `count` layers of `model`, a causal language model with what
    trains on it, to main memory; what trains stays on the device of the head.

    Biases, norms and NF4's scales, which are small, stay there too.
    """
    device = model.get_output_embeddings().weight.device
    resident = Resident()
    # A model's device is that of its first parameter, and the embeddings may be in main memory too.
    place = torch.nn.Parameter(torch.empty(0, device=device), requires_grad=False)
    model.get_input_embeddings().register_parameter("place", place)
    for number, layer in enumerate(model.model.layers[:count]):
        for parameter in layer.parameters():
            if parameter.requires_grad:  # PEFT puts an adapter on the device of its linear's weight.
                parameter.data = parameter.data.to(device)
        for module in list(layer.modules()):
            if is_frozen_linear(module):
                OffloadedWeight(module, number, resident, device)
        # The backward recomputes a layer without its hooks, so the weights stay until the next layer's are
        # needed.
        layer.register_forward_hook(lambda *_: resident.drop())
    return resident


def is_frozen_linear(module: Any) -> bool:
    """Return True for a linear whose weight doesn't train. PEFT's wrapper is not a linear itself."""
    return (
        hasattr(module, "in_features")
        and not hasattr(module, "base_layer")
        and not module.weight.requires_grad
    )


class Resident:
    """Weights that are on the device now, all of one layer. `copies` counts the copies so far."""

    def __init__(self) -> None:
        self.layer = -1
        self.filled = set[OffloadedWeight]()
        self.copies = 0

    def need(self, weight: "OffloadedWeight") -> None:
        """Copy `weight` to the device, and drop the weights of another layer."""
        if weight.layer != self.layer:
            self.drop()
            self.layer = weight.layer
        if weight not in self.filled:
            weight.fill()
            self.filled.add(weight)
            self.copies += 1

    def drop(self) -> None:
        """Free the weights on the device. Their memory is used again in the order of its stream, so kernels
        that still read are not disturbed.
        """
        for weight in self.filled:
            weight.on_device.untyped_storage().resize_(0)
        self.filled.clear()


class OffloadedWeight:
    """Weight of `linear`, in main memory; a parameter on `device` only while the linear computes."""

    def __init__(self, linear: Any, layer: int, resident: Resident, device: torch.device) -> None:
        self.linear = linear
        self.layer = layer
        self.resident = resident
        self.at_rest = linear.weight
        self.compute = linear.forward
        host = self.at_rest.data.cpu().contiguous()
        if device.type == "cuda":  # A GPU can read pinned pages by itself.
            host = host.pin_memory()
        self.at_rest.data = host
        values = torch.empty_like(host, device=device)
        self.bytes = values.untyped_storage().nbytes()
        self.on_device = like(self.at_rest, values)
        values.untyped_storage().resize_(0)
        linear.forward = self.forward
        linear._apply = lambda *_, **__: linear  # Moving the model must not move this linear.

    def fill(self) -> None:
        """Copy the weight to the device. Autograd doesn't see it: these are the numbers that it knows."""
        self.on_device.untyped_storage().resize_(self.bytes)
        self.on_device.data.copy_(self.at_rest.data, non_blocking=True)

    def forward(self, *inputs: Any, **more: Any) -> Any:
        """Return the linear's output. Its part of a backward has the weight on the device again."""
        self.resident.need(self)
        self.linear.weight = self.on_device
        try:  # An exception stops a recomputation early.
            output = self.compute(*inputs, **more)
        finally:
            self.linear.weight = self.at_rest
        if output.grad_fn is not None:
            output.grad_fn.register_prehook(lambda _: self.resident.need(self))
        return output


def like(weight: Any, values: torch.Tensor) -> Any:
    """Return a frozen parameter with `values` and, for bitsandbytes' kind, the quantization of `weight`."""
    if not hasattr(weight, "quant_state"):
        return torch.nn.Parameter(values, requires_grad=False)
    parameter = copy(weight)
    parameter.data = values
    return parameter
