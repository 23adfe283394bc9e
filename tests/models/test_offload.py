"""Weights in main memory that are on the device while their layer runs: copied as often as that is, gone
after it, and nothing that is computed is changed. Here the device is the CPU too, in storages of its own.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from offloaded import CHANGES, LAYERS, LINEARS, trained, tuned
from qlora import same, settings, step
from tiny import tiny_moe, untied_qwen2

from pipeline.core.errors import ConfigError
from pipeline.core.places import PROJECT
from pipeline.models.chunked_loss import chunked_loss
from pipeline.models.finite import finite_record
from pipeline.models.offload import OffloadedWeight
from pipeline.models.qlora import load_quantized
from pipeline.models.runtime import one_thread
from pipeline.models.tuners import TUNERS, causal_model, put_tuner
from pipeline.models.tuners.scales import unchanged_in_file

sys.path.insert(0, str(PROJECT))


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are offloaded from a GPU, where PEFT's own forward computes; on a CPU nothing is copied."""
    monkeypatch.setattr("pipeline.models.lean_lora.lighten", lambda model: None)


@pytest.fixture(autouse=True)
def _small_work() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen2 of four layers, 16 bit."""
    return untied_qwen2(tmp_path_factory.mktemp("four"), layers=LAYERS)


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen2 of two layers in Q4_K_M's blocks."""
    from benchmarks.random_gguf import write_random_gguf

    return write_random_gguf(tmp_path_factory.mktemp("gguf") / "base", "blocks")


def weights(model: Any) -> list[OffloadedWeight]:
    """Return the offloaded weights, in the order of the layers."""
    found = (getattr(one.__dict__.get("forward"), "__self__", None) for one in model.modules())
    return [one for one in found if isinstance(one, OffloadedWeight)]


def resident(model: Any) -> Any:
    return weights(model)[0].resident


def held(model: Any) -> list[int]:
    """Bytes of each offloaded weight on the device."""
    return [one.on_device.untyped_storage().nbytes() for one in weights(model)]


@pytest.mark.parametrize("changes", CHANGES, ids=lambda changes: "-".join(changes) or "plain")
def test_loss_and_gradients_are_those_without_it(base: Path, changes: dict[str, Any]) -> None:
    plain, model = (tuned(base, settings(**changes | more)) for more in ({}, {"offload": 3}))
    assert len(weights(model)) == 3 * LINEARS and sum(held(model)) == 0
    count = sum(one.numel() for one in plain.parameters() if one.requires_grad)
    assert TUNERS["lora"].check(model, settings(**changes | {"offload": 3})) == count
    for _ in range(2):  # the second time some of the first one's are still there
        assert same(step(model), step(plain))


@pytest.mark.parametrize("changes", [{}, {"tuner": "scales"}])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_so_they_are_on_a_gguf(blocks: Path, changes: dict[str, Any], checkpointing: bool) -> None:
    recipe = settings(quantization="gguf", gradient_checkpointing=checkpointing, **changes)
    plain, model = (tuned(blocks, recipe.model_copy(update={"offload": kept})) for kept in ("none", 2))
    assert len(weights(model)) == 2 * LINEARS
    assert same(trained(model), trained(plain))
    assert finite_record(model) == finite_record(plain)
    assert unchanged_in_file(model) is unchanged_in_file(plain) is False


def test_so_they_are_on_a_mixture_whose_idle_experts_are_not_copied(tools: Any, tmp_path: Path) -> None:
    folder = tiny_moe(tmp_path, tools, "Qwen3Moe")
    recipe = settings(experts=["down_proj"], gradient_checkpointing=True)
    plain, model = (tuned(folder, recipe.model_copy(update={"offload": kept})) for kept in ("none", 1))
    assert same(trained(model), trained(plain))
    assert len(weights(model)) == 5 + 4 * 3  # attention, the router and four experts
    before, one_token = resident(model).copies, torch.tensor([[5]])
    with torch.no_grad():
        resident(model).drop()
        model(one_token, use_cache=False)
    assert resident(model).copies - before == 5 + 2 * 3  # of four experts a token is sent to two


@pytest.mark.parametrize("checkpointing", [False, True])
def test_one_layer_is_on_the_device_at_a_time_and_none_after_the_forward(
    base: Path, checkpointing: bool
) -> None:
    model = tuned(base, settings(offload=3, gradient_checkpointing=checkpointing)).train()
    count, most, ids = resident(model), 0, torch.arange(24)[None]
    need = count.need

    def watched(weight: OffloadedWeight) -> None:
        nonlocal most
        need(weight)
        most = max(most, sum(held(model)))

    count.need = watched  # type: ignore[method-assign]
    loss = chunked_loss(causal_model(model), {"input_ids": ids, "labels": ids})
    assert count.copies == 3 * LINEARS and sum(held(model)) == 0
    assert all(one.linear.weight is one.at_rest for one in weights(model))
    loss.backward()
    # a layer that is recomputed is copied once for that and for its backward; without checkpointing the
    # embeddings ask for no gradient, so q, k and v of layer 0 have no backward
    assert count.copies == 2 * 3 * LINEARS - (0 if checkpointing else 3)
    assert most == sum(one.bytes for one in weights(model)[:LINEARS])
    assert all(size == 0 for size in held(model)[LINEARS:])
    assert all(one.linear.weight is one.at_rest for one in weights(model))


def test_frozen_layers_are_copied_once(base: Path) -> None:
    model = tuned(base, settings(offload=3, layers="2-"))
    step(model)
    assert resident(model).copies == (3 + 1) * LINEARS - 3  # q, k and v of layer 2 have no backward


def test_what_moves_the_model_leaves_them_where_they_are(base: Path) -> None:
    model = tuned(base, settings(offload=3, quantization="none"))
    places = [one.at_rest.data_ptr() for one in weights(model)]
    types = {one.at_rest.dtype for one in weights(model)}  # bfloat16, where the processor computes in it
    model.to(torch.float64)
    assert [one.linear.weight.data_ptr() for one in weights(model)] == places
    assert {one.at_rest.dtype for one in weights(model)} == types


def test_more_layers_than_there_are_is_refused(base: Path) -> None:
    recipe = settings(offload=LAYERS + 1)
    with pytest.raises(ConfigError, match="Q-MODELS-026"):
        put_tuner(load_quantized(base, recipe), recipe)
    assert len(weights(tuned(base, settings(offload=LAYERS)))) == LAYERS * LINEARS
