"""Models and settings for tests of a base whose layers lie in main memory or are shared out."""

from pathlib import Path
from typing import Any

import torch

from pipeline.config.sections import Training
from pipeline.models.chunked_loss import chunked_loss
from pipeline.models.qlora import load_quantized
from pipeline.models.tuners import causal_model, put_tuner

LAYERS, LINEARS = 4, 7


def tuned(folder: Path, recipe: Training) -> Any:
    """The base with what trains on it, which is not 0."""
    torch.manual_seed(1)
    model = put_tuner(load_quantized(folder, recipe), recipe)
    for name, parameter in model.named_parameters():
        if "lora_B" in name or name.endswith(".change"):
            torch.nn.init.normal_(parameter, std=0.02)
    if recipe.gradient_checkpointing:
        causal_model(model).enable_input_require_grads()
        causal_model(model).activation_checkpointing_enable(
            {"use_reentrant": False}, every_n_layers=int(recipe.gradient_checkpointing)
        )
    return model


def trained(model: Any) -> tuple[float, dict[str, torch.Tensor]]:
    """`step` of any tuner."""
    ids = torch.arange(24)[None] % model.config.vocab_size
    torch.manual_seed(2)
    model.train()
    model.zero_grad()
    loss = chunked_loss(causal_model(model), {"input_ids": ids, "labels": ids})
    loss.backward()
    return loss.item(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


CHANGES: list[dict[str, Any]] = [
    {},
    {"quantization": "none"},
    {"quantization": "none", "gradient_checkpointing": True},
    {"gradient_checkpointing": True},
    {"gradient_checkpointing": 2, "lora_dropout": 0.1},
    {"layers": "2-"},
    {"layers": "1-", "gradient_checkpointing": True},
    {"offload": "embeddings"},
]
