"""The tensors and settings of a Hugging Face folder that make a GGUF, and the file that was trained on."""

import json
from itertools import chain
from math import pi
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from pipeline.core.errors import DataError
from pipeline.core.hashing import file_hash, json_hash
from pipeline.gguf.base_files import file_trained_on
from pipeline.gguf.families.registry import family_of
from pipeline.gguf.safetensors_rows import read_folder
from pipeline.gguf.sources import gguf_settings, rope_factors, sources


def numbers(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).normal(0, 1, shape).astype(np.float32)


# the rows of q and k are heads of four, whose halves llama.cpp lays side by side
TALL, WIDE, EXPERTS = numbers(8, 6), numbers(3, 30_000), numbers(11, 4, 6)
TURNED = TALL[[0, 2, 1, 3, 4, 6, 5, 7]]
LAYER = "model.layers.0"


# two rows each of the gate, the input, the two projections of the state; one of the steps
FALCON: dict[str, Any] = {
    "architectures": ["FalconH1ForCausalLM"],
    "mamba_d_ssm": 2,
    "mamba_n_groups": 1,
    "mamba_d_state": 2,
    "mamba_n_heads": 1,
    "attention_in_multiplier": 1.5,
    "attention_out_multiplier": 1.0,
    "key_multiplier": 0.7,
    "embedding_multiplier": 1.0,
    "lm_head_multiplier": 1.0,
    "mlp_multipliers": [2.0, 3.0],
    "ssm_in_multiplier": 0.3,
    "ssm_out_multiplier": 0.25,
    "ssm_multipliers": [0.1, 0.2, 0.3, 0.4, 0.5],
}
PRODUCTS = WIDE.reshape(9, -1) * np.float32(0.3)
for place, factor in enumerate(FALCON["ssm_multipliers"]):
    PRODUCTS[2 * place : 2 * place + 2] *= np.float32(factor)


def single(stored: str, part: str) -> list[tuple[str, Any, str, Any]]:
    """The experts of a layer as Mixtral's files have them."""
    return [
        (f"block_sparse_moe.experts.{number}.{stored}.weight", rows, f"ffn_{part}_exps.weight", EXPERTS)
        for number, rows in enumerate(EXPERTS)
    ]


@pytest.mark.parametrize(
    ("config", "tensors"),
    [
        (
            {"architectures": ["LlamaForCausalLM"], "num_attention_heads": 2, "num_key_value_heads": 1},
            [
                ("self_attn.q_proj.weight", TALL, "attn_q.weight", TURNED),
                ("self_attn.q_proj.bias", TALL[:, 0], "attn_q.bias", TURNED[:, 0]),
                ("self_attn.k_proj.weight", TALL[:4], "attn_k.weight", TURNED[:4]),
                ("self_attn.v_proj.weight", TALL, "attn_v.weight", TALL),
                ("self_attn.rotary_emb.inv_freq", TALL, "", TALL),
                ("input_layernorm.weight", WIDE[0], "attn_norm.weight", WIDE[0]),
                ("mlp.up_proj.weight", WIDE, "ffn_up.weight", WIDE),
            ],
        ),
        (
            {"architectures": ["MixtralForCausalLM"], "num_attention_heads": 2},
            [
                ("self_attn.q_proj.weight", TALL[:6], "attn_q.weight", TALL[:6]),  # not heads of two halves
                ("self_attn.k_proj.weight", TALL, "attn_k.weight", TURNED),
                ("block_sparse_moe.gate.weight", TALL, "ffn_gate_inp.weight", TALL),
                *(one for pair in (("w1", "gate"), ("w2", "down"), ("w3", "up")) for one in single(*pair)),
            ],
        ),
        (
            {"architectures": ["Qwen3MoeForCausalLM"]},
            [
                ("self_attn.q_proj.weight", TALL, "attn_q.weight", TALL),
                ("mlp.experts.gate_up_proj", EXPERTS, "ffn_gate_exps.weight", EXPERTS[:, :2]),
                ("mlp.experts.gate_up_proj", EXPERTS, "ffn_up_exps.weight", EXPERTS[:, 2:]),
                ("mlp.experts.down_proj", EXPERTS[:5], "ffn_down_exps.weight", EXPERTS[:5]),
            ],
        ),
        (
            {
                "architectures": ["GraniteMoeHybridForCausalLM"],
                "layer_types": ["mamba"],
                "mamba_n_groups": 2,
                "num_attention_heads": 2,
            },
            [
                ("mamba.A_log", TALL[:, 0], "ssm_a", -torch.tensor(TALL[:, 0]).exp().numpy()),
                ("mamba.D", TALL[:, 1], "ssm_d", TALL[:, 1]),
                ("mamba.dt_bias", TALL[:, 2], "ssm_dt.bias", TALL[:, 2]),
                ("mamba.conv1d.weight", TALL.reshape(8, 1, 6), "ssm_conv1d.weight", TALL),
                ("mamba.norm.weight", TALL[:, 3], "ssm_norm.weight", TALL[:, 3].reshape(2, 4)),
                ("shared_mlp.input_linear.weight", TALL, "ffn_gate.weight", TALL[:4]),
                ("shared_mlp.input_linear.weight", TALL, "ffn_up.weight", TALL[4:]),
                ("shared_mlp.output_linear.weight", TALL, "ffn_down.weight", TALL),
            ],
        ),
        (
            FALCON,
            [
                ("mamba.in_proj.weight", WIDE.reshape(9, -1), "ssm_in.weight", PRODUCTS),
                ("mamba.out_proj.weight", TALL, "ssm_out.weight", TALL * np.float32(0.25)),
                ("self_attn.k_proj.weight", TALL, "attn_k.weight", TALL * np.float32(0.7) * np.float32(1.5)),
                ("feed_forward.down_proj.weight", TALL, "ffn_down.weight", TALL * np.float32(3.0)),
                ("input_layernorm.weight", WIDE[0], "attn_norm.weight", WIDE[0]),
            ],
        ),
    ],
    ids=["Llama", "Mixtral", "fused experts", "Granite 4", "Falcon-H1"],
)
def test_tensors_hold_the_rows_that_the_conversion_puts_there(
    config: dict[str, Any], tensors: list[tuple[str, Any, str, Any]], tmp_path: Path
) -> None:
    """A tensor that has no name in the GGUF keeps its own, and one that is not converted is left out."""
    wanted = {f"blk.0.{name}": rows for _, _, name, rows in tensors if name} | {"another.thing": TALL}
    stored = {f"{LAYER}.{name}": np.ascontiguousarray(rows) for name, rows, _, _ in tensors}
    save_file(stored | {"another.thing": TALL}, tmp_path / "x.safetensors")
    found = sources(config | {"num_hidden_layers": 1}, read_folder(tmp_path))
    assert found.keys() == wanted.keys()
    for name, pieces in found.items():
        blocks = list(chain.from_iterable(piece.blocks() for piece in pieces))
        assert np.array_equal(np.concatenate(blocks), wanted[name].reshape(-1)), name
        assert max(map(len, blocks)) <= 1 << 16


