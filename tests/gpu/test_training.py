"""On a GPU: one NF4 step is finite, and the embeddings stay where the settings put them. Peaks, speed and
resume: `benchmarks/gpu_all.py`.
"""

from pathlib import Path

import pytest
import torch

from pipeline.config.params import load_params
from pipeline.core.places import PROJECT
from pipeline.models.finite import finite_record

pytestmark = pytest.mark.gpu

RECIPE = load_params(PROJECT / "recipes" / "qwen2.5-7b-8gb.yaml").training


@pytest.mark.parametrize("on_cpu", [False, True])
def test_a_step_in_nf4_is_finite_and_the_embeddings_stay_where_they_are_told(
    on_cpu: bool, tmp_path: Path
) -> None:
    from peft import get_peft_model

    from benchmarks.random_base import write_base
    from pipeline.models.chunked_loss import chunked_loss
    from pipeline.models.qlora import load_quantized
    from pipeline.models.tuners.lora import check_adapter, lora_config

    train = RECIPE.model_copy(update={"offload": "embeddings" if on_cpu else "none"})
    model = (
        get_peft_model(load_quantized(write_base(tmp_path / "base", "tiny"), train), lora_config(train))
        .to("cuda")
        .train()
    )
    assert check_adapter(model, train) > 0
    assert model.get_input_embeddings().weight.device.type == ("cpu" if on_cpu else "cuda")
    assert model.device.type == "cuda"
    ids = torch.arange(64, device="cuda")[None]
    loss = chunked_loss(model.get_base_model(), {"input_ids": ids, "labels": ids})
    loss.backward()
    assert loss.isfinite()
    assert finite_record(model) == {
        "nf4_linears_finite": 14,
        "quantized_tensors_finite": 0,
        "adapter_matrices_finite": 28,
    }
    assert all(weight.grad.isfinite().all() for weight in model.parameters() if weight.requires_grad)
