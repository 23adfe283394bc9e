"""On a GPU: layers in main memory give the losses and gradients of layers that stay, for less of its memory.
Speed and peak of a large model: `benchmarks/gpu_all.py`.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.config.params import load_params
from pipeline.core.places import PROJECT

pytestmark = pytest.mark.gpu

RECIPE = load_params(PROJECT / "recipes" / "qwen2.5-7b-8gb.yaml").training


def steps(base: Path, kept: int | str, **changes: Any) -> tuple[list[float], dict[str, torch.Tensor], Any]:
    """The losses of three optimizer steps, the last one's gradients, and the model."""
    from pipeline.models.chunked_loss import chunked_loss
    from pipeline.models.qlora import load_quantized
    from pipeline.models.tuners import causal_model, put_tuner

    train = RECIPE.model_copy(update={"offload": kept, "lora_dropout": 0.0} | changes)
    torch.manual_seed(0)
    # as a library might, which must not bring them back
    model = put_tuner(load_quantized(base, train), train).to("cuda").train()
    if train.gradient_checkpointing:
        causal_model(model).enable_input_require_grads()
        causal_model(model).activation_checkpointing_enable({"use_reentrant": False})
    weights = [one for one in model.parameters() if one.requires_grad]
    optimizer, ids, losses = torch.optim.AdamW(weights, lr=1e-3), torch.arange(64, device="cuda")[None], []
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = chunked_loss(causal_model(model), {"input_ids": ids, "labels": ids})
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    gradients = {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
    return losses, gradients, model


def offloaded(model: Any) -> list[Any]:
    """Return the parts of `model` that are in main memory."""
    found = (getattr(one.__dict__.get("forward"), "__self__", None) for one in model.modules())
    return [one for one in found if hasattr(one, "at_rest")]


@pytest.mark.parametrize(
    ("quantization", "tuner"), [("nf4", "lora"), ("none", "lora"), ("gguf", "lora"), ("gguf", "scales")]
)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_nothing_is_computed_otherwise(
    quantization: str, tuner: str, checkpointing: bool, tmp_path: Path
) -> None:
    from benchmarks.random_base import write_base
    from benchmarks.random_gguf import write_random_gguf
    from pipeline.models.finite import finite_record

    gguf = quantization == "gguf"
    base = write_random_gguf(tmp_path / "base", "blocks") if gguf else write_base(tmp_path / "base", "tiny")
    changes = {
        "quantization": quantization,
        "tuner": tuner,
        "gradient_checkpointing": checkpointing,
    }
    plain, gradients, _ = steps(base, "none", **changes)
    losses, found, model = steps(base, 2, **changes)
    assert losses == pytest.approx(plain, rel=1e-5)
    for name, wanted in gradients.items():  # attention's backward may add up in another order
        assert torch.linalg.vector_norm(found[name] - wanted) <= 1e-2 * torch.linalg.vector_norm(wanted), name
    assert model.device.type == "cuda"
    assert {one.device.type for one in model.parameters() if one.requires_grad} == {"cuda"}
    finite_record(model)
    assert len(offloaded(model)) == 14
    at_rest = [one.at_rest for one in offloaded(model)]
    assert all(one.device.type == "cpu" and one.is_pinned() for one in at_rest)


def test_the_peak_is_smaller_by_what_is_elsewhere(tmp_path: Path) -> None:
    from benchmarks.random_base import write_base
    from pipeline.models.qlora import load_quantized
    from pipeline.models.tuners import causal_model, put_tuner

    base, peaks, sizes = write_base(tmp_path / "base", "0.5b"), [], [0]
    for kept in ("embeddings", 12):
        train = RECIPE.model_copy(update={"offload": kept})
        model = put_tuner(load_quantized(base, train), train)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        with torch.no_grad():
            causal_model(model).model(input_ids=torch.arange(64, device="cuda")[None])
        peaks.append(torch.cuda.max_memory_allocated())
        sizes = [one.bytes for one in offloaded(model)]
        del model
    assert peaks[0] - peaks[1] == pytest.approx(sum(sizes) * 11 / 12, rel=0.02)
