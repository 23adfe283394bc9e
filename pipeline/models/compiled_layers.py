"""Compile the layers of a model for training (`train.compile`), each layer by the same graphs.

A layer is the region that repeats, so compiling takes as long for many layers as for two: the first one's
input may need no gradient, all others use the same graphs. The number of tokens is a symbol in a graph, so
packed rows of other lengths need no graph of their own. A row alone, which has no mask, needs one.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from pipeline.models import row_attention

# Kernels are chosen by rules, not by trying them out, which would choose others in a resumed run.
OPTIONS: dict[str, Any] = {"deterministic": True}


def compile_layers(model: Any) -> None:
    """Compile the forward and the backward of each layer of `model`, a causal language model with what trains
    on it. Nothing is compiled before a layer's first forward.

    A forward without gradients is the layer's own: it evaluates or draws answers, where the length of a cache
    and the layer's number would be part of the graph.
    """
    if model.config._attn_implementation == row_attention.NAME:
        # The lengths of a pack's rows would be part of the graph, so that each pack would need another.
        from transformers import AttentionInterface

        eager = torch.compiler.disable(row_attention.attention)  # type: ignore[no-untyped-call]
        AttentionInterface.register(row_attention.NAME, eager)
    for layer in model.model.layers:
        layer.forward = _compiled(layer)


def _compiled(layer: Any) -> Callable[..., Any]:
    """Return the forward of a layer with gradients compiled, without them its own.

    Transformers checkpoints within a layer's forward, and nothing in a checkpoint is compiled if a part of it
    can't be. So the forward within the checkpoint is compiled here, and the checkpoint is around it.
    """
    plain = layer.forward
    of_class = type(layer).forward
    whole: Callable[..., Any] = torch.compile(
        getattr(of_class, "__wrapped__", of_class).__get__(layer), dynamic=True, options=OPTIONS
    )
    if "forward" in vars(layer):  # `stop_gradients` runs this layer without autograd.
        whole = torch.no_grad()(whole)  # type: ignore[no-untyped-call]

    def forward(*inputs: Any, **more: Any) -> Any:
        if not torch.is_grad_enabled():
            return plain(*inputs, **more)
        if layer.training and getattr(layer, "gradient_checkpointing", False):
            return layer._gradient_checkpointing_func(partial(whole, **more), *inputs)
        return whole(*inputs, **more)

    return forward
