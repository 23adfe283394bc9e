"""The linears that train: layers frozen or named, patterns of names, ranks and scales; proven by count and by
what the adapter computes.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from offloaded import tuned
from peft import get_peft_model
from qlora import adapted, same, sixteen, step
from tiny import untied_qwen2

from pipeline.core.errors import ConfigError
from pipeline.models.chunked_loss import chunked_loss
from pipeline.models.qlora import load_quantized
from pipeline.models.tuners import TUNERS, put_tuner
from pipeline.models.tuners.lora import check_adapter, lora_config

LAYERS, SIZE = 4, {"q_proj": 64 + 64, "k_proj": 64 + 32, "v_proj": 64 + 32, "o_proj": 64 + 64}
SIZE |= {"gate_proj": 64 + 128, "up_proj": 64 + 128, "down_proj": 128 + 64}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen2 of four layers, 16 bit."""
    return untied_qwen2(tmp_path_factory.mktemp("four"), layers=LAYERS)


def adapted_layers(model: Any) -> set[int]:
    names = (name for name, one in model.named_parameters() if one.requires_grad)
    return {int(name.split(".layers.")[1].split(".")[0]) for name in names}


# --- frozen layers ------------------------------------------------------------------------------------------


def test_the_first_layers_have_no_adapter_and_the_rest_learns_as_always(base: Path) -> None:
    frozen = tuned(base, sixteen(layers="2-"))
    assert adapted_layers(frozen) == {2, 3}
    assert TUNERS["lora"].check(frozen, sixteen(layers="2-")) == 2 * 4 * sum(SIZE.values())
    plain = adapted(base, sixteen())
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            if ".lora_" in name:
                known = dict(frozen.named_parameters()).get(name)
                parameter.copy_(known) if known is not None else parameter.zero_()
    (loss, gradients), (whole, of_all) = step(frozen), step(plain)
    assert loss == whole
    assert all(torch.equal(gradient, of_all[name]) for name, gradient in gradients.items())


@pytest.mark.parametrize("checkpointing", [False, True])
def test_no_gradient_is_asked_for_below_the_first_layer_that_learns(base: Path, checkpointing: bool) -> None:
    from transformers.integrations.neftune import activate_neftune

    recipe = sixteen(layers="2-")
    model, ids = tuned(base, recipe).train(), torch.arange(24)[None]
    activate_neftune(model, 5.0)
    if checkpointing:  # which makes the embeddings' output ask for a gradient
        model.activation_checkpointing_enable({"use_reentrant": False})
    seen: list[bool] = []
    layers = model.get_base_model().model.layers
    for layer in layers:
        layer.register_forward_pre_hook(lambda _, given: seen.append(given[0].requires_grad))
    chunked_loss(model.get_base_model(), {"input_ids": ids, "labels": ids}).backward()
    # what is kept, to the byte: tests/planning/test_bytes.py
    assert seen[:LAYERS] == [checkpointing, False, False, True]


def test_frozen_layers_are_no_other_under_checkpointing(base: Path) -> None:
    model = tuned(base, sixteen(layers="2-"))
    plain = step(model)
    model.activation_checkpointing_enable({"use_reentrant": False})
    assert same(step(model), plain)


@pytest.mark.parametrize(
    "changes",
    [
        {"layers": f"{LAYERS}-"},
        {"layers": [LAYERS]},
        {"target_modules": "q_proj"},  # no whole name
        {"target_modules": r".*_(proj|head)"},
        {"target_modules": r".*self_attn.*"},
        {"rank_pattern": {"q_prj": 8}},
        {"rank_pattern": {r"layers\.9\.self_attn\.q_proj": 8}},
    ],
)
def test_what_the_model_has_not_is_refused(base: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="Q-MODELS-026"):
        put_tuner(load_quantized(base, sixteen()), sixteen(**changes))


# --- patterns, ranks, scales --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "parameters"),
    [
        ({"layers": [1, 3]}, 2 * 4 * sum(SIZE.values())),
        ({"target_modules": r".*\.(1|2)\.self_attn\.[qv]_proj"}, 2 * 4 * (SIZE["q_proj"] + SIZE["v_proj"])),
        ({"target_modules": r".*\.self_attn\.q_proj", "layers": "3-"}, 4 * SIZE["q_proj"]),
        ({"target_modules": ["q_proj"], "rank_pattern": {r"layers\.0\..*q_proj": 9}}, 21 * SIZE["q_proj"]),
        ({"lora_variants": ["dora"], "target_modules": ["v_proj"]}, LAYERS * (4 * SIZE["v_proj"] + 32)),
        ({"lora_variants": ["rslora"], "target_modules": ["v_proj"]}, LAYERS * 4 * SIZE["v_proj"]),
    ],
)
def test_the_count_is_the_formulas(base: Path, changes: dict[str, Any], parameters: int) -> None:
    recipe = sixteen(**changes)
    assert TUNERS["lora"].check(tuned(base, recipe), recipe) == parameters


def test_a_rank_or_a_scale_that_is_another_is_found(base: Path) -> None:
    asked = sixteen(rank_pattern={"q_proj": 8})
    model = get_peft_model(load_quantized(base, asked), lora_config(asked))
    assert check_adapter(model, asked) > 0
    for changes in ({"rank_pattern": {}}, {"lora_alpha": 3}, {"lora_variants": ["rslora"]}):
        with pytest.raises(AssertionError, match="has rank"):
            check_adapter(model, sixteen(**{"rank_pattern": {"q_proj": 8}} | changes))


def test_an_adapter_on_a_layer_that_should_be_frozen_is_found(base: Path) -> None:
    model = get_peft_model(load_quantized(base, sixteen()), lora_config(sixteen()))
    with pytest.raises(AssertionError, match="is no target"):
        check_adapter(model, sixteen(layers="1-"))


def test_a_gaussian_start_is_another(base: Path) -> None:
    def start(**changes: Any) -> torch.Tensor:
        torch.manual_seed(0)
        model = put_tuner(load_quantized(base, sixteen(**changes)), sixteen(**changes))
        found: torch.Tensor = model.get_base_model().model.layers[0].mlp.up_proj.lora_A["default"].weight
        return found.detach()

    assert start().abs().max() <= 3**0.5 * 64**-0.5  # Kaiming's, uniform
    assert start(lora_variants=["gaussian"]).std() == pytest.approx(1 / 4, rel=0.2)  # 1 ÷ r


def test_every_nth_layer_alone_is_recomputed(base: Path) -> None:
    model, ids = tuned(base, sixteen()).train(), torch.arange(24)[None]
    plain, runs = step(model), list[int]()
    for number, layer in enumerate(model.get_base_model().model.layers):
        layer.mlp.register_forward_pre_hook(lambda *_, number=number: runs.append(number))
    model.activation_checkpointing_enable({"use_reentrant": False}, every_n_layers=2)
    again = step(model, ids.shape[1])
    assert sorted(runs) == [0, 0, 1, 2, 2, 3]
    assert same(again, plain)
