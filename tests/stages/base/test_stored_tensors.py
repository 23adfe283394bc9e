"""base: the tensors in a folder are those of its config.json, by the headers, before a byte is copied."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from families import byte_folder
from qwen2_variants import change_json
from safetensors.torch import load_file, save_file
from tokenizer_folders import with_config, with_zeros

from pipeline.config.sections import Base
from pipeline.core.errors import DataError
from pipeline.gguf.safetensors_rows import INDEX
from pipeline.models.loading import load_model
from pipeline.stages.base.stage import base
from pipeline.stages.convert.consistency import contradictions

Tensors = dict[str, torch.Tensor]
Spoil = Callable[[Tensors], None]
WEIGHTS = "model.safetensors"
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
LINEAR = "model.layers.1.mlp.up_proj"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small Llama of zeros with a tokenizer of bytes."""
    made = byte_folder(tmp_path / "source")
    with_config(made, architectures=["LlamaForCausalLM"], bos_token_id=259, pad_token_id=260)
    return with_zeros(made)


def bring(folder: Path) -> dict[str, Any]:
    """Return the facts of stage base about the folder, which it takes into a project beside it."""
    models = folder.parent / "models"
    return base(Base(model=str(folder)), target=models / "base", record=models / "base.json")


def change(folder: Path, spoil: Spoil) -> None:
    tensors = load_file(folder / WEIGHTS)
    spoil(tensors)
    save_file(tensors, folder / WEIGHTS)


def shards(folder: Path, spoil: Spoil = lambda tensors: None) -> None:
    """Put every layer into a file of its own, and write no index."""
    tensors = load_file(folder / WEIGHTS)
    spoil(tensors)
    (folder / WEIGHTS).unlink()
    for number in (0, 1):
        part = {name: value for name, value in tensors.items() if (".layers.1." in name) == bool(number)}
        if part:
            save_file(part, folder / f"model-0000{number + 1}-of-00002.safetensors")


def put(name: str, *shape: int, dtype: torch.dtype = torch.float16) -> Spoil:
    return lambda tensors: tensors.update({name: torch.zeros(shape, dtype=dtype)})


def of_another_layer(tensors: Tensors) -> None:
    """A layer for drafting, or a config.json of a pruned model."""
    tensors |= {
        name.replace("layers.1", "layers.2"): value.clone()
        for name, value in tensors.items()
        if "layers.1." in name
    }


def of_gptq(tensors: Tensors) -> None:
    """AutoGPTQ of 2023, whose settings are in quantize_config.json."""
    del tensors[f"{LINEAR}.weight"]
    put(f"{LINEAR}.qweight", 8, 64, dtype=torch.int32)(tensors)
    put(f"{LINEAR}.qzeros", 1, 8, dtype=torch.int32)(tensors)
    put(f"{LINEAR}.scales", 1, 64)(tensors)


def of_fp8(tensors: Tensors) -> None:
    """ModelOpt and compressed-tensors, whose settings may be in other files or under another key."""
    put(f"{LINEAR}.weight", 64, 64, dtype=torch.float8_e4m3fn)(tensors)
    put(f"{LINEAR}.weight_scale", 1)(tensors)


def of_mlx(tensors: Tensors) -> None:
    """MLX in 4 bit."""
    put(f"{LINEAR}.weight", 64, 8, dtype=torch.uint32)(tensors)
    put(f"{LINEAR}.scales", 64, 1)(tensors)


def without(part: str) -> Spoil:
    def spoil(tensors: Tensors) -> None:
        for name in [name for name in tensors if part in name]:
            del tensors[name]

    return spoil


def of_no_head(folder: Path) -> None:
    """As `LlamaModel.save_pretrained` writes it."""
    tensors = {name.removeprefix("model."): value for name, value in load_file(folder / WEIGHTS).items()}
    del tensors[HEAD]
    save_file(tensors, folder / WEIGHTS)
    change_json(folder / "config.json", tie_word_embeddings=True)


def of_only_a_head(folder: Path) -> None:
    """The head is tied, and stored in place of the embeddings."""
    change(folder, without(EMBEDDING))
    change_json(folder / "config.json", tie_word_embeddings=True)


def of_no_layers(folder: Path) -> None:
    """config.json has more layers than can be built, and the files have none."""
    change(folder, without("layers."))
    change_json(folder / "config.json", num_hidden_layers=10**9)


