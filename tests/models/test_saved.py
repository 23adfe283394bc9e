"""Norms that train whole: exactly the named ones, in float32, and the base's own without the adapter."""

from pathlib import Path
from typing import Any

import pytest
import torch
from qlora import sixteen
from safetensors.torch import load_file
from tiny import untied_qwen2

from pipeline.core.errors import ConfigError
from pipeline.models.liger_loss import choose_loss
from pipeline.models.qlora import load_quantized
from pipeline.models.tuners import TUNERS, put_tuner, tuner_on
from pipeline.models.tuners.lora import with_adapter

LAYERS, HIDDEN = 3, 64
IDS = torch.arange(24)[None]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untied_qwen2(tmp_path_factory.mktemp("three"), layers=LAYERS)


def copies(model: Any) -> dict[str, torch.Tensor]:
    """The weights of the norms that train whole, by PEFT's names."""
    return {name: weight for name, weight in model.named_parameters() if ".modules_to_save." in name}


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.eval()(input_ids=IDS).logits
    return found


@pytest.mark.parametrize(
    ("changes", "norms"),
    [
        ({"modules_to_save": ["input_layernorm", "norm"]}, LAYERS + 1),
        ({"modules_to_save": ["norm"]}, 1),  # PEFT alone would take every name that ends so
        ({"modules_to_save": ["post_attention_layernorm", "norm"], "layers": "2-"}, 2),
        ({"modules_to_save": ["input_layernorm"], "layers": [0, 2], "lora_variants": ["dora"]}, 2),
    ],
)
def test_the_named_norms_of_the_layers_that_train_are_trained(
    base: Path, changes: dict[str, Any], norms: int
) -> None:
    recipe = sixteen(target_modules=["q_proj"], **changes)
    model = put_tuner(load_quantized(base, recipe), recipe)
    plain = recipe.model_copy(update={"modules_to_save": []})
    without = TUNERS["lora"].check(put_tuner(load_quantized(base, plain), plain), plain)
    assert TUNERS["lora"].check(model, recipe) - without == norms * HIDDEN
    with pytest.raises(AssertionError, match="trains whole"):
        TUNERS["lora"].check(model, plain)


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
@pytest.mark.parametrize("quantization", ["none", "nf4"])
def test_they_learn_what_16_bits_would_lose_and_the_base_keeps_its_own(
    base: Path, tmp_path: Path, quantization: str, compute: str
) -> None:
    recipe = sixteen(modules_to_save=["input_layernorm", "norm"], target_modules=["v_proj"]).model_copy(
        update={"quantization": quantization, "bnb_4bit_compute_dtype": compute}
    )
    bare = load_quantized(base, recipe)
    before = logits(bare)
    model = put_tuner(bare, recipe)
    assert torch.equal(logits(model), before)
    assert not any(change.any() for name, change, _ in tuner_on(model).numbers(model) if "norm" in name)
    with torch.no_grad():
        for copy in copies(model).values():
            copy.mul_(1 + 2**-12)  # bfloat16 has 2⁻⁷
        next(iter(copies(model).values())).mul_(1.5)
    assert all(change.any() for name, change, _ in tuner_on(model).numbers(model) if "norm" in name)
    changed = logits(model)
    assert not torch.equal(changed, before)
    with tuner_on(model).without(model):
        assert torch.equal(logits(model), before)
    assert torch.equal(logits(model), changed)
    tuner_on(model).save(model, tmp_path)
    stored = load_file(tmp_path / "adapter_model.safetensors").values()
    assert {one.dtype for one in stored} == {torch.float32}
    again = with_adapter(load_quantized(base, recipe), tmp_path)
    read = copies(again)
    assert read.keys() == copies(model).keys()
    assert all(torch.equal(copy, read[name]) for name, copy in copies(model).items())
    assert torch.equal(logits(again), changed)


def test_a_norm_that_the_base_has_not_is_refused(base: Path) -> None:
    recipe = sixteen(modules_to_save=["norm", "q_norm"])
    with pytest.raises(ConfigError, match="Q-MODELS-037"):
        put_tuner(load_quantized(base, recipe), recipe)


def test_norms_are_not_trained_by_liger() -> None:
    assert choose_loss("auto", norms=True) == "chunked"