def test_a_granite_4_without_state_spaces_becomes_the_gguf_of_a_granite() -> None:
    """By the names of layers in published files, and by those that transformers writes."""
    config: dict[str, Any] = {"architectures": ["GraniteMoeHybridForCausalLM"]}
    for attention, other in (("attention", "mamba"), ("full_attention", "linear_attention")):
        for types, name in (([attention] * 2, "granite"), ([other, attention], "granitehybrid")):
            family = family_of(config | {"layer_types": types})
            assert family and family.name == name
    unsaid = family_of(config)
    assert unsaid and unsaid.name == "granitehybrid"


def test_a_granite_4_with_experts_is_not_taken_for_one_without() -> None:
    """Its experts are split and its shared one is called otherwise: every tensor would seem to be missing."""
    config: dict[str, Any] = {"architectures": ["GraniteMoeHybridForCausalLM"], "num_local_experts": 64}
    for types in (["mamba", "attention"], ["attention"] * 2):
        assert family_of(config | {"layer_types": types}) is None
        assert family_of(config | {"layer_types": types, "num_local_experts": 0}) is not None


def test_settings_are_said_by_the_architectures_own_fields() -> None:
    config = {"architectures": ["MixtralForCausalLM"], "num_attention_heads": 8, "head_dim": None}
    config |= {"rms_norm_eps": 1e-6, "rope_theta": 1.0, "rope_parameters": {"rope_theta": 5e5, "factor": 8.0}}
    assert gguf_settings(config) == {
        "llama.attention.head_count": 8,
        "llama.attention.layer_norm_rms_epsilon": 1e-6,
        "llama.rope.freq_base": 5e5,
    }


def test_settings_of_layers_with_a_window_are_their_own() -> None:
    """Published files of Gemma 3 have the keys of older releases, and transformers writes others."""
    published: dict[str, Any] = {"architectures": ["Gemma3ForCausalLM"], "sliding_window": 512}
    written = published | {
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        }
    }
    published |= {"rope_theta": 1e6, "rope_local_base_freq": 1e4}
    for config in (published, written):
        assert gguf_settings(config) == {
            "gemma3.attention.sliding_window": 512,
            "gemma3.rope.freq_base": 1e6,
            "gemma3.rope.freq_base_swa": 1e4,
        }
    caps = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    assert gguf_settings(caps | {"architectures": ["Gemma2ForCausalLM"]}) == {
        f"gemma2.{name}": value for name, value in caps.items()
    }


