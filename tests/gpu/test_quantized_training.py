"""On a GPU: a step on a GGUF's own blocks gives float32's gradients of the CPU. Peaks, speed and resume:
`benchmarks/gpu_all.py`.
"""

from pathlib import Path

import pytest
import torch

from pipeline.config.params import load_params
from pipeline.core.places import PROJECT
from pipeline.models.finite import finite_record

pytestmark = pytest.mark.gpu

RECIPE = load_params(PROJECT / "recipes" / "qwen2.5-7b-gguf-8gb.yaml").training


def gradients(base: Path, device: str, dtype: str) -> dict[str, torch.Tensor]:
    """The gradients of one row's loss by the adapter's matrices that the first step changes, of the recipe's
    adapter without dropout.
    """
    from peft import get_peft_model

    from pipeline.models.chunked_loss import chunked_loss
    from pipeline.models.qlora import load_quantized
    from pipeline.models.tuners.lora import check_adapter, lora_config

    train = RECIPE.model_copy(
        update={"bnb_4bit_compute_dtype": dtype, "lora_dropout": 0.0, "offload": "none"}
    )
    torch.manual_seed(0)
    model = get_peft_model(load_quantized(base, train, device), lora_config(train))
    torch.manual_seed(0)
    for name, weight in model.named_parameters():
        if "lora_A" in name:  # drawn on the CPU: a GPU draws others
            weight.data.copy_(torch.randn(weight.shape) / weight.shape[1] ** 0.5)
    model = model.to(device).train()
    assert check_adapter(model, train) > 0
    assert finite_record(model) == {
        "nf4_linears_finite": 0,
        "quantized_tensors_finite": 16,
        "adapter_matrices_finite": 28,
    }
    ids = torch.arange(64, device=device)[None] * 7 % 512
    with torch.autocast("cuda", torch.bfloat16, enabled=device == "cuda" and dtype == "bfloat16"):
        loss = chunked_loss(model.get_base_model(), {"input_ids": ids, "labels": ids})
    loss.backward()
    assert loss.isfinite()
    return {
        name: weight.grad.float().cpu()
        for name, weight in model.named_parameters()
        if "lora_B" in name and weight.grad is not None
    }


@pytest.mark.parametrize(("dtype", "off"), [("float32", 1e-3), ("bfloat16", 0.1)])
def test_the_gradients_are_those_of_float32_on_the_cpu(dtype: str, off: float, tmp_path: Path) -> None:
    from benchmarks.random_gguf import write_random_gguf

    base = write_random_gguf(tmp_path / "base", "blocks")
    ours, theirs = gradients(base, "cuda", dtype), gradients(base, "cpu", "float32")
    assert len(ours) == len(theirs) == 14
    for name, wanted in theirs.items():
        assert torch.linalg.vector_norm(ours[name] - wanted) <= off * torch.linalg.vector_norm(wanted), name
