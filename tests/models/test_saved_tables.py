"""Embeddings and head that train whole: as copies in float32, one for both where the base has one table, with
gradients by every loss, and merged as they were trained.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from qlora import settings, sixteen
from safetensors.torch import load_file, save_file
from tiny import untied_qwen2
from torch.nn.functional import cross_entropy

from pipeline.config.sections import Training
from pipeline.models.chunked_loss import check_head, chunked_loss, token_logps
from pipeline.models.qlora import load_quantized
from pipeline.models.tuners import TUNERS, causal_model, put_tuner, tuner_on
from pipeline.models.tuners.lora import saved_modules, with_adapter
from pipeline.stages.merge.stage import merge

HIDDEN, VOCABULARY = 64, 512
TABLE = HIDDEN * VOCABULARY
BOTH = ["embed_tokens", "lm_head"]
IDS = torch.arange(24)[None]
Bases = dict[str, Path]


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Bases:
    """Return a base with a head of its own, and one whose embeddings are its head."""
    untied = untied_qwen2(tmp_path_factory.mktemp("untied"))
    tied = untied_qwen2(tmp_path_factory.mktemp("tied"))
    config = json.loads((tied / "config.json").read_text(encoding="utf-8"))
    (tied / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}), encoding="utf-8")
    weights = load_file(tied / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, tied / "model.safetensors", {"format": "pt"})
    return {"untied": untied, "tied": tied}


def put(base: Path, recipe: Training) -> Any:
    """Return the base with an adapter and what trains whole."""
    torch.manual_seed(1)
    return put_tuner(load_quantized(base, recipe), recipe)


@pytest.mark.parametrize(
    ("kind", "named", "tables"),
    [("untied", BOTH, 2), ("untied", ["lm_head"], 1), ("tied", BOTH, 1), ("tied", ["lm_head"], 1)],
)
def test_each_named_table_trains_and_one_for_both_once(
    bases: Bases, kind: str, named: list[str], tables: int
) -> None:
    recipe = sixteen(target_modules=["q_proj"], layers="1-", modules_to_save=named)
    plain = recipe.model_copy(update={"modules_to_save": []})
    model = put(bases[kind], recipe)
    without = TUNERS["lora"].check(put(bases[kind], plain), plain)
    assert TUNERS["lora"].check(model, recipe) - without == tables * TABLE
    check_head(causal_model(model))
    copies = saved_modules(model)
    assert set(copies) == (
        {"lm_head"} if kind == "untied" and tables == 1 else {"model.embed_tokens", "lm_head"}
    )
    weights = {id(copy.weight) for copy in copies.values()}
    assert len(weights) == tables


@pytest.mark.parametrize("kind", ["untied", "tied"])
def test_the_losses_give_embeddings_and_head_the_gradients_of_plain_torch(
    bases: Bases, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.models.chunked_loss.CHUNK_LOGITS", 5 * VOCABULARY)
    recipe = sixteen(target_modules=["q_proj"], layers="1-", modules_to_save=BOTH)
    model = put(bases[kind], recipe)
    inner = causal_model(model)
    inputs = {"input_ids": IDS, "labels": IDS}

    def gradients(loss: torch.Tensor) -> dict[str, torch.Tensor]:
        model.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        found = {name: one.grad.clone() for name, one in model.named_parameters() if one.requires_grad}
        assert found
        return found

    logits = inner(input_ids=IDS).logits[0, :-1].float()
    wanted = gradients(cross_entropy(logits, IDS[0, 1:]))
    for loss in (chunked_loss(inner, inputs), -token_logps(inner, inputs).mean()):
        for name, gradient in gradients(loss).items():
            torch.testing.assert_close(gradient, wanted[name], rtol=1e-4, atol=1e-7)
    assert all(wanted[name].any() for name in wanted if "lora_A" not in name)


@pytest.mark.parametrize("kind", ["untied", "tied"])
@pytest.mark.parametrize("quantization", ["none", "nf4"])
def test_they_learn_what_16_bits_would_lose_and_are_merged_as_they_are(
    bases: Bases, tmp_path: Path, kind: str, quantization: str
) -> None:
    recipe = settings(
        quantization=quantization,
        bnb_4bit_compute_dtype="bfloat16",
        target_modules=["v_proj"],
        modules_to_save=BOTH,
    )
    bare = load_quantized(bases[kind], recipe)
    before = answers(bare)
    model = put_tuner(bare, recipe)
    torch.testing.assert_close(answers(model), before, rtol=2e-2, atol=2e-2)  # a head in float32 rounds less
    with torch.no_grad():
        for weight in {id(copy.weight): copy.weight for copy in saved_modules(model).values()}.values():
            weight.mul_(1 + 2**-12)  # bfloat16 has 2⁻⁷
            weight[5] = 0.25
    changed = answers(model)
    assert not torch.equal(changed, before)
    with tuner_on(model).without(model):
        assert torch.equal(answers(model), before)
    tables = [change for name, change, _ in tuner_on(model).numbers(model) if "lora_" not in name]
    assert len(tables) == (1 if kind == "tied" else 2) and all(change.any() for change in tables)
    adapter = tmp_path / "adapter"
    tuner_on(model).save(model, adapter)
    again = with_adapter(load_quantized(bases[kind], recipe), adapter)
    assert torch.equal(answers(again), changed)
    trained = {path: copy.weight.detach().clone() for path, copy in saved_modules(again).items()}
    if kind == "tied":
        assert torch.equal(trained["lm_head"], trained["model.embed_tokens"])
    merge(base=bases[kind], adapter=adapter, merged=tmp_path / "merged", dtype="float16", merge_base="16-bit")
    merged = load_file(tmp_path / "merged/model.safetensors")
    config = json.loads((tmp_path / "merged/config.json").read_text(encoding="utf-8"))
    assert config["tie_word_embeddings"] == (kind == "tied")
    for path, weight in trained.items():
        if f"{path}.weight" in merged:
            assert torch.equal(merged[f"{path}.weight"], weight.half())
    assert {"model.embed_tokens.weight", "lm_head.weight"} & merged.keys()


def answers(model: Any) -> torch.Tensor:
    """Return a model's logits."""
    with torch.no_grad():
        found: torch.Tensor = model.eval()(input_ids=IDS).logits
    return found.float()
