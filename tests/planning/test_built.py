"""Plans of architectures that no code of the planner knows: their shapes come of the model that transformers
builds without weights, and hold against the tensors of a real one.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter
from hybrids import SMALL
from plans import GIB, demo_training, parts, plan_json, plan_of, published
from tensor_bytes import adapted, hidden_states, kept_bytes, measured, planned, size
from test_bytes import TOKENS
from wrappers import TEXT, WRAPPERS, flat

from pipeline.core.errors import ConfigError, DataError
from pipeline.gguf.families.registry import family_in
from pipeline.gguf.sources import mapped_name, name_map
from pipeline.planning.model.config_file import load_shape, read_shape
from pipeline.planning.model.gguf_base import gguf_shape
from pipeline.planning.model.level_bytes import level_bytes, matrices

SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "max_position_embeddings": 256, "vocab_size": 301}
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
SLOW = pytest.mark.slow
# what each family needs beside `SIZES`, and the linears that get an adapter
FAMILIES: dict[str, tuple[dict[str, Any], Any]] = {
    "gemma3_text": ({"head_dim": 24, "layer_types": ["sliding_attention", "full_attention"]}, ATTENTION),
    "gemma2": ({"head_dim": 24}, ATTENTION),
    "phi3": ({"pad_token_id": 0}, ["qkv_proj", "gate_up_proj", "down_proj"]),
    "granite": ({"attention_bias": True}, [*ATTENTION, "down_proj"]),
    "olmo2": ({}, ATTENTION),
    "smollm3": ({"num_hidden_layers": 4, "pad_token_id": 0}, ATTENTION),
    "glm4": ({"head_dim": 16, "pad_token_id": 0}, ["q_proj", "gate_up_proj"]),
}
HYBRIDS: dict[str, tuple[dict[str, Any], Any]] = {
    "lfm2": (SMALL["lfm2"], ["w1", "w2"]),
    "falcon_h1": (SMALL["falcon_h1"], ["in_proj", "q_proj"]),
    "qwen3_5_text": (SMALL["qwen3_5_text"], ".*(in_proj_qkv|q_proj|down_proj)"),
}
# the same sizes in the header of a GGUF
HEADER = {"embedding_length": 64, "feed_forward_length": 128, "block_count": 2, "attention.head_count": 4}
HEADER |= {"attention.head_count_kv": 2, "context_length": 256}
# what families say beside that in the header, and in config.json
OWN_HEADERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "granite": (
        {"attention.scale": 0.25, "embedding_scale": 1.0, "residual_scale": 1.0, "logit_scale": 1.0},
        {},
    ),
    "phi3": ({}, {}),
    "lfm2": (
        {"attention.head_count_kv": [0, 2], "shortconv.l_cache": 3},
        {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
    ),
    "qwen35": (
        {
            "block_count": 3,
            "nextn_predict_layers": 1,
            "full_attention_interval": 2,
            "attention.key_length": 16,
            "rope.dimension_count": 4,
            "ssm.conv_kernel": 4,
            "ssm.state_size": 16,
            "ssm.group_count": 2,
            "ssm.time_step_rank": 2,
            "ssm.inner_size": 32,
        },
        SMALL["qwen3_5_text"],
    ),
}
FAST = ("gemma3_text", "phi3", "qwen3_5_text")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A random small base of a family, made when it is asked for."""

    def folder(family: str) -> Path:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        made = tmp_path_factory.mktemp(family)
        changed, _ = (FAMILIES | HYBRIDS)[family]
        config = AutoConfig.for_model(family, **SIZES | changed)
        AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(made)
        return made

    return folder


@pytest.mark.base_cells("NF4", families="family")
@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=[] if name in FAST else SLOW) for name in FAMILIES | HYBRIDS],
)
def test_a_plan_of_a_built_architecture_holds(base: Callable[[str], Path], family: str) -> None:
    import torch

    folder = base(family)
    train = demo_training(target_modules=(FAMILIES | HYBRIDS)[family][1], lora_dropout=0.0)
    model = adapted(folder, train).train()
    found_kept = kept_bytes(model, lambda: hidden_states(model, TOKENS))
    optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad])
    hidden_states(model, TOKENS).float().sum().backward()
    optimizer.step()
    shape = load_shape(folder / "config.json")
    found, by_plan = measured(model, optimizer), planned(shape, train)
    # All that is no linear, embedding or head counts as small: convolutions too, beside norms and biases.
    floats = [one for one in model.parameters() if one.dtype != torch.uint8 and not one.requires_grad]
    assert by_plan | {"small": 0} == found | {"small": 0}
    assert by_plan["small"] + by_plan["tables"] == size([*floats, *model.buffers()])
    kept = parts(plan_of(train, shape, length=TOKENS, device="cpu"))["activations kept"] - TOKENS**2
    # A hybrid's layers work in pieces of 256 tokens, and here are 48.
    assert found_kept <= kept < (1.1 if family in FAMILIES else 256 / TOKENS * 1.5) * found_kept