POSITIONS = "model.position_ids"
MASK = "model.layers.0.self_attn.causal_mask"
REFUSED: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "a tensor lacks": (lambda at: change(at, without(LINEAR)), "Q-BASE-015", LINEAR),
    "no head": (lambda at: change(at, without(HEAD)), "Q-BASE-015", HEAD),
    "a layer lacks": (lambda at: change(at, without("layers.1")), "Q-BASE-015", "1 layer"),
    "another shape": (lambda at: change(at, put(f"{LINEAR}.weight", 60, 64)), "Q-BASE-015", "(60, 64)"),
    "a surplus layer": (lambda at: change(at, of_another_layer), "Q-BASE-015", "num_hidden_layers"),
    "a value head": (lambda at: change(at, put("v_head.summary.weight", 1, 64)), "Q-BASE-015", "v_head"),
    "a shard lacks": (lambda at: shards(at, without("layers.1")), "Q-BASE-015", "complete the folder"),
    "GPTQ of 2023": (lambda at: change(at, of_gptq), "Q-BASE-011", "int32"),
    "FP8": (lambda at: change(at, of_fp8), "Q-BASE-011", "float8_e4m3fn"),
    "saved without its head": (of_no_head, "Q-BASE-015", "save_pretrained"),
    "MLX": (lambda at: change(at, of_mlx), "Q-BASE-011", "uint32"),
    "a tied head without embeddings": (of_only_a_head, "Q-BASE-015", EMBEDDING),
    "no layers": (of_no_layers, "Q-BASE-015", "1000000000"),
    "positions": (
        lambda at: change(at, put(POSITIONS, 1, 512, dtype=torch.int64)),
        "Q-BASE-015",
        POSITIONS,
    ),
    "a mask": (lambda at: change(at, put(MASK, 8, 8, dtype=torch.bool)), "Q-BASE-015", MASK),
    "weights of integers": (
        lambda at: change(at, put(f"{LINEAR}.weight", 64, 64, dtype=torch.int64)),
        "Q-BASE-011",
        "int64",
    ),
    "int8": (
        lambda at: change(at, put(f"{LINEAR}.weight", 64, 64, dtype=torch.int8)),
        "Q-BASE-011",
        "int8",
    ),
    "NF4": (
        lambda at: change(at, put(f"{LINEAR}.weight", 2048, 1, dtype=torch.uint8)),
        "Q-BASE-011",
        "uint8",
    ),
}


@pytest.mark.timeout(60)  # A model of too many layers is built without end.
@pytest.mark.parametrize("name", REFUSED)
def test_tensors_that_are_not_the_models_are_refused_before_the_copy(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil, id, word = REFUSED[name]
    spoil(folder)
    monkeypatch.setattr(shutil, "copyfile", lambda *_: pytest.fail("a file was copied"))
    with pytest.raises(DataError) as raised:
        bring(folder)
    assert raised.value.id == id and word in raised.value.sentence and str(folder) in raised.value.sentence
    assert not list((folder.parent / "models").glob("*"))


def inverse_frequencies(folder: Path) -> None:
    change(folder, put("model.layers.0.self_attn.rotary_emb.inv_freq", 8, dtype=torch.float32))


def tied_twice(folder: Path) -> None:
    """The head is stored again, as `.bin` files had it."""
    change_json(folder / "config.json", tie_word_embeddings=True)


def other_name(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "weights.safetensors")


@pytest.mark.parametrize("spoil", [inverse_frequencies, tied_twice, shards, other_name])
def test_what_changes_nothing_is_taken(spoil: Callable[[Path], None], folder: Path) -> None:
    spoil(folder)
    facts = bring(folder)
    made = folder.parent / "models/base"
    assert "head_untied" not in facts
    model = load_model(made)
    assert set(model.state_dict()) >= {f"{LINEAR}.weight", HEAD, EMBEDDING}
    assert facts["parameters"] == sum(weight.numel() for weight in model.parameters())
    assert contradictions(made, "F16") == []
    assert (made / INDEX).exists() == (spoil in (shards, other_name))


def test_a_head_of_other_values_is_untied_and_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """hiyouga/LlamaFactory#10560: config.json ties it, and transformers takes the one that is stored."""
    change(folder, lambda tensors: tensors.update({HEAD: torch.ones_like(tensors[HEAD])}))
    change_json(folder / "config.json", tie_word_embeddings=True)
    facts = bring(folder)
    made = folder.parent / "models/base"
    assert facts["head_untied"] and "tie_word_embeddings is false" in capsys.readouterr().out
    assert not json.loads((made / "config.json").read_text(encoding="utf-8"))["tie_word_embeddings"]
    assert facts["parameters"] == sum(value.numel() for value in load_file(made / WEIGHTS).values())
    assert contradictions(made, "F16") == []


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused(value: float, folder: Path) -> None:
    weight = torch.zeros(64, 64)
    weight[3, 5] = value
    change(folder, lambda tensors: tensors.update({f"{LINEAR}.weight": weight}))
    with pytest.raises(DataError, match=f"Q-BASE-015.*{LINEAR}.*not finite.*sha256"):
        bring(folder)
    assert not (folder.parent / "models/base").exists()
