"""Stage base proves, before a training, that llama.cpp computes an architecture as transformers does."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import DataError
from pipeline.llamacpp.converters import HeaderFields
from pipeline.llamacpp.tools import Toolchain
from pipeline.models.text_config import SAME_FOR_CONVERTER, WANTED_BY_CONVERTER
from pipeline.stages.base import graph_proof
from pipeline.stages.base.graph_proof import LIMIT, need_same_graph

HEADER = HeaderFields("model")
SIZES: dict[str, Any] = {
    "vocab_size": 1024,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
GEMMA_3N: dict[str, Any] = {
    "vocab_size_per_layer_input": 1024,
    "num_hidden_layers": 30,
    "num_kv_shared_layers": 10,
    "intermediate_size": [512] * 30,
    "laurel_rank": 16,
}
EXAONE = {"head_dim": 64, "sliding_window": 512, "sliding_window_pattern": 4}
NEMOTRON: dict[str, Any] = {
    "layers_block_type": ["mamba", "mlp", "attention", "mlp"],
    "head_dim": 64,
    "ssm_state_size": 64,
    "mamba_num_heads": 8,
    "mamba_head_dim": 64,
    "n_groups": 2,
}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 64, "mamba_d_state": 64}
MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 256}
# {model_type: what makes a small config.json of the family}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"head_dim": 128, "sliding_window": None},
    "ministral3": {"head_dim": 128},
    "qwen2": {},
    "qwen3": {"head_dim": 64},
    "qwen3_5_text": {
        "head_dim": 64,
        "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
    },
    "gemma": {"head_dim": 64},
    "gemma2": {"head_dim": 64, "query_pre_attn_scalar": 64, "sliding_window": 512},
    "gemma3_text": {
        "head_dim": 64,
        "query_pre_attn_scalar": 64,
        "sliding_window": 512,
        "num_hidden_layers": 6,
    },
    "gemma4_text": {
        "vocab_size_per_layer_input": 1024,
        "num_hidden_layers": 6,
        "num_kv_shared_layers": 0,
        "final_logit_softcapping": 30.0,
    },
    "gemma4_unified_text": {
        "num_hidden_layers": 6,
        "final_logit_softcapping": 30.0,
        WANTED_BY_CONVERTER: None,
    },
    "exaone4": {"head_dim": 64, "sliding_window": None, "layer_types": ["full_attention"] * 4},
    "hunyuan_v1_dense": {"head_dim": 64},
    "cohere2": {"sliding_window": 512, "rotary_pct": 1.0},
    "cohere": {},
    "apertus": {},
    "ernie4_5": {"head_dim": 64},
    "arcee": {},
    "glm": {"head_dim": 64, "pad_token_id": 0},
    "seed_oss": {"head_dim": 64},
    "nemotron_h": NEMOTRON,
    "qwen2_moe": MIXTURE | {"shared_expert_intermediate_size": 256},
    "qwen3_moe": MIXTURE | {"head_dim": 64, "norm_topk_prob": True},
    "mixtral": {"num_local_experts": 4},
    "phi3": {"sliding_window": None, "pad_token_id": 0},
    "stablelm": {},
    "granite": {},
    "glm4": {"head_dim": 64},
    "olmo2": {},
    "olmo3": {"sliding_window": 512},
    "smollm3": {},
    "lfm2": {"layer_types": ["conv", "full_attention", "conv", "full_attention"]},
    "falcon_h1": {"head_dim": 64, "mamba_d_ssm": 512, **MAMBA},
    "granitemoehybrid": {
        "layer_types": ["mamba", "attention", "mamba", "attention"],
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "shared_intermediate_size": 512,
        **MAMBA,
    },
}
# what a text part's config.json says in place of its class (`pipeline.models.text_config`)
WRITTEN = {"gemma4_unified_text": SAME_FOR_CONVERTER["Gemma4UnifiedForCausalLM"]}


def folder_of(kind: str, folder: Path, **settings: Any) -> Path:
    """Write the config.json of a small model of this type; return the folder."""
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    config = AutoConfig.for_model(kind, **SIZES | settings)
    config.architectures = [WRITTEN.get(kind, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind])]
    folder.mkdir()
    (folder / "config.json").write_text(config.to_json_string(use_diff=False), encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give every test a cache of its own."""
    monkeypatch.setenv("QUENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.slow
@pytest.mark.base_cells("graph", families="kind")
@pytest.mark.parametrize("kind", FAMILIES)
def test_llama_cpp_computes_the_family_as_transformers_does(
    kind: str, tools: Toolchain, tmp_path: Path
) -> None:
    proof = need_same_graph(folder_of(kind, tmp_path / "model", **FAMILIES[kind]), tools, HEADER)
    assert proof.difference is not None, proof.reason
    assert proof.difference < LIMIT / 2


def test_a_family_that_llama_cpp_computes_otherwise_is_refused(tools: Toolchain, tmp_path: Path) -> None:
    """llama.cpp lets an EXAONE 4 slide only if it has 64 layers."""
    folder = folder_of("exaone4", tmp_path / "model", **EXAONE)
    with pytest.raises(DataError, match="Q-BASE-056"):
        need_same_graph(folder, tools, HEADER)


def test_the_small_model_has_as_many_layers_as_the_base(tools: Toolchain, tmp_path: Path) -> None:
    folder = folder_of("exaone4", tmp_path / "model", **EXAONE | {"num_hidden_layers": 64})
    assert need_same_graph(folder, tools, HEADER).difference is not None


def test_a_small_model_that_cannot_stand_for_the_base_proves_nothing(
    tools: Toolchain, tmp_path: Path
) -> None:
    """llama.cpp wants keys in all layers of a Gemma 3n: published files have them, transformers does not."""
    proof = need_same_graph(folder_of("gemma3n_text", tmp_path / "model", **GEMMA_3N), tools, HEADER)
    assert proof.difference is None and proof.reason


def test_a_window_that_llama_cpp_lacks_is_said(tools: Toolchain, tmp_path: Path) -> None:
    settings = {"sliding_window": 512, "max_position_embeddings": 4096}
    proof = need_same_graph(folder_of("starcoder2", tmp_path / "model", **settings), tools, HEADER)
    assert proof.dropped_window == 512


def test_a_converter_that_stops_at_config_json_is_an_error_before_training(
    tools: Toolchain, tmp_path: Path
) -> None:
    folder = folder_of("gemma3n_text", tmp_path / "model", altup_num_inputs=3, **GEMMA_3N)
    with pytest.raises(DataError, match="Q-BASE-057"):
        need_same_graph(folder, tools, HEADER)


def test_a_proof_is_kept_until_config_json_changes(
    cache: Path, tools: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of("llama", tmp_path / "model")
    first = need_same_graph(folder, tools, HEADER)
    (file,) = (cache / "graphs").iterdir()
    monkeypatch.setattr(graph_proof, "measured", None)
    assert need_same_graph(folder, tools, HEADER) == first
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-5}), encoding="utf-8")
    with pytest.raises(TypeError):
        need_same_graph(folder, tools, HEADER)
    assert file.is_file()
