"""A tiny base with an adapter, and one step of it."""

from pathlib import Path
from typing import Any

import torch
import train_runs
from peft import get_peft_model

from pipeline.config.sections import Training
from pipeline.models.chunked_loss import chunked_loss
from pipeline.models.qlora import load_quantized
from pipeline.models.tuners.lora import lora_config


def settings(**changes: Any) -> Training:
    return train_runs.settings(**{"r": 4, "lora_dropout": 0.0} | changes)


def adapted(folder: Path, recipe: Training) -> Any:
    """The base with an adapter whose deltas are not zero."""
    torch.manual_seed(1)
    model = get_peft_model(load_quantized(folder, recipe), lora_config(recipe))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    return model


def step(model: Any, tokens: int = 24) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and the adapter's gradients of one forward and backward."""
    ids = torch.arange(tokens)[None]
    torch.manual_seed(2)
    model.train()
    model.zero_grad()
    loss = chunked_loss(model.get_base_model(), {"input_ids": ids, "labels": ids})
    loss.backward()
    return loss.item(), {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}


def same(one: tuple[float, dict[str, torch.Tensor]], other: tuple[float, dict[str, torch.Tensor]]) -> bool:
    return one[0] == other[0] and all(
        torch.equal(gradient, other[1][name]) for name, gradient in one[1].items()
    )


def sixteen(**changes: Any) -> Training:
    return settings(quantization="none", bnb_4bit_compute_dtype="float32", **changes)
