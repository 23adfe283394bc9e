"""The plan of a run in which some layers learn: what is kept to the byte, and the work that is saved."""

from pathlib import Path
from typing import Any

import pytest
from tensor_bytes import kept_bytes
from test_planning import QWEN_7B, RECIPE, hidden_states, settings
from tiny import untied_qwen2

from pipeline.core.errors import ConfigError
from pipeline.planning import activations, weights
from pipeline.planning.activations import Step
from pipeline.planning.duration import flops_per_token
from pipeline.planning.memory import plan_memory
from pipeline.planning.shape import load_shape

TOKENS = 64


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untied_qwen2(tmp_path_factory.mktemp("four"), layers=4)


@pytest.mark.parametrize(
    "changes",
    [
        {"freeze_layers": 2},
        {"layers": [1, 3]},
        {"rank_pattern": {r"2\..*q_proj": 9}},
        {"freeze_layers": 1, "gradient_checkpointing": True},
        {"freeze_layers": 1, "gradient_checkpointing": True, "checkpoint_every": 2},
        {"gradient_checkpointing": True, "checkpoint_every": 3},
        {"modules_to_save": ["input_layernorm", "norm"]},
        {"modules_to_save": ["post_attention_layernorm"], "layers": [1, 2], "lora_dropout": 0.1},
        {"modules_to_save": ["input_layernorm"], "target_modules": r".*\.[23]\.mlp\..*_proj"},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_what_autograd_keeps_is_the_plan_to_the_byte(base: Path, changes: dict[str, Any]) -> None:
    from pipeline.models.qlora import load_quantized
    from pipeline.models.tuners import put_tuner

    train = settings(**{"lora_dropout": 0.0} | changes)
    model = put_tuner(load_quantized(base, train), train).train()
    if train.gradient_checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False}, every_n_layers=train.checkpoint_every)
    step = Step(load_shape(base / "config.json"), train, "cpu", "chunked", TOKENS)
    plan = (
        # the table of positions is one of the inputs that a recomputed layer keeps, and no saved tensor
        activations.inputs_kept(step) - (activations.rope_bytes(step) if train.checkpoint_every == 1 else 0)
        if train.gradient_checkpointing
        else activations.all_kept(step)
    )
    assert kept_bytes(model, lambda: hidden_states(model, TOKENS)) == plan
    trained = sum(one.numel() for one in model.parameters() if one.requires_grad)
    assert trained == sum(weights.trained_tensors(step.shape, train))


@pytest.mark.parametrize("dropout", [0.0, 0.05])
@pytest.mark.parametrize("targets", [["q_proj"], ["down_proj"], ["q_proj", "k_proj", "o_proj", "up_proj"]])
def test_dora_is_planned_not_below_what_it_keeps(base: Path, dropout: float, targets: list[str]) -> None:
    from pipeline.models.qlora import load_quantized
    from pipeline.models.tuners import put_tuner

    train = settings(
        lora_dropout=dropout, use_dora=True, target_modules=targets, bnb_4bit_compute_dtype="bfloat16"
    )
    model = put_tuner(load_quantized(base, train), train).train()
    step = Step(load_shape(base / "config.json"), train, "cpu", "chunked", TOKENS)
    found = kept_bytes(model, lambda: hidden_states(model, TOKENS))
    assert found <= activations.all_kept(step) < 1.2 * found


def test_half_of_the_layers_frozen_save_activations_and_the_backward() -> None:
    train = RECIPE.training.model_copy(update={"gradient_checkpointing": False})
    half = train.model_copy(update={"freeze_layers": 14})
    kept = [
        {part.name: part.bytes for part in plan_memory(QWEN_7B, one, 1024, "cuda", "liger").parts}
        for one in (train, half)
    ]
    assert kept[1]["activations kept"] < 0.55 * kept[0]["activations kept"]
    assert kept[1]["LoRA"] == kept[0]["LoRA"] / 2
    assert 0.65 < flops_per_token(QWEN_7B, half, 1024) / flops_per_token(QWEN_7B, train, 1024) < 0.8


def test_a_layer_that_the_model_has_not_is_refused_before_it_is_loaded() -> None:
    with pytest.raises(ConfigError, match="Q-PLANNING-007"):
        weights.lora_shapes(QWEN_7B, RECIPE.training.model_copy(update={"freeze_layers": 28}))
