"""Layers below the first that trains: forward only.

Nothing before it learns, so its input needs no gradient. PyTorch alone would not notice under gradient
checkpointing, where transformers makes the embeddings' output ask for one
(`PreTrainedModel.enable_input_require_grads`), and every layer would be recomputed and walked back through.
"""

from typing import Any


def stop_gradients(model: Any) -> int:
    """Run the layers of `model` (a causal language model) before the first with a parameter that trains
    without autograd: they keep no activation, and the next layer's input needs no gradient. Their number.
    """
    import torch

    layers = model.model.layers
    first = next((number for number, one in enumerate(layers) if _trains(one)), 0)
    for layer in layers[:first]:
        # over the class's own forward, which is where transformers puts its checkpointing
        layer.forward = torch.no_grad()(layer.forward)
    return first


def _trains(module: Any) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())
