"""The settings that few need act where they should: how gradients are cut, how fast B learns, which rows come
when, what is kept; and a run with all of them goes on to the same bytes.
"""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from train_runs import goes_on_to_the_same, run, settings, trainer_in

from pipeline.stages.merge.stage import merge

EVERYTHING: dict[str, Any] = {
    "target_modules": r".*(self_attn|mlp)\.(q|v|up|down)_proj",
    "layers": "1-",
    "rank_pattern": {"down_proj": 6},
    "lora_variants": ["rslora", "gaussian", "lora_plus"],
    "clip_value": 0.01,
    "order": "as_given",
    "save_total_limit": 2,
    "gradient_checkpointing": 2,
    "lora_dropout": 0.1,
}


def test_elements_are_cut_as_torch_cuts_them_and_then_the_norm(prepared: Path, tmp_path: Path) -> None:
    made = trainer_in(prepared, tmp_path, settings(r=4, clip_value=0.02, max_grad_norm=0.1))
    torch.manual_seed(0)
    plain = [torch.randn(weight.shape) for weight in made.trained]
    for weight, gradient in zip(made.trained, plain, strict=True):
        weight.grad = gradient.clone()
    twins = [torch.nn.Parameter(torch.zeros_like(gradient)) for gradient in plain]
    for twin, gradient in zip(twins, plain, strict=True):
        twin.grad = gradient.clone()
    torch.nn.utils.clip_grad_value_(twins, 0.02)
    torch.nn.utils.clip_grad_norm_(twins, 0.1)
    norm = torch.cat([gradient.flatten() for gradient in plain]).norm()
    assert made.clip() == pytest.approx(float(norm), rel=1e-5)  # of the gradients before they were cut
    for weight, twin in zip(made.trained, twins, strict=True):
        assert torch.equal(weight.grad, twin.grad)


def test_cutting_elements_alone_changes_what_is_learned(prepared: Path, tmp_path: Path) -> None:
    plain = run(prepared, tmp_path / "plain")
    cut = run(prepared, tmp_path / "cut", clip_value=1e-4)
    norms = [[row["grad_norm"] for row in report["metrics_log"][:1]] for report in (plain, cut)]
    assert norms[0] == pytest.approx(norms[1])  # the first step's gradient is the same before it is cut
    assert plain["eval_loss"] != cut["eval_loss"]


def test_without_shuffling_rows_come_in_the_files_order(prepared: Path, tmp_path: Path) -> None:
    def passes(**changes: Any) -> list[list[int]]:
        made = trainer_in(prepared, tmp_path, settings(r=4, **changes))
        return [[number for batch in made.batches(epoch, 0) for number in batch["rows"]] for epoch in (0, 1)]

    rows = [*range(len(passes()[0]))]
    assert passes(order="as_given") == [rows, rows]
    first, second = passes()
    assert first != rows and first != second and sorted(first) == sorted(second) == rows


def test_as_many_checkpoints_are_kept_as_is_asked_for(prepared: Path, tmp_path: Path) -> None:
    run(prepared, tmp_path, max_steps=4, save_steps=1, eval_steps=4, save_total_limit=2)
    kept = sorted(path.name for path in (tmp_path / "checkpoints").glob("checkpoint-*"))
    assert kept == ["checkpoint-3", "checkpoint-4"]


def test_checkpoints_and_evaluations_come_after_each_pass(prepared: Path, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"max_steps": -1, "num_train_epochs": 2, "gradient_accumulation_steps": 2}
    report = run(prepared, tmp_path, **changes, save_steps="epoch", eval_steps="epoch")
    rows = report["metrics_log"]
    ends = [row["step"] for row in rows if row["kind"] == "step" and float(row["epoch"]).is_integer()]
    assert len(ends) == 2 and ends[0] > 1
    assert [row["step"] for row in rows if row["kind"] == "eval"] == ends
    kept = sorted(path.name for path in (tmp_path / "checkpoints").glob("checkpoint-*"))
    assert kept == sorted(f"checkpoint-{step}" for step in ends)


