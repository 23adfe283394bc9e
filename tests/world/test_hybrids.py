"""Bases whose layers are not attention alone: trained one row at a time, refused in a sentence where a method
computes several answers together.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hybrids import SMALL
from train_runs import one_thread, run, settings

from pipeline.chat.tokens import load_tokenizer
from pipeline.config.sections import Train
from pipeline.config.targets import is_target
from pipeline.core.errors import ConfigError
from pipeline.models.own_targets import default_targets, fitted
from pipeline.stages.base.model_trial import tried_model
from pipeline.stages.preprocess.page import render_labels_page
from pipeline.stages.preprocess.stage import preprocess, summary

__all__ = ["one_thread"]  # a fixture of every test here
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
}


def hybrid_project(family: str, prepared: Path, root: Path) -> Path:
    """A project with the rows and the tokenizer of `prepared` and a small random base of `family`."""
    from transformers import AutoConfig, AutoModelForCausalLM

    base = root / "models/base"
    shutil.copytree(prepared / "data/final", root / "data/final")
    shutil.copytree(
        prepared / "models/base", base, ignore=shutil.ignore_patterns("*.safetensors", "config.json")
    )
    tokenizer = load_tokenizer(base)
    ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), tokenizer.eos_token_id)
    config = AutoConfig.for_model(family, vocab_size=len(tokenizer), **SIZES | SMALL[family] | ends)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(base)
    return root


def tokenize(
    project: Path, *, packing: bool, train: Train | None = None
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    return preprocess(
        rows_folder=project / "data/final",
        base=project / "models/base",
        tokens_folder=project / "data/tokens",
        max_length=1024,
        packing=packing,
        train=train,
    )


@pytest.mark.base_cells("NF4", families="family")
@pytest.mark.parametrize("family", SMALL)
def test_a_hybrid_is_trained_when_packing_is_off(family: str, prepared: Path, tmp_path: Path) -> None:
    project = hybrid_project(family, prepared, tmp_path / "project")
    tokenize(project, packing=False)
    train = fitted(settings(), project / "models/base")
    report = run(project, tmp_path / "run", target_modules=train.target_modules, sample_rows=1)
    assert report["steps"] == 2 and report["eval_loss"] > 0
    assert report["proven"]["packing_nmse"] is None  # nothing was packed, so nothing was measured


@pytest.mark.parametrize("family", SMALL)
def test_packing_is_switched_off_on_a_hybrid_and_said(family: str, prepared: Path, tmp_path: Path) -> None:
    project = hybrid_project(family, prepared, tmp_path / "project")
    stats, samples = tokenize(project, packing=True)
    assert not stats["packing"]
    assert all(split["packed_rows"] == split["sequences"] for split in stats["splits"].values())
    assert family in next(summary(stats)) and "not packed" in next(summary(stats))
    assert "rows are not packed" in render_labels_page(stats, samples)


@pytest.mark.parametrize("family", SMALL)
def test_the_trial_of_a_hybrid_says_that_its_rows_are_not_packed(family: str, tmp_path: Path) -> None:
    assert "packed rows" in (tried_model(config_of(family, tmp_path)) or "")


def test_several_rows_of_a_hybrid_in_a_batch_are_refused_in_a_sentence(
    prepared: Path, tmp_path: Path
) -> None:
    project = hybrid_project("lfm2", prepared, tmp_path / "project")
    tokenize(project, packing=False)
    with pytest.raises(ConfigError, match=r"Q-TRAIN-021: .*lfm2.*train.per_device_train_batch_size to 1"):
        run(project, tmp_path / "run", target_modules=r".*\.w1", per_device_train_batch_size=2)


@pytest.mark.parametrize("packing", [True, False])
def test_several_rows_of_a_hybrid_in_a_batch_are_refused_before_the_rows_are_tokenized(
    packing: bool, prepared: Path, tmp_path: Path
) -> None:
    project = hybrid_project("lfm2", prepared, tmp_path / "project")
    with pytest.raises(ConfigError, match=r"Q-PREPROCESS-016: .*lfm2.*per_device_train_batch_size to 1"):
        tokenize(project, packing=packing, train=Train(per_device_train_batch_size=2))
    assert not (project / "data/tokens").exists()


def test_pairs_on_a_hybrid_are_refused_for_the_method_whatever_packing_says(
    prepared: Path, tmp_path: Path
) -> None:
    """A pair's answers share a row, so `preprocess.packing: false` would be no remedy."""
    project = hybrid_project("lfm2", prepared, tmp_path / "project")
    for packing in (True, False):
        with pytest.raises(ConfigError, match=r"Q-PREPROCESS-00[23]: train.method is dpo") as refused:
            tokenize(project, packing=packing, train=settings(method="dpo"))
        assert "preprocess.packing" not in refused.value.sentence and "sft" in refused.value.sentence


def config_of(family: str, folder: Path) -> Path:
    """Write the config.json of a small model of `family`; return the folder."""
    from transformers import AutoConfig

    AutoConfig.for_model(family, vocab_size=256, **SIZES | SMALL.get(family, {})).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("family", "trained", "left"),
    [
        ("lfm2", ("0.conv.in_proj", "0.conv.out_proj", "1.self_attn.out_proj"), ("0.conv.conv",)),
        # a state space's output: its kernels on a GPU take the weight themselves
        ("granitemoehybrid", ("0.mamba.in_proj", "1.self_attn.o_proj"), ("0.mamba.out_proj",)),
        ("qwen3_5_text", ("0.linear_attn.out_proj", "1.self_attn.v_proj"), ("0.linear_attn.conv1d",)),
        ("phi3", ("0.self_attn.qkv_proj", "1.mlp.gate_up_proj"), ("0.mlp",)),
        ("glm4", ("0.self_attn.q_proj", "1.mlp.gate_up_proj"), ("0.mlp",)),
    ],
)
def test_by_default_the_architectures_own_linears_train(
    family: str, trained: tuple[str, ...], left: tuple[str, ...], tmp_path: Path
) -> None:
    train = fitted(settings(), config_of(family, tmp_path))
    assert train.target_modules == default_targets(tmp_path)
    for path in trained:
        assert is_target(f"model.layers.{path}", train) and is_target(f"layers.{path}", train)
    assert not any(is_target(f"model.layers.{path}", train) for path in left)
    assert not is_target("lm_head", train)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text", "falcon_h1"])
def test_the_default_stays_where_every_layer_has_all_of_it(family: str, tmp_path: Path) -> None:
    train = settings()
    assert fitted(train, config_of(family, tmp_path)) == train


@pytest.mark.parametrize(
    ("family", "targets", "words"),
    [
        ("lfm2", ["q_proj"], ("layer 0", "regular expression", r".*\.(q_proj)")),
        ("lfm2", ["query"], ("query", "in_proj")),
        ("phi3", ["q_proj", "v_proj"], ("qkv_proj",)),
        ("granitemoehybrid", r".*mamba\.out_proj", ("mamba.out_proj", "narrower")),
    ],
)
def test_targets_that_a_base_has_not_are_refused_before_rows_are_tokenized(
    family: str, targets: list[str] | str, words: tuple[str, ...], prepared: Path, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    shutil.copytree(prepared / "data/final", project / "data/final")
    shutil.copytree(prepared / "models/base", project / "models/base")
    config_of(family, project / "models/base")
    with pytest.raises(ConfigError, match="Q-MODELS-026") as refused:
        tokenize(project, packing=False, train=settings(target_modules=targets))
    for word in words:
        assert word in refused.value.sentence
