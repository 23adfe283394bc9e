"""The frozen weights of the layers shared out among the processes of a training (`train.offload`), for
bases that don't fit one card: each process keeps a part of the rows of every matrix, and PyTorch's FSDP2 puts
a layer together while it runs, in the forward and again in the backward.

Only weights of frozen linears are shared out, in whatever they are stored: NF4, a GGUF's blocks or 16 bit.
They are bytes that never change, so FSDP2 only ever gathers. Embeddings, norms, NF4's scales and what
trains are whole in every process; gradients are added up as without it, to the same bytes.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from pipeline.models.offload import is_frozen_linear


def shard(model: Any, device: torch.device) -> int:
    """Share out the frozen linears of `model`, a causal language model in main memory with what trains on
    it, among all processes, and put this one's part and all the rest on `device`. The bytes of its part.

    The processes must have met (`dist.init_process_group`). From here on a layer runs in all of them at once,
    or in none.
    """
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    linears = [
        module for layer in model.model.layers for module in layer.modules() if is_frozen_linear(module)
    ]
    for linear in linears:
        # bitsandbytes' kind of parameter would be divided into more of its kind; its linear, which has the
        # scales too, makes one again of what it finds
        linear.weight = torch.nn.Parameter(linear.weight.data, requires_grad=False)
    # by id: a reference to a weight would keep all of it on the device, where FSDP2 divides it
    shared = {id(linear.weight) for linear in linears}
    whole = {parameter for parameter in model.parameters() if id(parameter) not in shared}
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, ignored_params=whole)
    fully_shard(model.model, mesh=mesh, ignored_params=whole)  # has no more to share out, and plans ahead
    for parameter in model.parameters():
        if not isinstance(parameter, DTensor):
            parameter.data = parameter.data.to(device)
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(device))
        if (state := getattr(module, "quant_state", None)) is not None and not hasattr(module, "base_layer"):
            state.to(device)
    parts = [parameter.to_local() for parameter in model.parameters() if isinstance(parameter, DTensor)]
    return sum(part.numel() * part.element_size() for part in parts)
