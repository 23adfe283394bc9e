"""EVA's start: PEFT's own directions, on any base, and nothing but A changes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import EvaConfig, initialize_lora_eva_weights
from test_targets import sixteen
from tiny import untied_qwen2

from pipeline.config.sections import Training
from pipeline.core.errors import ConfigError
from pipeline.models.eva import start_by_eva
from pipeline.models.qlora import load_quantized
from pipeline.models.tuners import put_tuner, without_tuner


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untied_qwen2(tmp_path_factory.mktemp("two"))


def batch(tokens: int = 48, *, trained: int = 40, seed: int = 0) -> dict[str, torch.Tensor]:
    ids = torch.randint(512, (1, tokens), generator=torch.Generator().manual_seed(seed))
    labels = ids.clone()
    labels[:, : tokens - trained] = -100
    return {"input_ids": ids, "labels": labels, "position_ids": torch.arange(tokens)[None]}


def fresh(base: Path, recipe: Training) -> Any:
    torch.manual_seed(1)
    return put_tuner(load_quantized(base, recipe), recipe).eval()


def started(base: Path, recipe: Training, *batches: dict[str, torch.Tensor]) -> Any:
    model = fresh(base, recipe)
    with torch.no_grad(), without_tuner(model):
        start_by_eva(model, batches)
    return model


def numbers(model: Any, part: str = "lora_A") -> dict[str, torch.Tensor]:
    return {name: one.detach() for name, one in model.named_parameters() if part in name}


@pytest.mark.parametrize("changes", [{}, {"rank_pattern": {"down_proj": 6}, "use_rslora": True}])
def test_it_is_pefts_own_start_at_the_configured_ranks(base: Path, changes: dict[str, Any]) -> None:
    recipe = sixteen(init_lora_weights="eva", **changes)
    ours, theirs = started(base, recipe, batch(), batch()), fresh(base, recipe)
    # PEFT repeats the batch until its directions have settled, which they have the second time
    theirs.peft_config["default"].init_lora_weights = "eva"
    theirs.peft_config["default"].eva_config = EvaConfig(rho=1.0)
    initialize_lora_eva_weights(theirs, [batch()], show_progress_bar=False)
    found = numbers(theirs)
    assert all(torch.equal(a, found[name]) for name, a in numbers(ours).items())
    assert {one.r for one in (ours.peft_config["default"], theirs.peft_config["default"])} == {recipe.r}


@pytest.mark.parametrize("rank", [4, 40])  # the randomized SVD draws twice as many directions: of 64
def test_rows_that_are_short_are_looked_at_together(base: Path, rank: int) -> None:
    recipe = sixteen(init_lora_weights="eva", target_modules=["q_proj"], r=rank)
    short = [batch(24, trained=rank // 2 + 1, seed=seed) for seed in range(4)]
    with_others = numbers(started(base, recipe, *short))
    assert all(torch.allclose(a @ a.T, torch.eye(rank), atol=1e-4) for a in with_others.values())
    # without a label, as prompts are, all positions count
    assert numbers(started(base, recipe, batch(48, trained=0)))


@pytest.mark.parametrize("quantization", ["nf4", "none"])
def test_b_stays_0_and_the_model_the_base(base: Path, quantization: str) -> None:
    recipe = sixteen(init_lora_weights="eva").model_copy(update={"quantization": quantization})
    model, plain = started(base, recipe, batch()), fresh(base, recipe)
    assert not any(b.any() for b in numbers(model, "lora_B").values())
    assert any(not torch.equal(a, numbers(plain)[name]) for name, a in numbers(model).items())
    with torch.no_grad():
        answers = model(input_ids=batch()["input_ids"]).logits
        with without_tuner(model):
            assert torch.equal(answers, model(input_ids=batch()["input_ids"]).logits)


@pytest.mark.parametrize(
    ("changes", "rows"), [({}, [batch(6, trained=2)]), ({"r": 65}, [batch(200, trained=150)])]
)
def test_too_few_positions_or_too_short_inputs_are_refused(
    base: Path, changes: dict[str, Any], rows: list[dict[str, torch.Tensor]]
) -> None:
    with pytest.raises(ConfigError, match="Q-MODELS-036"):
        started(base, sixteen(init_lora_weights="eva", **changes), *rows)