def test_a_published_architecture_has_the_published_number_of_parameters() -> None:
    """Gemma 2 2B, Phi-3-mini: transformers' defaults are their settings; counts as on their pages."""
    from transformers import AutoConfig

    counts = {"gemma2": 2_614_341_888, "phi3": 3_821_079_552}
    for family, count in counts.items():
        shape = read_shape(AutoConfig.for_model(family).to_dict())
        assert shape.parameters == count
    # keys and values of Phi-3's attention, which lie in one linear: 32 layers of 32 heads of 96
    assert shape.keys_and_values == 32 * 2 * 32 * 96


def test_a_level_has_the_size_of_the_published_file() -> None:
    """ibm-granite's and allenai's own Q4_K_M files, by their pages' bytes."""
    files = {"granite-3.3-2b": 1_545_303_328, "olmo-2-0425-1b": 935_515_296}
    for model, size_published in files.items():
        computed = level_bytes(published(model), "Q4_K_M")
        assert computed == pytest.approx(size_published, rel=1e-4)


def test_layers_of_unlike_heads_are_counted_one_by_one() -> None:
    """Gemma 4's global layers have larger heads than those with a window."""
    kinds = ["sliding_attention", "full_attention"]
    changed = {"head_dim": 16, "global_head_dim": 32, "layer_types": kinds, "vocab_size_per_layer_input": 301}
    shape = read_shape({"model_type": "gemma4_text", **SIZES, **changed})
    widths = [{one.name: one.outputs for one in layer}["q_proj"] for layer in shape.by_layer]
    assert widths == [4 * 16, 4 * 32]


def test_of_a_model_that_sees_the_text_part_is_planned() -> None:
    text = {"model_type": "gemma3_text", **SIZES, "head_dim": 16}
    assert read_shape({"model_type": "gemma3", "text_config": text}) == read_shape(text)
    # a text part of a type that is planned by its numbers
    llama = {"model_type": "llama", **SIZES}
    assert read_shape({"model_type": "mistral3", "text_config": llama}).built is None


@pytest.mark.parametrize(
    ("kind", "text"), [("qwen2_5_vl", "qwen2"), ("qwen3_vl", "qwen3"), ("qwen3_5", "qwen3_5_text")]
)
def test_a_wrappers_text_part_is_planned_as_stage_base_takes_it(kind: str, text: str, tmp_path: Path) -> None:
    """Also as Qwen2.5-VL's is published, with the text's settings beside the vision tower's."""
    from transformers import AutoConfig

    settings = WRAPPERS[kind]
    sizes = TEXT | settings["text_config"] | {"vocab_size": 301}
    tied = {"tie_word_embeddings": True}
    AutoConfig.for_model(kind, **settings | tied | {"text_config": sizes}).save_pretrained(tmp_path)
    shape = load_shape(tmp_path / "config.json")
    assert shape == read_shape(AutoConfig.for_model(text, **sizes | tied).to_dict())
    flat(tmp_path)
    if kind == "qwen2_5_vl":
        assert load_shape(tmp_path / "config.json") == shape


@pytest.mark.parametrize(
    ("config", "error", "said"),
    [
        ({"model_type": "nothing"}, "Q-PLANNING-005", "no such type"),
        ({"model_type": "gpt2"}, "Q-PLANNING-005", "model.layers"),
        ({"model_type": "gpt_neox"}, "Q-PLANNING-005", "model.layers"),
        ({"model_type": "ministral3", "text_config": {}}, "Q-PLANNING-005", "text_config"),
        ({"model_type": "whisper"}, "Q-PLANNING-005", "an encoder and a decoder"),
        ({"model_type": "qwen2_5_vl"}, "Q-PLANNING-005", "no causal language model"),
        ({"model_type": "clip", "vision_config": {}}, "Q-BASE-010", "text-only model of this family"),
        ({"model_type": "gemma2", "num_hidden_layers": 0}, "Q-PLANNING-006", "num_hidden_layers"),
        ({"model_type": "gemma2", "hidden_size": "wide"}, "Q-PLANNING-005", "hidden_size"),
        ({"model_type": "gpt_oss", "num_local_experts": 32}, "Q-MODELS-010", "mixture"),
    ],
)
def test_what_cant_be_planned_is_a_sentence(config: dict[str, Any], error: str, said: str) -> None:
    with pytest.raises((ConfigError, DataError)) as refused:
        read_shape(config)
    assert refused.value.id == error
    assert said in str(refused.value)


