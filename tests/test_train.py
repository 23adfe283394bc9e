"""train: what the recipe says reaches the trainer, only LoRA trains, packed rows stay apart, a run that went wrong is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.errors import ConfigError, GateError, ToolError
from pipeline.params import Train, load_params
from pipeline.train import check_health, tokens_seen, training_arguments, warmup_steps
from pipeline.training.qlora import check_adapter, choose_loss, load_quantised, lora_config

RECIPES = Path(__file__).parent.parent / "recipes"


def settings(**changes: Any) -> Train:
    plain = load_params(RECIPES / "demo.yaml").train
    return Train.model_validate(plain.model_dump() | changes)


def test_every_value_of_the_8gb_recipe_reaches_the_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_params(RECIPES / "qwen2.5-7b-8gb.yaml").train
    arguments = training_arguments(recipe.model_copy(update={"optim": "adamw_torch"}), tmp_path, rows=2891)
    for name in ("num_train_epochs", "per_device_train_batch_size", "gradient_accumulation_steps", "learning_rate", "weight_decay",
                 "max_grad_norm", "gradient_checkpointing", "save_steps", "save_total_limit", "seed", "logging_steps"):  # fmt: skip
        assert getattr(arguments, name) == getattr(recipe, name), name
    assert (recipe.optim, recipe.loss, recipe.load_in_4bit, recipe.bnb_4bit_use_double_quant) == ("paged_adamw_8bit", "liger", True, True)
    assert arguments.lr_scheduler_type.value == recipe.lr_scheduler_type == "cosine"
    assert arguments.warmup_steps == warmup_steps(recipe, 2891) == 109  # a tenth of 1,086
    lora = lora_config(recipe)
    assert (lora.r, lora.lora_alpha, lora.lora_dropout, sorted(lora.target_modules)) == (16, 32, 0.05, sorted(recipe.target_modules))


def test_a_gpu_optimizer_without_a_gpu_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ToolError, match="paged_adamw_8bit, which needs a GPU"):
        training_arguments(settings(optim="paged_adamw_8bit"), tmp_path, rows=10)
    with pytest.raises(ToolError, match="liger"):
        choose_loss("liger")
    assert choose_loss("auto") == "chunked"


def test_an_unknown_optimizer_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="adamw_torhc"):
        training_arguments(settings(optim="adamw_torhc"), tmp_path, rows=10)


def test_only_lora_trains_and_the_count_is_the_formulas(tiny_qwen2: Path) -> None:
    from peft import get_peft_model

    recipe = settings(r=4)
    model = load_quantised(tiny_qwen2, recipe)
    assert model.model.layers[0].self_attn.q_proj.weight.__class__.__name__ == "Params4bit"
    assert model.model.embed_tokens.weight.dtype == torch.bfloat16  # not cast to float32
    adapted = get_peft_model(model, lora_config(recipe))
    config = model.config
    h, i, kv = config.hidden_size, config.intermediate_size, config.num_key_value_heads * (config.hidden_size // config.num_attention_heads)
    assert check_adapter(adapted, recipe) == config.num_hidden_layers * 4 * (2 * (h + h) + 2 * (h + kv) + 3 * (h + i))


def test_a_target_that_is_nowhere_is_an_error(tiny_qwen2: Path) -> None:
    from peft import get_peft_model

    recipe = settings(target_modules=["q_proj", "query_key_value"])
    adapted = get_peft_model(load_quantised(tiny_qwen2, recipe), lora_config(recipe))
    with pytest.raises(ConfigError, match=r"names query_key_value.*q_proj do exist"):
        check_adapter(adapted, recipe)


def test_packed_rows_do_not_see_each_other(tiny_qwen2: Path) -> None:
    model = load_quantised(tiny_qwen2, settings(load_in_4bit=False, bnb_4bit_compute_dtype="float32"))
    one, two = torch.randint(0, 1000, (1, 9)), torch.randint(0, 1000, (1, 7))
    positions = torch.cat([torch.arange(9), torch.arange(7)])[None]
    with torch.no_grad():
        packed = model(torch.cat([one, two], dim=1), position_ids=positions, use_cache=False).logits[0]
        apart = torch.cat([model(one, use_cache=False).logits[0], model(two, use_cache=False).logits[0]])
    assert torch.allclose(packed, apart, atol=1e-4)


class OneWeight(torch.nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.lora_B = torch.nn.Parameter(torch.full((2, 2), value))


@pytest.mark.parametrize(
    ("history", "weight", "words"),
    [
        ([], 1.0, "without one logged step"),
        ([{"loss": 0.0}, {"loss": 0.0}], 1.0, "exactly 0 in every step"),
        ([{"loss": 1.0}], 0.0, "learnt nothing"),
        ([{"loss": 1.0}], float("nan"), "not finite"),
    ],
)
def test_a_run_that_cannot_have_learnt_is_refused(history: list[dict[str, float]], weight: float, words: str) -> None:
    with pytest.raises(GateError, match=words):
        check_health(OneWeight(weight), history)


def test_a_healthy_run_passes() -> None:
    check_health(OneWeight(0.1), [{"loss": 1.0}])


def test_a_loss_that_is_no_number_stops_the_run(prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """transformers replaces a NaN by the mean of the other losses in its log unless told not to."""
    import shutil

    from safetensors.torch import load_file, save_file

    from pipeline.__main__ import main

    root = Path(shutil.copytree(prepared, tmp_path / "project"))
    weights = root / "models/base/model.safetensors"
    tensors = load_file(weights)
    tensors["model.norm.weight"][0] = float("nan")
    save_file(tensors, weights, metadata={"format": "pt"})
    assert main(["train", "--root", str(root)]) == 5
    assert "the loss at step 1 is nan: lower train.learning_rate" in capsys.readouterr().err
    assert not (root / "models/adapter").exists()


def test_tokens_of_a_resumed_run_are_those_of_all_its_parts() -> None:
    lines = [{"num_tokens": float(count)} for count in (10, 20, 30, 7, 14)]
    assert tokens_seen(lines) == 44
    assert tokens_seen(lines[:3]) == 30
