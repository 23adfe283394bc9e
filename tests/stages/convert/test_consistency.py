"""A model's folder against its config.json: every contradiction is named, and a complete model has none."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from merging import write_base
from qwen2_variants import ROWS, add_token, change_json, cut_models
from safetensors.torch import load_file, save_file

from pipeline.core.errors import DataError
from pipeline.llamacpp.tools import Toolchain
from pipeline.stages.convert.consistency import contradictions

Tensors = dict[str, torch.Tensor]
Q, EMBEDDING = "model.layers.1.self_attn.q_proj", "model.embed_tokens.weight"


@pytest.fixture
def model(tools: Toolchain, tmp_path: Path) -> Path:
    return Path(shutil.copytree(cut_models(tools) / "hf", tmp_path / "hf"))


def change(folder: Path, how: Callable[[Tensors], Any]) -> None:
    tensors = load_file(folder / "model.safetensors")
    how(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def set_to(name: str, value: float) -> Callable[[Tensors], Any]:
    return lambda tensors: tensors[name].view(-1)[7].fill_(value)


def renamed(tensors: Tensors, old: str, new: str) -> None:
    for name in [name for name in tensors if old in name]:
        tensors[name.replace(old, new)] = tensors.pop(name)


def stores(name: str, change: Callable[[Any], Any]) -> Callable[[Tensors], Any]:
    """Stores what is made of the embeddings, or of the tensor itself if it is there."""
    return lambda one: one.update({name: change(one.get(name, one[EMBEDDING])).clone()})


TIE, LAYERS, WEIGHT = "tie_word_embeddings", "num_hidden_layers", f"{Q}.weight"
NO_HEAD = "tie_word_embeddings is false, but there is no lm_head.weight"
UP_BIAS = "model.layers.0.mlp.up_proj.bias"


@pytest.mark.parametrize(
    ("tensors", "config", "output"),
    [
        (
            stores("lm_head.weight", lambda embedding: embedding * 2),
            {},
            "tie_word_embeddings is true, but lm_head.weight is stored and differs",
        ),
        (None, {TIE: False}, NO_HEAD),
        (None, {TIE: None}, NO_HEAD),  # Qwen2's default
        (None, {"vocab_size": ROWS + 1}, f"vocab_size is {ROWS + 1}, but {EMBEDDING} has {ROWS} rows"),
        (stores(EMBEDDING, lambda own: own[:2000]), {"vocab_size": 2000}, "the tokenizer has 2022 tokens"),
        (None, {LAYERS: 3}, "num_hidden_layers is 3, but layer 2 has no tensor (1 layers)"),
        (None, {LAYERS: 1}, "num_hidden_layers is 1, but there are tensors of layer 1 (1 layers)"),
        (lambda one: renamed(one, "layers.1", "layers.2"), {LAYERS: 3}, "layer 1 has no tensor"),
        (lambda one: one.pop(f"{Q}.bias"), {}, f"{Q}.bias is missing and should be 256 (1 tensors)"),
        (stores(WEIGHT, lambda own: own[:128]), {}, f"{WEIGHT} is 128 × 256 and should be 256 × 256"),
        (stores(UP_BIAS, lambda _: torch.zeros(256)), {}, "mlp.up_proj.bias is 256 and should be missing"),
        (
            set_to(WEIGHT, 70_000),
            {},
            "has numbers up to 7.014e+04, more than float16 holds (1 tensors): set convert.type to BF16",
        ),
        (set_to(WEIGHT, -65_536), {}, f"{WEIGHT} has numbers up to 6.554e+04"),
        (set_to(WEIGHT, float("nan")), {}, f"{WEIGHT} has numbers up to nan"),
    ],
)
def test_a_contradiction_is_named(
    model: Path, tensors: Callable[[Tensors], Any] | None, config: dict[str, Any], output: str
) -> None:
    if tensors:
        change(model, tensors)
    change_json(model / "config.json", **config)
    (reason,) = contradictions(model, "F16")
    assert output in reason
    assert ": " in reason  # and what to do


@pytest.mark.parametrize(
    ("tensors", "config", "kind"),
    [
        (stores(WEIGHT, lambda own: own), {}, "F16"),
        (stores("lm_head.weight", lambda embedding: embedding), {}, "F16"),
        (set_to(WEIGHT, 65_280), {}, "F16"),  # the largest bfloat16 that float16 holds
        (set_to(f"{Q}.bias", 1e6), {}, "F16"),  # vectors stay in float32
        (set_to(WEIGHT, 1e30), {}, "BF16"),
        (None, {LAYERS: 1, "num_nextn_predict_layers": 1}, "F16"),
    ],
    ids=["whole", "a tied head", "large", "a large vector", "larger", "multi-token prediction"],
)
def test_what_is_no_contradiction(
    model: Path, tensors: Callable[[Tensors], Any] | None, config: dict[str, Any], kind: str
) -> None:
    if tensors:
        change(model, tensors)
    change_json(model / "config.json", **config)
    assert contradictions(model, kind) == []


NORMALIZES = "normalizes the experts' weights of"


@pytest.mark.parametrize(
    ("kind", "normalized", "output"),
    [
        (
            "qwen3_moe",
            False,
            f"norm_topk_prob is false, but llama.cpp always {NORMALIZES} qwen3_moe: take a base",
        ),
        ("qwen3_moe", None, "norm_topk_prob is false"),  # transformers' default
        ("qwen3_moe", True, ""),
        (
            "qwen2_moe",
            True,
            f"norm_topk_prob is true, but llama.cpp never {NORMALIZES} qwen2_moe: take a base",
        ),
        ("qwen2_moe", False, ""),
        ("qwen2_moe", None, ""),
    ],
)
def test_experts_weights_are_normalized_as_llamacpp_does(
    tmp_path: Path, kind: str, normalized: bool | None, output: str
) -> None:
    model = write_base(tmp_path, {"qwen2_moe": "Qwen2Moe", "qwen3_moe": "Qwen3Moe"}[kind])
    change_json(model / "config.json", norm_topk_prob=normalized)
    reasons = contradictions(model, "F16")
    assert len(reasons) == bool(output)
    assert output in "".join(reasons)


@pytest.mark.parametrize("kind", ["Qwen2Moe", "Qwen3Moe"])
def test_every_expert_is_there_in_its_shape(tmp_path: Path, kind: str) -> None:
    model = write_base(tmp_path, kind, norm_topk_prob=kind == "Qwen3Moe")
    name = "model.layers.1.mlp.experts.3"
    assert contradictions(model, "F16") == []
    change(model, lambda tensors: renamed(tensors, f"{name}.up_proj", f"{name}.gone"))
    assert f"{name}.up_proj.weight" in "".join(contradictions(model, "F16"))


def test_every_reason_is_given(model: Path) -> None:
    add_token(model / "tokenizer.json", "<ticket>")
    change(model, set_to(f"{Q}.weight", 70_000))
    change_json(model / "config.json", vocab_size=ROWS + 1, num_hidden_layers=3, tie_word_embeddings=False)
    assert len(contradictions(model, "F16")) == 4


def test_a_config_that_is_none_is_an_error(model: Path) -> None:
    (model / "config.json").write_text("{")
    with pytest.raises(DataError, match="Q-CONVERT-001"):
        contradictions(model, "F16")
