"""Stretched positions, windows and the scale of queries by position: config.json against a GGUF's header."""

from typing import Any

import pytest

from pipeline.gguf.attention_settings import differences
from pipeline.gguf.families.registry import BY_CLASS

LOCAL, ALL = "sliding_attention", "full_attention"
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192}
WINDOWS = {"layer_types": [LOCAL, ALL], "max_position_embeddings": 65_536}
# as published: rope_scaling is of the layers without a window
OLMO3 = WINDOWS | {"rope_scaling": YARN | {"attention_factor": 1.2079441541679836, "beta_fast": 32}}
SAVED = WINDOWS | {"rope_parameters": {LOCAL: {"rope_type": "default"}, ALL: YARN}}
OLMO3_FILE = {
    "attention.sliding_window_pattern": [True, False],
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 8.0,
    "rope.scaling.original_context_length": 8192,
}
MINISTRAL3 = {
    "rope_parameters": YARN
    | {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1, "beta_fast": 24.0}
}
MINISTRAL3_FILE = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 8.0,
    "rope.scaling.original_context_length": 8192,
    "rope.scaling.yarn_beta_fast": 24.0,
    "rope.scaling.yarn_log_multiplier": 1.0,
    "attention.temperature_scale": 0.1,
}
QWEN3 = {"max_position_embeddings": 32_768, "rope_scaling": {"type": "yarn", "factor": 4.0}}
QWEN3_FILE = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 32_768,
}
CONTEXT = "olmo2.rope.scaling.original_context_length"
PATTERN = "olmo2.attention.sliding_window_pattern"
FILES = {"Olmo3": OLMO3_FILE, "Ministral3": MINISTRAL3_FILE, "Qwen3": QWEN3_FILE}


def found(kind: str, config: dict[str, Any], **changed: Any) -> list[str]:
    """The fields that differ between a config and the file of a kind, with changes: "__" stands for a dot,
    and None leaves a field out.
    """
    family = BY_CLASS[f"{kind}ForCausalLM"]
    fields = FILES[kind] | {name.replace("__", "."): value for name, value in changed.items()}
    stated = {f"{family.name}.{name}": value for name, value in fields.items() if value is not None}
    return [difference.field for difference in differences(config, family, stated)]


@pytest.mark.parametrize(
    ("kind", "config"),
    [("Olmo3", OLMO3), ("Olmo3", SAVED), ("Ministral3", MINISTRAL3), ("Qwen3", QWEN3)],
)
def test_a_file_has_what_its_config_says(kind: str, config: dict[str, Any]) -> None:
    assert found(kind, config) == []


@pytest.mark.parametrize(
    ("kind", "changed", "field"),
    [
        ("Olmo3", {"rope__scaling__type": None}, "olmo2.rope.scaling.type"),
        ("Olmo3", {"rope__scaling__type": "linear"}, "olmo2.rope.scaling.type"),
        ("Olmo3", {"rope__scaling__factor": "many"}, "olmo2.rope.scaling.type"),
        ("Olmo3", {"rope__scaling__original_context_length": 4096}, CONTEXT),
        ("Olmo3", {"attention__sliding_window_pattern": [False, True]}, PATTERN),
        ("Olmo3", {"attention__sliding_window_pattern": None}, PATTERN),
        ("Ministral3", {"attention__temperature_scale": None}, "mistral3.attention.temperature_scale"),
        ("Ministral3", {"rope__scaling__yarn_beta_fast": None}, "mistral3.rope.scaling.yarn_beta_fast"),
        ("Qwen3", {"rope__scaling__factor": 2.0}, "qwen3.rope.scaling.factor"),
    ],
)
def test_what_llama_cpp_computes_otherwise_is_named(kind: str, changed: dict[str, Any], field: str) -> None:
    configs = {"Olmo3": OLMO3, "Ministral3": MINISTRAL3, "Qwen3": QWEN3}
    assert found(kind, configs[kind], **changed)[:1] == [field]


def test_without_its_multiplier_the_magnitude_is_another() -> None:
    """Of a Ministral 3, whose cosines and sines stay as they are; by default they grow with the factor."""
    assert found("Ministral3", MINISTRAL3, rope__scaling__yarn_log_multiplier=None) == [
        "mistral3.rope.scaling.yarn_attn_factor",
        "mistral3.rope.scaling.yarn_log_multiplier",
    ]


def test_what_llama_cpp_does_not_read_is_not_what_it_computes_with() -> None:
    """The header repeats the config, and an OLMo 3 is computed with YaRN's usual settings all the same."""
    changed = OLMO3 | {"rope_scaling": YARN | {"beta_fast": 16.0, "attention_factor": 1.5}}
    stated = {"rope__scaling__yarn_beta_fast": 16.0, "rope__scaling__yarn_attn_factor": 1.5}
    assert found("Olmo3", changed, **stated) == [
        "olmo2.rope.scaling.yarn_beta_fast",
        "olmo2.rope.scaling.yarn_attn_factor",
    ]


def test_a_factor_of_one_stretches_nothing() -> None:
    plain = WINDOWS | {"rope_scaling": None}
    assert found("Olmo3", plain, rope__scaling__factor=1.0) == []
    assert found("Olmo3", plain) == ["olmo2.rope.scaling.type"]
