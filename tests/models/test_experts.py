"""experts: all ways a configuration says that a model is a mixture, and dense models that mention experts."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.core.errors import DataError
from pipeline.gguf.header import Header
from pipeline.models.base_header import not_dense, stated_config
from pipeline.models.experts.recognize import check_experts, check_experts_of
from pipeline.stages.base.gguf_import import unpack_gguf

MIXTURES: list[dict[str, Any]] = [
    {"model_type": "qwen2_moe", "num_experts": 60, "mlp_only_layers": [0]},
    {"model_type": "qwen3_moe", "num_experts": 60, "decoder_sparse_step": 2},
    {"model_type": "gpt_oss", "num_local_experts": 8},
    {"model_type": "llama", "num_local_experts": 8},
    {"model_type": "deepseek_v2", "n_routed_experts": 64, "n_shared_experts": 2},
    {"model_type": "new", "moe_num_experts": [64, 64]},
    {"model_type": "new", "moe_layer_freq": 2},
    {"model_type": "granitemoe"},
    {"model_type": "dbrx", "ffn_config": {"moe_num_experts": 16}},
    {"model_type": "llama4", "text_config": {"num_local_experts": 16}},
    {"model_type": "gemma4_text", "enable_moe_block": True, "num_experts": 128},
    {"model_type": "lfm2_moe", "num_experts": 32},
    {"model_type": "glm4_moe", "n_routed_experts": 128},
    {"model_type": "nemotron_h", "n_routed_experts": 128, "hybrid_override_pattern": "MEM*E"},
    {"model_type": "nemotron_h", "n_routed_experts": 8, "layers_block_type": ["mamba", "moe"]},
]
ACCEPTED: list[dict[str, Any]] = [
    {"model_type": "qwen2_moe", "num_experts": 60, "moe_intermediate_size": 1408},
    {"model_type": "qwen3_moe", "num_experts": 128, "decoder_sparse_step": 1, "mlp_only_layers": []},
    {"model_type": "mixtral", "num_local_experts": 8},
    {"model_type": "qwen2"},
    {"model_type": "deepseek_v2", "n_routed_experts": None},
    {"model_type": "granitemoehybrid", "num_local_experts": 0, "num_experts_per_tok": 0},
    {"model_type": "hunyuan_v1_dense", "num_experts": 1, "moe_topk": 1},
    {"model_type": "gemma", "text_config": {"num_experts": None}},
    # as published, and as transformers saves it, with its class's number of experts
    {"model_type": "nemotron_h", "n_routed_experts": 8, "hybrid_override_pattern": "M-M*-"},
    {"model_type": "nemotron_h", "n_routed_experts": 8, "layers_block_type": ["linear_attention", "mlp"]},
]


@pytest.mark.base_refused(
    "Other mixtures of experts: gpt-oss, DeepSeek, Llama 4, DBRX, Granite MoE, Gemma 4 26B-A4B, LFM2 8B-A1B, "
    "GLM-4.5, Nemotron 3 Nano",
    "Q-MODELS-010",
)
@pytest.mark.parametrize("config", MIXTURES, ids=str)
def test_a_mixture_that_cannot_be_trained_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="Q-MODELS-010"):
        check_experts(config, "a/b")


@pytest.mark.parametrize("config", ACCEPTED, ids=str)
def test_another_model_is_not(config: dict[str, Any]) -> None:
    check_experts(config, "a/b")


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({"general.architecture": "gpt-oss", "gpt-oss.expert_count": 8}, True),
        ({"llama.expert_count": 8}, False),  # a Mixtral
        ({"llama.expert_count": 0}, False),
        ({}, False),
    ],
)
def test_a_gguf_says_it_in_its_header(fields: dict[str, Any], refused: bool) -> None:
    with pytest.raises(DataError, match="Q-MODELS-010") if refused else nullcontext():
        check_experts_of({"general.architecture": "llama"} | fields, "x.gguf")


QWEN2_MOE = {"expert_count": 60, "expert_used_count": 4, "expert_feed_forward_length": 1408}
SAID: list[tuple[str, dict[str, int], dict[str, Any]]] = [
    (
        "qwen2moe",
        QWEN2_MOE,
        {"model_type": "qwen2_moe", "num_experts": 60, "num_experts_per_tok": 4}
        | {"moe_intermediate_size": 1408, "norm_topk_prob": False},
    ),
    ("qwen3moe", {}, {"model_type": "qwen3_moe", "norm_topk_prob": True}),
    ("qwen3", {}, {}),
    (
        "llama",
        {"expert_count": 8, "expert_used_count": 2},
        {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2},
    ),
    ("llama", {"expert_count": 0}, {}),
]


@pytest.mark.parametrize(("architecture", "counts", "said"), SAID)
def test_a_ggufs_header_says_what_config_json_says(
    architecture: str, counts: dict[str, int], said: dict[str, Any]
) -> None:
    fields = {f"{architecture}.{name}": count for name, count in counts.items()}
    stated = stated_config(Header({"general.architecture": architecture} | fields, {}))
    of_all = {"vocab_size": 0, "tie_word_embeddings": True}
    same = {"decoder_sparse_step": 1, "mlp_only_layers": []} if "norm_topk_prob" in said else {}
    assert stated == of_all | said | same


def test_a_model_that_is_not_dense_is_named() -> None:
    mixture = {"general.architecture": "llama", "llama.expert_count": 2}
    assert not_dense(Header(mixture, {})) == "a mixture of experts (llama)"
    assert not_dense(Header(mixture | {"llama.expert_count": 1}, {})) is None
    assert not_dense(Header({"general.architecture": "falcon"}, {})) == "falcon"


def test_a_mixtures_gguf_is_not_unpacked() -> None:
    header = SimpleNamespace(fields={"general.architecture": "qwen3moe"})
    with pytest.raises(DataError, match="Q-BASE-029"):
        unpack_gguf(Path("x.gguf"), header, Path("folder"), None)
