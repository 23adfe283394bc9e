"""Shard the frozen weights of the layers over the processes of a training (`train.offload`), for bases that
don't fit one card. Each process keeps a part of the rows of every matrix. PyTorch's FSDP2 gathers a layer
while it runs, in the forward and again in the backward.

Only weights of frozen linears are sharded, in the format they are stored in: NF4, a GGUF's blocks or 16 bit.
They are bytes that never change, so FSDP2 only ever gathers. Embeddings, norms, NF4's scales and what trains
are whole in every process. Gradients are summed as without it, to the same bytes.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from pipeline.models.offload import is_frozen_linear


def shard(model: Any, device: torch.device) -> int:
    """Shard the frozen linears of `model`, a causal language model in main memory with what trains on it,
    over all processes, and put this process's part and all the rest on `device`. Return the bytes of its
    part.

    The processes must have met (`dist.init_process_group`). From here on a layer runs in all of them at once,
    or in none.
    """
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    linears = [
        module for layer in model.model.layers for module in layer.modules() if is_frozen_linear(module)
    ]
    for linear in linears:
        # bitsandbytes' kind of parameter would be split into more of its kind. Its linear, which has the
        # scales too, converts what it finds back to that kind.
        linear.weight = torch.nn.Parameter(linear.weight.data, requires_grad=False)
    # Compared by id: a reference to a weight would keep all of it on the device when FSDP2 splits it.
    shared = {id(linear.weight) for linear in linears}
    whole = {parameter for parameter in model.parameters() if id(parameter) not in shared}
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, ignored_params=whole)
    # This has nothing more to shard; it plans the prefetching.
    fully_shard(model.model, mesh=mesh, ignored_params=whole)
    for parameter in model.parameters():
        if not isinstance(parameter, DTensor):
            parameter.data = parameter.data.to(device)
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(device))
        state = getattr(module, "quant_state", None)
        if state is not None and not hasattr(module, "base_layer"):
            state.to(device)
    parts = [parameter.to_local() for parameter in model.parameters() if isinstance(parameter, DTensor)]
    return sum(part.numel() * part.element_size() for part in parts)
