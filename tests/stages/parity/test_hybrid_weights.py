"""Weights of models that have layers beside attention, merged and in their GGUF: equal, or named; and trained
on, they compute the same.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from families import ROWS
from gguf import GGUFReader
from gguf_edit import change_rows
from tokenizer_folders import qwen35_folder
from transformers import AutoConfig, AutoModelForCausalLM
from wrappers import TEXT, random_model, text_model, with_drafts, wrapper

from pipeline.gguf.families.registry import family_in
from pipeline.gguf.header import read_header
from pipeline.llamacpp.converters import HeaderFields, to_gguf
from pipeline.llamacpp.tools import Toolchain
from pipeline.models.base_header import stated_config
from pipeline.models.header_config import header_config
from pipeline.models.quantized_model import load_gguf
from pipeline.stages.parity.gguf_weights import gguf_weights

WORDS = 2000
ENDS = {"bos_token_id": WORDS, "eos_token_id": WORDS + 2, "pad_token_id": WORDS}
SIZES: dict[str, Any] = {"vocab_size": 2100, "dtype": "bfloat16"}


def short_convolutions(folder: Path) -> None:
    random_family("lfm2", folder)


def state_spaces(folder: Path) -> None:
    """As layers of their own, between layers of attention."""
    random_family("granitemoehybrid", folder, mamba_n_heads=4, mamba_d_head=32, mamba_n_groups=2)


def state_spaces_beside_attention(folder: Path) -> None:
    """In each layer, with factors that become part of the weights."""
    random_family("falcon_h1", folder, mamba_n_groups=2, mamba_rms_norm=True)


def random_family(kind: str, folder: Path, **settings: Any) -> None:
    config = AutoConfig.for_model(kind, **TEXT | ROWS[kind].settings | ENDS | SIZES | settings)
    random_model(AutoModelForCausalLM, config).save_pretrained(folder)


def delta_nets(folder: Path) -> None:
    text_model("qwen3_5", folder, ENDS, **SIZES, linear_num_value_heads=6)


def delta_nets_of_pairs(folder: Path) -> None:
    """As the smallest ones that are published: as many value heads as key heads."""
    text_model("qwen3_5", folder, ENDS, **SIZES, linear_num_value_heads=2)


def delta_nets_beside_a_tower(folder: Path) -> None:
    wrapper("qwen3_5", folder, ENDS, **SIZES)
    with_drafts(folder)


Make = Callable[[Path], None]
# (maker, tensors whose values or order the converter changes)
MODELS = [
    pytest.param(short_convolutions, ("blk.0.shortconv.conv.weight", "token_embd_norm.weight"), id="lfm2"),
    pytest.param(
        state_spaces,
        ("blk.0.ssm_a", "blk.0.ssm_dt.bias", "blk.0.ssm_norm.weight", "blk.1.ffn_up.weight"),
        id="granite4",
        marks=pytest.mark.slow,
    ),
    pytest.param(
        state_spaces_beside_attention,
        ("blk.0.ssm_in.weight", "blk.0.attn_k.weight", "blk.1.ssm_norm.weight", "token_embd.weight"),
        id="falcon_h1",
        marks=pytest.mark.slow,
    ),
    pytest.param(
        delta_nets_beside_a_tower,
        ("blk.0.ssm_a", "blk.0.ssm_out.weight", "blk.2.nextn.eh_proj.weight"),
        id="qwen3.5",
    ),
    pytest.param(
        delta_nets,
        ("blk.0.ssm_dt.bias", "blk.0.attn_qkv.weight", "blk.0.ssm_conv1d.weight", "blk.0.ssm_norm.weight"),
        id="qwen3.5-text",
        marks=pytest.mark.slow,
    ),
    pytest.param(delta_nets_of_pairs, ("blk.0.ssm_a",), id="qwen3.5-pairs", marks=pytest.mark.slow),
]

# those whose GGUF an adapter can be trained on
TRAINED_ON = (short_convolutions, delta_nets, delta_nets_of_pairs, delta_nets_beside_a_tower)


def compare_with_folder(gguf: Path, folder: Path) -> None:
    """Assert that the model of a file, by its header alone, computes what that of its folder does."""
    header = read_header(gguf)
    family = family_in(header.fields)
    assert family is not None
    config = header_config(header, family, gguf)
    config.update({"architectures": [family.classes[0]], **stated_config(header)})
    config.save_pretrained(gguf.parent / "read")
    trained_on = load_gguf(gguf.parent / "read", compute_dtype=torch.float32, device="cpu", name=str(gguf))
    rounded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16).float()
    ids = torch.arange(24)[None] * 37 % WORDS
    with torch.no_grad():
        ours, theirs = (model(input_ids=ids, use_cache=False).logits for model in (trained_on, rounded))
    assert float((ours - theirs).norm() / theirs.norm()) < 1e-3


@pytest.mark.slow
def test_a_falcon_h1_whose_settings_lack_the_width_of_a_head_is_converted(
    tools: Toolchain, tmp_path: Path
) -> None:
    """As transformers writes config.json. llama.cpp's converter ended in a KeyError."""
    folder = qwen35_folder(tmp_path / "merged", tools, WORDS)
    random_family("falcon_h1", folder, head_dim=16)
    file = folder / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    assert config.pop("head_dim") == 16
    file.write_text(json.dumps(config), encoding="utf-8")
    to_gguf(tools, folder, tmp_path / "a.gguf", "F16", HeaderFields("tiny", "qwen35"))
    assert GGUFReader(tmp_path / "a.gguf").fields["falcon-h1.attention.key_length"].contents() == 16


@pytest.mark.parametrize(("make", "changed"), MODELS)
def test_they_are_equal_bit_for_bit_and_a_changed_one_is_named(
    make: Make, changed: tuple[str, ...], tools: Toolchain, tmp_path: Path
) -> None:
    folder = qwen35_folder(tmp_path / "merged", tools, WORDS)
    gguf = tmp_path / "tiny-F16.gguf"
    make(folder)
    to_gguf(tools, folder, gguf, "F16", HeaderFields("tiny", "qwen35"))
    check = gguf_weights(folder, gguf)
    assert check.verdict == "pass", check.sentence
    if make in TRAINED_ON:
        compare_with_folder(gguf, folder)
    for tensor in changed:
        change_rows(gguf, tensor, lambda rows: rows ^ 1)
        check = gguf_weights(folder, gguf)
        assert check.verdict == "fail" and f"{tensor}:" in check.sentence
        change_rows(gguf, tensor, lambda rows: rows ^ 1)
