"""Linears whose weight a model reads itself (Gemma 3n's altup) get no adapter, and NF4 leaves them alone."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hybrids import SMALL
from qlora import settings

from pipeline.models.own_targets import default_targets
from pipeline.models.qlora import load_quantized
from pipeline.models.read_weights import kept_in_16_bit, read_by_parents
from pipeline.models.small_model import empty

SIZES: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
}
GEMMA: dict[str, Any] = {
    "head_dim": 16,
    "vocab_size_per_layer_input": 256,
    "hidden_size_per_layer_input": 16,
    "laurel_rank": 16,
    "num_kv_shared_layers": 0,
    "activation_sparsity_pattern": [0.0] * 4,
    "altup_coef_clip": 120.0,
}


def small_config(kind: str, **changed: Any) -> Any:
    from transformers import AutoConfig

    return AutoConfig.for_model(kind, **SIZES | changed)


def read_in(kind: str, **changed: Any) -> set[str]:
    """The names, without a layer's number, of the linears whose weight is read."""
    paths = read_by_parents(empty(small_config(kind, **changed)))
    return {path.split(".", 3)[-1] for path in paths if ".layers." in path}


@pytest.mark.parametrize(
    ("kind", "changed", "names"),
    [
        ("llama", {}, set()),
        ("gemma3n_text", GEMMA, {"altup.prediction_coefs", "altup.correction_coefs"}),
        ("falcon_h1", {"num_hidden_layers": 2, **SMALL["falcon_h1"]}, {"mamba.out_proj"}),
        (
            "lfm2",
            {"num_hidden_layers": 2, **SMALL["lfm2"]},
            set(),
        ),  # A convolution's is read, and no linear's.
    ],
)
def test_what_a_model_reads_is_found(kind: str, changed: dict[str, Any], names: set[str]) -> None:
    assert read_in(kind, **changed) == names


@pytest.mark.base_cells("NF4", families=("gemma3n_text",))
def test_a_gemma_3n_trains_in_nf4_and_altup_stays_as_it_is(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    config = small_config("gemma3n_text", **GEMMA)
    model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    assert "altup.correction_coefs" not in str(default_targets(tmp_path))
    loaded = load_quantized(tmp_path, settings(), device="cpu").train()
    loaded(input_ids=torch.tensor([[5, 6, 7]]))
    kept = kept_in_16_bit(loaded)
    assert len(kept) == 8
    assert all(loaded.get_submodule(path).weight.is_floating_point() for path in kept)
    assert loaded.model.layers[0].self_attn.q_proj.weight.dtype == torch.uint8
    assert loaded.lm_head.weight.is_floating_point()
