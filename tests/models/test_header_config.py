"""config.json from the header of a GGUF that transformers can't read, or the reason why it can't be made."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from families import ON_GGUF
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from pipeline.core.errors import DataError
from pipeline.gguf.families.registry import BY_CLASS, FAMILIES, family_in
from pipeline.gguf.header import Header
from pipeline.models.header_config import header_config

FILE = Path("model.gguf")
# {general.architecture: its first family}
BY_NAME = {family.name: family for family in reversed(FAMILIES)}
SIZES = {
    "embedding_length": 64,
    "feed_forward_length": 96,
    "block_count": 5,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "context_length": 4096,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 5e6,
    "rope.dimension_count": 16,
    "vocab_size": 100,
}
# the same in config.json
COMMON: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5e6},
}
WINDOW = {"attention.sliding_window": 512, "attention.key_length": 32, "attention.value_length": 32}
MINISTRAL3 = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 16.0,
    "rope.scaling.original_context_length": 256,
    "rope.scaling.yarn_beta_fast": 24.0,
    "rope.scaling.yarn_beta_slow": 2.0,
    "rope.scaling.yarn_log_multiplier": 1.0,
    "attention.temperature_scale": 0.1,
    "attention.key_length": 16,
    "attention.value_length": 16,
}
# fields that a family has beside those
OWN: dict[str, dict[str, Any]] = {
    "granite": {
        "attention.scale": 0.015625,
        "embedding_scale": 12.0,
        "residual_scale": 0.22,
        "logit_scale": 8.0,
    },
    "gemma2": WINDOW | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    "gemma3": WINDOW,
    "lfm2": {"attention.head_count_kv": [0, 0, 2, 0, 2], "shortconv.l_cache": 4},
    "mistral3": MINISTRAL3,
    "qwen35": {
        "rope.dimension_count": 4,
        "full_attention_interval": 2,
        "ssm.conv_kernel": 3,
        "ssm.state_size": 8,
        "ssm.group_count": 2,
        "ssm.time_step_rank": 2,
        "ssm.inner_size": 12,
        "attention.key_length": 16,
    },
}
LOCAL, ALL = "sliding_attention", "full_attention"
# OLMo 3's fields as the converter writes them, the third of which llama.cpp doesn't read
OLMO3: dict[str, Any] = {
    "attention__sliding_window": 512,
    "attention__sliding_window_pattern": [True, False, True, True, False],
    "rope__scaling__yarn_attn_factor": 1.2079441541679836,
    "rope__scaling__type": "yarn",
    "rope__scaling__factor": 8.0,
    "rope__scaling__original_context_length": 512,
    "rope__scaling__yarn_beta_fast": 32.0,
    "rope__scaling__yarn_beta_slow": 1.0,
}
PLAIN = COMMON["rope_parameters"]


def header(name: str, **changed: Any) -> Header:
    """A header of the family `name`; "__" stands for a dot, and None leaves a field out."""
    values = SIZES | OWN.get(name, {})
    values |= {field.replace("__", "."): value for field, value in changed.items()}
    fields = {f"{name}.{field}": value for field, value in values.items() if value is not None}
    return Header({"general.architecture": name} | fields, {})


def test_a_gemma_has_the_layers_and_the_scale_that_llama_cpp_takes_for_granted() -> None:
    """By the count of its layers and their widths; the published 27B is the one with another scale."""
    windows = [LOCAL, ALL, LOCAL, ALL, LOCAL]
    own: dict[str, Any] = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    own |= {"sliding_window": 512, "head_dim": 32, "query_pre_attn_scalar": 32, "layer_types": windows}
    found = header_config(header("gemma2", rope__dimension_count=None), BY_NAME["gemma2"], FILE)
    assert found.to_dict() == AutoConfig.for_model("gemma2", **COMMON, **own).to_dict()
    largest = header_config(
        header("gemma2", rope__dimension_count=None, block_count=46), BY_NAME["gemma2"], FILE
    )
    assert largest.query_pre_attn_scalar == 16


@pytest.mark.parametrize(("stored", "base"), [(20_000.0, 20_000.0), (None, 10_000.0)])
def test_layers_with_a_window_have_their_own_rotary_base(stored: float | None, base: float) -> None:
    changed = {"rope__freq_base_swa": stored, "rope__dimension_count": None, "block_count": 7}
    found = header_config(header("gemma3", **changed), BY_NAME["gemma3"], FILE)
    assert found.rope_parameters == {
        ALL: {"rope_type": "default", "rope_theta": 5e6},
        LOCAL: {"rope_type": "default", "rope_theta": base},
    }
    assert found.layer_types == [LOCAL] * 5 + [ALL, LOCAL]
    assert (found.model_type, found.query_pre_attn_scalar, found.sliding_window) == ("gemma3_text", 32, 512)


@pytest.mark.parametrize(
    ("name", "own"),
    [
        (
            "granite",
            {
                "attention_multiplier": 0.015625,
                "embedding_multiplier": 12.0,
                "residual_multiplier": 0.22,
                "logits_scaling": 8.0,
            },
        ),
        ("smollm3", {"no_rope_layers": [1, 1, 1, 0, 1]}),
        ("olmo2", {}),
        ("phi3", {}),
        (
            "lfm2",
            {
                "layer_types": ["conv", "conv", "full_attention", "conv", "full_attention"],
                "block_auto_adjust_ff_dim": False,
                "norm_eps": 1e-5,
                "conv_L_cache": 4,
                "rms_norm_eps": None,
            },
        ),
        (
            "qwen35",
            {
                "head_dim": 16,
                "layer_types": [
                    "linear_attention",
                    "full_attention",
                    "linear_attention",
                    "full_attention",
                    "linear_attention",
                ],
                "linear_conv_kernel_dim": 3,
                "linear_key_head_dim": 8,
                "linear_value_head_dim": 6,
                "linear_num_key_heads": 2,
                "linear_num_value_heads": 2,
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 5e6,
                    "partial_rotary_factor": 0.25,
                },
            },
        ),
    ],
)
def test_it_is_the_config_of_the_model(name: str, own: dict[str, Any]) -> None:
    found = header_config(header(name), BY_NAME[name], FILE)
    # transformers fills in the settings of the rotary embedding that it is given
    settings = {key: deepcopy(value) for key, value in (COMMON | own).items() if value is not None}
    assert found.to_dict() == AutoConfig.for_model(BY_NAME[name].model_type, **settings).to_dict()


@pytest.mark.parametrize(
    ("pattern", "types"),
    [
        ([True, False, True, True, False], [LOCAL, ALL, LOCAL, LOCAL, ALL]),
        (2, [LOCAL, ALL, LOCAL, ALL, LOCAL]),
        (None, [LOCAL, LOCAL, LOCAL, ALL, LOCAL]),
    ],
)
def test_an_olmo_with_windows_has_them_where_its_file_says(pattern: Any, types: list[str]) -> None:
    """Only its layers without a window have stretched positions."""
    stated = header("olmo2", **OLMO3 | {"attention__sliding_window_pattern": pattern})
    family = family_in(stated.fields)
    assert family is not None and family.classes == ("Olmo3ForCausalLM",)
    found = header_config(stated, family, FILE)
    assert (found.model_type, found.sliding_window, found.layer_types) == ("olmo3", 512, types)
    stretched = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512}
    assert found.rope_parameters == {
        LOCAL: PLAIN,
        ALL: PLAIN | stretched | {"beta_fast": 32.0, "beta_slow": 1.0},
    }


def test_an_olmo_before_its_context_was_lengthened_has_plain_positions() -> None:
    left_out = {field: None for field in OLMO3 if field.startswith("rope__scaling")}
    stated = header("olmo2", **OLMO3 | left_out)
    found = header_config(stated, BY_CLASS["Olmo3ForCausalLM"], FILE)
    assert found.rope_parameters == {LOCAL: PLAIN, ALL: PLAIN}


def test_a_ministral_has_its_files_temperature() -> None:
    found = header_config(header("mistral3"), BY_NAME["mistral3"], FILE)
    assert found.model_type == "ministral3"
    assert found.rope_parameters == PLAIN | {
        "rope_type": "yarn",
        "factor": 16.0,
        "original_max_position_embeddings": 256,
        "beta_fast": 24.0,
        "beta_slow": 2.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    }


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"attention__sliding_window_pattern": [True, False]}, "which layers attend to how many"),
        ({"attention__sliding_window_pattern": 0}, "which layers attend to how many"),
        ({"attention__sliding_window_pattern": "yes"}, "which layers attend to how many"),
        ({"attention__sliding_window": 0}, "which layers attend to how many"),
        ({"rope__freq_base_swa": 1e4}, "olmo2.rope.freq_base_swa"),
        ({"rope__scaling__yarn_beta_fast": 16.0}, "yarn_beta_fast 16.0, and llama.cpp computes with 32"),
        ({"rope__scaling__yarn_attn_factor": 1.5}, "yarn_attn_factor 1.5"),
        ({"rope__scaling__attn_factor": 1.5}, "rope.scaling.attn_factor"),
        ({"rope__scaling__yarn_log_multiplier": 1.0}, "yarn_log_multiplier"),
        ({"rope__scaling__factor": 0.0}, "rope.scaling.factor"),
    ],
)
def test_windows_and_positions_that_no_config_has_are_refused(changed: dict[str, Any], what: str) -> None:
    with pytest.raises(DataError, match=f"Q-MODELS-028.*{what}"):
        header_config(header("olmo2", **OLMO3 | changed), BY_CLASS["Olmo3ForCausalLM"], FILE)


@pytest.mark.parametrize(
    ("name", "changed", "what"),
    [
        ("mistral3", {"rope__scaling__type": None}, "no mistral3.rope.scaling.type yarn"),
        ("mistral3", {"attention__temperature_length": 8}, "mistral3.attention.temperature_length"),
        ("granite", {"attention__scale": None}, "no granite.attention.scale"),
        ("granite", {"rope__scaling__finetuned": False}, "granite.rope.scaling.finetuned"),
        ("smollm3", {"rope__dimension_count": 8}, "turns 8 of 16 dimensions"),
        ("smollm3", {"attention__head_count_kv": [2, 2, 2, 2, 1]}, "head_count_kv by layer"),
        ("olmo2", {"attention__sliding_window": 4096}, "olmo2.attention.sliding_window"),
        ("gemma2", {"rope__freq_base_swa": 1e4}, "gemma2.rope.freq_base_swa"),
        ("gemma3", {"attention__sliding_window": None}, "no gemma3.attention.sliding_window"),
        ("gemma3", {"attention__sliding_window_pattern": 2}, "gemma3.attention.sliding_window_pattern"),
        ("phi3", {"rope__scaling__attn_factor": 1.2}, "listed factors"),
        ("lfm2", {"attention__head_count_kv": [0, 4, 2, 0, 2]}, "unlike heads of keys"),
        ("lfm2", {"attention__head_count_kv": 2}, "of each layer whether it attends"),
        ("lfm2", {"attention__sliding_window": 64}, "lfm2.attention.sliding_window"),
        ("qwen35", {"ssm__time_step_rank": 3}, "3 value heads and 2 key heads"),
        ("qwen35", {"ssm__inner_size": None}, "no width of its 2 value heads"),
        ("qwen35", {"full_attention_interval": None}, "of each layer whether it attends"),
        ("qwen35", {"attention__recurrent_layers": [True, False]}, "of each layer whether it attends"),
        ("lfm2", {"nextn_predict_layers": 1}, "lfm2.nextn_predict_layers"),
        ("phi3", {"rope__dimension_count": 20}, "turns 20 of 16 dimensions"),
        ("granite", {"attention__head_count": 128, "rope__dimension_count": None}, "turns 0 of 0 dimensions"),
    ],
)
def test_a_setting_that_training_would_not_see_is_named(
    name: str, changed: dict[str, Any], what: str
) -> None:
    with pytest.raises(DataError, match=f"Q-MODELS-028.*{what}"):
        header_config(header(name, **changed), BY_NAME[name], FILE)


def test_sizes_that_transformers_refuses_are_said_in_a_sentence() -> None:
    odd = header("gemma2", embedding_length=66, rope__dimension_count=None)
    with pytest.raises(DataError, match=r"Q-MODELS-038.*metadata that no model can have.*66"):
        header_config(odd, BY_NAME["gemma2"], FILE)


def test_every_family_that_is_trained_on_its_file_is_in_the_table_of_small_models() -> None:
    tried = {BY_CLASS[MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[name]].classes for name in ON_GGUF}
    assert tried == {family.classes for family in FAMILIES if family.trained_on and not family.experts}


def test_every_family_has_its_own_names() -> None:
    """A file's name may be that of two families if a field tells them apart: OLMo 3's is OLMo 2's."""
    classes = [name for family in FAMILIES for name in family.classes]
    assert len(classes) == len(set(classes))
    for name in {family.name for family in FAMILIES}:
        for window in (None, 512):
            fields = header(name, attention__sliding_window=window).fields
            assert [family for family in FAMILIES if family.is_in(fields)] == [family_in(fields)]