@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])
def test_a_hunyuans_alpha_is_in_its_rotary_base(key: str) -> None:
    config: dict[str, Any] = {
        "architectures": ["HunYuanDenseV1ForCausalLM"],
        "head_dim": 4,
        "rope_theta": 10.0,
    }
    settings = gguf_settings(config | {key: {"alpha": 3.0}})
    assert settings["hunyuan-dense.rope.freq_base"] == pytest.approx(10.0 * 3.0**2)


def test_a_nemotron_h_has_as_many_layers_as_it_lists(tmp_path: Path) -> None:
    config: dict[str, Any] = {"architectures": ["NemotronHForCausalLM"], "n_groups": 2}
    config |= {"layers_block_type": ["linear_attention", "mlp"], "num_attention_heads": 1}
    layer = "backbone.layers.1.mixer"
    save_file({f"{layer}.up_proj.weight": TALL, f"{layer}.D": TALL[0]}, tmp_path / "model.safetensors")
    assert sources(config, read_folder(tmp_path)).keys() == {"blk.1.ffn_up.weight", "blk.1.ssm_d"}


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_norms_of_a_gemma_hold_one_less_than_the_file(kind: Any, tmp_path: Path) -> None:
    """The converter adds in the type of the tensor, so the sum with a float16 is rounded to that."""
    norm = np.array([0.0, -1.0, 0.1, -0.0371], kind)
    matrix = np.eye(4, dtype=kind)
    stored = {f"{LAYER}.input_layernorm.weight": norm, f"{LAYER}.self_attn.q_norm.weight": norm}
    save_file(stored | {f"{LAYER}.self_attn.o_proj.weight": matrix}, tmp_path / "x.safetensors")
    config = {"architectures": ["Gemma3ForCausalLM"], "num_hidden_layers": 1}
    found = {
        name: np.concatenate([block for piece in pieces for block in piece.blocks()])
        for name, pieces in sources(config, read_folder(tmp_path)).items()
    }
    assert found.keys() == {f"blk.0.attn_{name}.weight" for name in ("norm", "q_norm", "output")}
    for name in ("norm", "q_norm"):
        assert np.array_equal(found[f"blk.0.attn_{name}.weight"], (norm + kind(1)).astype(np.float32))
    assert np.array_equal(found["blk.0.attn_output.weight"], matrix.reshape(-1))


def test_a_longer_context_slows_the_frequencies_that_llama_3_slows(tmp_path: Path) -> None:
    """Eight times those that turn less than once in the old context, not at all those of four turns."""
    config: dict[str, Any] = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert rope_factors(tmp_path) == {}
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling |= {"original_max_position_embeddings": 64, "rope_theta": 500.0}
    (tmp_path / "config.json").write_text(json.dumps(config | {"rope_parameters": scaling}))
    turns = 64 / (2 * pi) * 500.0 ** (-np.arange(16) / 16)
    share = ((turns - 1) / 3).clip(0, 1)
    assert 0 < np.count_nonzero((share > 0) & (share < 1)) < 14
    (found,) = rope_factors(tmp_path).items()
    assert found == ("rope_freqs.weight", pytest.approx(1 / ((1 - share) / 8 + share), rel=1e-5))


def test_what_a_gemma_4_rotates_of_a_head_is_in_its_factors(tmp_path: Path) -> None:
    """The rest stands still, where layers attend to all tokens; others rotate whole heads."""
    config = {"model_type": "gemma4_text", "num_hidden_layers": 2, "global_head_dim": 16}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert rope_factors(tmp_path) == {}  # as no published file is
    rotary = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}
    rotary = {"full_attention": rotary, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
    (tmp_path / "config.json").write_text(json.dumps(config | {"rope_parameters": rotary}))
    (found,) = rope_factors(tmp_path).items()
    assert found == ("rope_freqs.weight", pytest.approx([1.0] * 2 + [1e30] * 6))


def test_a_file_is_the_one_that_was_named_and_trained_on(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"weights")
    files, others = {"model.gguf": file_hash(tmp_path / "model.gguf")}, {"model.gguf": "00" * 32}
    for named, trained_on, refusal in ((files, others, "Q-GGUF-022: "), (others, files, "Q-GGUF-021: ")):
        (tmp_path / "base.json").write_text(json.dumps({"files": named}))
        (tmp_path / "run.json").write_text(json.dumps({"base": {"weights_sha256": json_hash(trained_on)}}))
        with pytest.raises(DataError, match=refusal):
            file_trained_on(tmp_path, tmp_path, tmp_path / "base.json")
    (tmp_path / "base.json").write_text(json.dumps({"files": files}))
    assert file_trained_on(tmp_path, tmp_path, tmp_path / "base.json") == files["model.gguf"]