def test_the_cosine_ends_at_its_floor(prepared: Path, tmp_path: Path) -> None:
    report = run(prepared, tmp_path, max_steps=4, learning_rate=1e-3, min_lr_rate=0.2, warmup_ratio=0.0)
    rates = [row["learning_rate"] for row in report["metrics_log"] if row["kind"] == "step"]
    expected = [1e-3 * (0.2 + 0.8 * (1 + math.cos(math.pi * step / 4)) / 2) for step in range(4)]
    assert rates == pytest.approx(expected)


def test_b_learns_faster_by_the_ratio_and_decays_as_a_does(prepared: Path, tmp_path: Path) -> None:
    made = trainer_in(
        prepared, tmp_path, settings(r=4, lora_variants=["lora_plus"], learning_rate=1e-3, weight_decay=0.03)
    )
    groups = [group for group in made.optimizer.param_groups if group["params"]]
    names = {id(parameter): name for name, parameter in made.model.named_parameters()}
    for group in groups:
        parts = {"lora_B" in names[id(parameter)] for parameter in group["params"]}
        assert parts in ({True}, {False})
        assert group["initial_lr"] == (16e-3 if parts == {True} else 1e-3)
        assert group["weight_decay"] == 0.03
    training = sum(parameter.requires_grad for parameter in made.model.parameters())
    assert sum(len(group["params"]) for group in groups) == training


def test_a_run_with_all_of_it_goes_on_to_the_same_bytes(prepared: Path, tmp_path: Path) -> None:
    goes_on_to_the_same(prepared, tmp_path, **EVERYTHING)


def test_norms_go_on_to_the_same_bytes_and_are_merged_as_they_were_trained(
    prepared: Path, tmp_path: Path
) -> None:
    saved = ["input_layernorm", "post_attention_layernorm", "norm"]
    goes_on_to_the_same(prepared, tmp_path, modules_to_save=saved, learning_rate=0.01, warmup_ratio=0.0)
    adapter, base = tmp_path / "unbroken/adapter", prepared / "models/base"
    trained = {
        name.removeprefix("base_model.model."): value
        for name, value in load_file(adapter / "adapter_model.safetensors").items()
        if "lora_" not in name
    }
    assert len(trained) == 5
    before = load_file(base / "model.safetensors")
    assert not any(torch.equal(value, before[name].float()) for name, value in trained.items())
    for merge_base in ("16-bit", "nf4"):
        merge(
            base=base, adapter=adapter, merged=tmp_path / merge_base, dtype="float16", merge_base=merge_base
        )  # type: ignore[arg-type]
        merged = load_file(tmp_path / merge_base / "model.safetensors")
        assert all(torch.equal(merged[name], value.half()) for name, value in trained.items())


@pytest.mark.parametrize(
    "changes", [{"lora_variants": ["dora", "gaussian"]}, {"layers": [1], "lora_variants": ["rslora"]}]
)
def test_it_learns_on_nf4(changes: dict[str, Any], prepared: Path, tmp_path: Path) -> None:
    report = run(prepared, tmp_path, **changes)
    assert report["proven"]["trainable_parameters"] > 0
    assert (tmp_path / "adapter/adapter_model.safetensors").is_file()


@pytest.mark.slow
def test_embeddings_and_head_go_on_to_the_same_bytes(prepared: Path, tmp_path: Path) -> None:
    report = goes_on_to_the_same(prepared, tmp_path, modules_to_save=["embed_tokens", "lm_head"])
    adapter, base = tmp_path / "unbroken/adapter", prepared / "models/base"
    trained = load_file(adapter / "adapter_model.safetensors")
    before = load_file(base / "model.safetensors")["model.embed_tokens.weight"].float()
    for name in ("model.embed_tokens", "lm_head"):  # the base has one table for both
        after = trained[f"base_model.model.{name}.weight"]
        assert torch.equal(after, trained["base_model.model.lm_head.weight"])
        assert not torch.equal(after, before)
    assert report["memory"]["adapter"] > 4 * before.numel()
