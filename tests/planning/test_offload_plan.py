"""The plan of layers in main memory: bytes as the tensors have them, time for the copies, advice as a last
resort.
"""

import sys
from pathlib import Path

import pytest
from test_planning import GIB, QWEN_7B, RECIPE
from tiny import untied_qwen2

from pipeline.config.sections import Training
from pipeline.core.errors import ConfigError
from pipeline.core.places import PROJECT
from pipeline.planning.card import Card, wants_gpu
from pipeline.planning.duration import Work
from pipeline.planning.memory import CUDA_CONTEXT, plan_memory
from pipeline.planning.memory_reductions import Setup, memory_reductions
from pipeline.planning.offload import PCIE, copied_bytes, offloaded_bytes
from pipeline.planning.plan import make_plan
from pipeline.planning.quantized import quantized_file, quantized_level
from pipeline.planning.shape import load_shape

sys.path.insert(0, str(PROJECT))
TRAIN = RECIPE.training


def changed(**changes: object) -> Training:
    return TRAIN.model_copy(update=changes)


@pytest.mark.parametrize("quantization", ["nf4", "none", "gguf"])
def test_the_bytes_are_those_of_the_tensors(quantization: str, tmp_path: Path) -> None:
    from benchmarks.random_gguf import write_random_gguf
    from pipeline.models.offload import OffloadedWeight
    from pipeline.models.qlora import load_quantized
    from pipeline.models.tuners import put_tuner

    gguf = quantization == "gguf"
    base = write_random_gguf(tmp_path / "base", "blocks") if gguf else untied_qwen2(tmp_path)
    train = changed(quantization=quantization, offload_layers=2, loss="chunked", embeddings_on_cpu=False)
    model = put_tuner(load_quantized(base, train), train)
    found = [0, 0]
    for module in model.modules():
        one = getattr(module.__dict__.get("forward"), "__self__", None)
        if isinstance(one, OffloadedWeight):
            found[one.layer] += one.bytes
    packed = quantized_file(base / "model.gguf") if gguf else None
    assert offloaded_bytes(load_shape(base / "config.json"), train, packed) == found
    assert packed is None or packed.linears == sum(packed.layers)


def test_a_plan_has_all_but_one_of_the_layers_less() -> None:
    for quantization in ("nf4", "gguf"):
        packed = quantized_level(QWEN_7B, "Q4_K_M") if quantization == "gguf" else None
        assert packed is None or sum(packed.layers) == packed.linears
        plain, half = (
            plan_memory(
                QWEN_7B,
                changed(quantization=quantization, offload_layers=count, embeddings_on_cpu=False),
                1024,
                "cuda",
                "liger",
                packed,
            )
            for count in (0, 14)
        )
        layers = offloaded_bytes(QWEN_7B, changed(quantization=quantization, offload_layers=14), packed)
        assert plain.allocated - half.allocated == sum(layers) - max(layers) > 1.4e9
    assert half.loading == 0  # a GGUF's are never there


def test_weights_that_are_loaded_first_have_to_fit_while_they_are() -> None:
    plan = plan_memory(QWEN_7B, changed(offload_layers=28), 64, "cuda", "liger")
    assert plan.total == plan.loading > plan.allocated + CUDA_CONTEXT
    assert plan.loading == plan_memory(QWEN_7B, changed(embeddings_on_cpu=True), 64, "cuda", "liger").loading


def test_copies_take_time() -> None:
    def seconds(**changes: object) -> float:
        plan = make_plan(
            QWEN_7B, changed(**changes), 1024, [], Card("x", 8 * GIB, "cuda"), Work(1024 * 8, 1), 20.0
        )
        assert plan.seconds
        return plan.seconds

    half = sum(offloaded_bytes(QWEN_7B, changed(offload_layers=14)))
    # eight forwards, and as many backwards
    assert seconds(offload_layers=14) - seconds() == pytest.approx(8 * 2 * half / PCIE)
    frozen = changed(offload_layers=14, freeze_layers=14)
    assert copied_bytes(QWEN_7B, frozen) == half  # no backward goes there
    assert copied_bytes(QWEN_7B, frozen, forwards=2.0) == 3 * half


def test_on_a_cpu_it_is_refused_and_it_asks_for_a_gpu() -> None:
    train = changed(offload_layers=1, loss="auto", optim="adamw_torch")
    assert wants_gpu(train) and not wants_gpu(train.model_copy(update={"offload_layers": 0}))
    with pytest.raises(ConfigError, match="Q-PLANNING-008"):
        plan_memory(QWEN_7B, train, 1024, "cpu", "chunked")


def test_it_is_the_last_advice_with_as_few_layers_as_fit() -> None:
    train = changed(quantization="gguf", embeddings_on_cpu=False, r=8)
    setup = Setup(QWEN_7B, train, 512, "cuda", "liger", quantized_level(QWEN_7B, "Q4_K_M"))
    (advice,) = memory_reductions(setup, 5 * GIB)
    count = int(advice.change.removeprefix("train.offload_layers: "))
    assert advice.enough and 0 < count < 28
    assert setup.at(512, offload_layers=count).plan().total <= 5 * GIB
    assert setup.at(512, offload_layers=count - 1).plan().total > 5 * GIB
    longer = Setup(QWEN_7B, changed(quantization="gguf"), 4096, "cuda", "liger", setup.quantized)
    keys = [one.change.partition(":")[0] for one in memory_reductions(longer, 5 * GIB)]
    assert keys == ["preprocess.max_length", "train.r", "train.offload_layers"]
    dora = Setup(QWEN_7B, train.model_copy(update={"use_dora": True}), 512, "cuda", "liger", setup.quantized)
    assert not any("offload" in one.change for one in memory_reductions(dora, 2 * GIB))
