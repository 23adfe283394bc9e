"""Settings that do nothing in a project's graph: each is named with what it would need, none that acts is."""

import re
from typing import Any, get_args

import pytest

from pipeline.config.conditions import CONDITIONS, idle
from pipeline.config.params import Params, load_params
from pipeline.config.sections.values import keys_of
from pipeline.core.places import PROJECT

ADAPTER = {"base": {"quantization": "gguf"}, "evaluate": {"models": ["base", "adapter"]}}
SCALES = {
    "base": {"quantization": "gguf"},
    "train": {"tuner": "scales"},
    "evaluate": {"models": ["base", "tuned"]},
}
UNQUANTIZED = {"base": {"quantization": "none"}}


def params(*parts: dict[str, dict[str, Any]]) -> Params:
    """The defaults with `section: {key: value}` of all parts put in."""
    values: dict[str, dict[str, Any]] = {}
    for part in parts:
        for section, keys in part.items():
            values[section] = values.get(section, {}) | keys
    return Params.model_validate(values)


@pytest.mark.parametrize("path", sorted((PROJECT / "recipes").glob("*.yaml")), ids=lambda path: path.stem)
def test_no_recipe_sets_what_does_nothing(path):
    assert list(map(str, idle(load_params(path)))) == []


@pytest.mark.parametrize(
    ("project", "settings", "needed"),
    [
        (ADAPTER, {"merge": {"base": "nf4"}}, "base.quantization is nf4 or none"),
        (SCALES, {"merge": {"base": "nf4"}}, "base.quantization is nf4 or none"),
        (SCALES, {"quantize": {"levels": ["Q4_0"]}}, "base.quantization is nf4 or none"),
        (ADAPTER, {"quantize": {"tensor_types": {"attn_v": "q8_0"}}}, "base.level is set"),
        (ADAPTER, {"convert": {"type": "BF16"}}, "base.quantization is nf4 or none"),
        (SCALES, {"train": {"r": 8}}, "train.tuner is lora"),
        (SCALES, {"train": {"lora_dropout": 0.1}}, "train.tuner is lora"),
        ({}, {"distill": {"max_steps": 50}}, "quantize.distill is set"),
        ({}, {"compare": {"levels": ["Q4_0"]}}, "compare.seeds is set"),
        ({}, {"parity": {"max_kld_served": 0.01}}, "base.quantization is gguf"),
        ({}, {"evaluate": {"judge": {"url": "http://127.0.0.1:1/v1", "model": "m"}}}, "names judge"),
        ({}, {"train": {"max_steps": 20, "num_train_epochs": 1.0}}, "train.max_steps is -1"),
        ({}, {"train": {"lr_scheduler_type": "constant", "warmup_ratio": 0.2}}, "train.lr_scheduler_type is"),
        ({"train": {"device": "cpu"}}, {"train": {"offload": 4}}, "train.device is auto or gpu"),
    ],
)
def test_a_setting_of_another_graph_is_named_with_what_it_would_need(project, settings, needed):
    changed = {(section, key) for section, keys in settings.items() for key in keys}
    found = list(idle(params(project, settings)))
    named = {tuple(one.key.split(".")) for one in found}
    assert named and named <= changed
    assert any(needed in str(one) for one in found)
    assert not any(one.only.refused for one in found)


@pytest.mark.parametrize(
    "parts",
    [
        ({"base": {"level": "Q4_0"}}, ADAPTER, {"quantize": {"tensor_types": {"attn_v": "q8_0"}}}),
        (
            {"quantize": {"levels": ["Q4_K_M", "Q5_K_M", "Q4_0"], "distill": ["Q4_0"]}},
            {"distill": {"max_steps": 9}},
        ),
        (
            {"compare": {"seeds": [1], "strategies": ["merged_16", "merged_distilled"]}},
            {"distill": {"max_steps": 9}},
        ),
    ],
)
def test_a_setting_that_acts_is_not_named(parts):
    assert list(map(str, idle(params(*parts)))) == []


def test_what_hangs_on_an_idle_setting_is_idle_too():
    waiting = {"compare": {"strategies": ["merged_distilled"]}, "distill": {"max_steps": 9}}
    keys = [one.key for one in idle(params(waiting))]
    assert keys == ["distill.max_steps", "compare.strategies"]


def test_a_comment_that_says_only_has_its_condition():
    said = {
        ".".join(place)
        for place, field in keys_of(Params)
        if re.match(r"[^:]+ only: ", field.description or "") and "experts" not in field.description
    }
    elsewhere = {"base.level"}  # refused with what the source lacks
    assert {key for key in said if not any(only.covers(key) for only in CONDITIONS)} == elsewhere


def test_every_condition_is_on_keys_and_values_that_there_are():
    places = {".".join(place): field.annotation for place, field in keys_of(Params)}
    for only in CONDITIONS:
        assert {*only.keys, *(has.key for has in only.either)} <= places.keys()
        for has in only.either:
            choices = get_args(places[has.key])
            if choices and all(isinstance(choice, str) for choice in choices):
                assert set(has.values) <= set(choices)


def test_the_gates_limit_of_a_merge_waits_for_a_merge():
    settings = {"report": {"gate": {"max_kld_trained": 0.1}}}
    assert [one.key for one in idle(params(ADAPTER, settings))] == ["report.gate.max_kld_trained"]
    assert not list(idle(params(settings)))
