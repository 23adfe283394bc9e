"""The frozen weights of the first layers in main memory (`train.offload: 14`): copied to the GPU when
their layer runs, in the forward and again in the backward, and dropped when another layer's are needed.

So llama.cpp treats the layers that `-ngl` leaves to the CPU when a batch is large enough (32 tokens,
`ggml_backend_offload_op`): to copy weights costs less than to compute where they lie. The same operations run
on the same numbers, so losses and adapters are those of a run without it.

A weight has one parameter on the GPU for the entire run, whose memory comes and goes (as that of PyTorch's
FSDP does). What autograd or bitsandbytes (`MatMul4Bit` keeps the weight itself, under checkpointing too) has
put aside for the backward is a view of it, and is there again once it is filled.
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
    # a model takes its first parameter's device for its own, and the embeddings may be in main memory too
    place = torch.nn.Parameter(torch.empty(0, device=device), requires_grad=False)
    model.get_input_embeddings().register_parameter("place", place)
    for number, layer in enumerate(model.model.layers[:count]):
        for parameter in layer.parameters():
            if parameter.requires_grad:  # PEFT puts an adapter where its linear's weight is
                parameter.data = parameter.data.to(device)
        for module in list(layer.modules()):
            if is_frozen_linear(module):
                OffloadedWeight(module, number, resident, device)
        # where the backward recomputes a layer it runs without its hooks, so the weights stay until the next
        layer.register_forward_hook(lambda *_: resident.drop())
    return resident


def is_frozen_linear(module: Any) -> bool:
    """Whether this is a linear (PEFT's wrapping is none itself) whose weight doesn't train."""
    return (
        hasattr(module, "in_features")
        and not hasattr(module, "base_layer")
        and not module.weight.requires_grad
    )


class Resident:
    """The weights that are on the device now, all of one layer. `copies` counts what was copied so far."""

    def __init__(self) -> None:
        self.layer, self.filled, self.copies = -1, set[OffloadedWeight](), 0

    def need(self, weight: "OffloadedWeight") -> None:
        """Have `weight` on the device, and none of another layer."""
        if weight.layer != self.layer:
            self.drop()
            self.layer = weight.layer
        if weight not in self.filled:
            weight.fill()
            self.filled.add(weight)
            self.copies += 1

    def drop(self) -> None:
        """Free what the device holds. Its memory is used again in the order of its stream, so kernels that
        still read are not disturbed.
        """
        for weight in self.filled:
            weight.on_device.untyped_storage().resize_(0)
        self.filled.clear()


class OffloadedWeight:
    """The weight of `linear`: in main memory, but while the linear computes it is a parameter on `device`."""

    def __init__(self, linear: Any, layer: int, resident: Resident, device: torch.device) -> None:
        self.linear, self.layer, self.resident = linear, layer, resident
        self.at_rest, self.compute = linear.weight, linear.forward
        host = self.at_rest.data.cpu().contiguous()
        # for a GPU in pages that it can read by itself
        self.at_rest.data = host = host.pin_memory() if device.type == "cuda" else host
        values = torch.empty_like(host, device=device)
        self.bytes = values.untyped_storage().nbytes()
        self.on_device = like(self.at_rest, values)
        values.untyped_storage().resize_(0)
        linear.forward = self.forward
        linear._apply = lambda *_, **__: linear  # what moves the model must not take it along

    def fill(self) -> None:
        """Copy the weight to the device. Autograd doesn't see it: these are the numbers that it knows."""
        self.on_device.untyped_storage().resize_(self.bytes)
        self.on_device.data.copy_(self.at_rest.data, non_blocking=True)

    def forward(self, *inputs: Any, **more: Any) -> Any:
        """What the linear computes; its part of a backward has the weight on the device again."""
        self.resident.need(self)
        self.linear.weight = self.on_device
        try:  # a recomputation is cut short by an exception
            output = self.compute(*inputs, **more)
        finally:
            self.linear.weight = self.at_rest
        if output.grad_fn is not None:
            output.grad_fn.register_prehook(lambda _: self.resident.need(self))
        return output


def like(weight: Any, values: torch.Tensor) -> Any:
    """A frozen parameter with `values` and, of bitsandbytes' kind, the quantization of `weight`."""
    if not hasattr(weight, "quant_state"):
        return torch.nn.Parameter(values, requires_grad=False)
    parameter = copy(weight)
    parameter.data = values
    return parameter