def test_numbers_of_a_header_alone_are_not_built() -> None:
    with pytest.raises(ConfigError, match="Q-PLANNING-005") as refused:
        read_shape({"model_type": "gemma2"}, "model.gguf", build=False)
    assert "snakemake base" in str(refused.value)


def known_family(name: str) -> Any:
    """The family of the GGUFs of this architecture."""
    return family_in({"general.architecture": name})


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=SLOW if name == "qwen35" else []) for name in OWN_HEADERS]
)
def test_the_header_of_a_known_family_is_enough(family: str, tmp_path: Path) -> None:
    """As of a file that is to be trained on and is not yet the project's base."""
    own, in_config = OWN_HEADERS[family]
    writer = GGUFWriter(tmp_path / "a.gguf", family)
    for field, value in (HEADER | own).items():
        add = {int: writer.add_uint32, float: writer.add_float32, list: writer.add_array}[type(value)]
        add(f"{family}.{field}", value)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{number}" for number in range(SIZES["vocab_size"])])
    writer.add_tensor("token_embd.weight", np.zeros((SIZES["vocab_size"], SIZES["hidden_size"]), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = tmp_path / "a.gguf"
    same = {"model_type": known_family(family).model_type, "tie_word_embeddings": True, "pad_token_id": None}
    config = {**same, **SIZES, **in_config}
    assert gguf_shape(file) == read_shape(config)
    with pytest.raises(ConfigError, match="Q-PLANNING-005"):
        gguf_shape(file, build=False)


@pytest.mark.parametrize("family", ["lfm2", "qwen35"])
def test_linears_of_hybrids_are_called_as_in_their_file(family: str) -> None:
    """By the package gguf's map, which llama.cpp's converter has."""
    known = known_family(family)
    shape = read_shape({"model_type": known.model_type, **SIZES, **OWN_HEADERS[family][1]})
    names = name_map(known, shape.layers)
    for layer, linears in enumerate(shape.by_layer):
        for linear in linears:
            in_file = mapped_name(f"{linear.path(layer)}.weight", names)
            assert in_file == f"blk.{layer}.{linear.tensor}.weight"


def test_an_architecture_on_which_liger_stumbles_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    from liger_kernel.transformers import monkey_patch

    def stumble(
        *, rope: bool, rms_norm: bool, swiglu: bool, cross_entropy: bool, fused_linear_cross_entropy: bool
    ) -> None:
        raise AttributeError("this architecture has no such part")

    monkeypatch.setitem(monkey_patch.MODEL_TYPE_TO_APPLY_LIGER_FN, "granite", stumble)
    built = read_shape({"model_type": "granite", **SIZES, "vocab_size": 303}).built
    assert built
    assert not built.liger


def test_the_command_plans_a_family_by_its_config(tmp_path: Path) -> None:
    sizes = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3_text", **SIZES, **sizes}))
    plan = plan_json("--recipe", "qwen2.5-0.5b", "--config", tmp_path / "config.json", "--vram", 8)
    assert plan["loss"] == "chunked"  # Liger has other kernels for it
    assert plan["fits"]
    longer = plan_of(shape=load_shape(tmp_path / "config.json"), length=2048, room=GIB)
    shorter = plan_of(shape=load_shape(tmp_path / "config.json"), length=256, room=GIB)
    assert longer.memory.total > shorter.memory.total


def test_a_level_of_fused_linears_is_computed_by_the_rules_of_values() -> None:
    phi = read_shape(
        {"model_type": "phi3", **SIZES, "pad_token_id": 0, "hidden_size": 256, "intermediate_size": 512}
    )
    types = [(name, kind) for name, kind, _ in matrices(phi, "Q4_K_M")]
    assert [kind for name, kind in types if name == "attn_qkv"] == ["Q4_K", "Q6_K"]
    assert {kind for name, kind in types if name == "ffn_up"} == {"Q4_K"}
