"""The plan of several processes: what exchanging takes, and what a base that is shared out saves a card."""

import pytest
from test_planning import GIB, QWEN_7B, RECIPE

from pipeline.config.sections import Training
from pipeline.planning.memory import MemoryPlan, plan_memory
from pipeline.planning.memory_reductions import Setup, memory_reductions
from pipeline.planning.offload import layer_bytes
from pipeline.planning.processes import GATHERED
from pipeline.planning.quantized import quantized_level


def changed(**changes: object) -> Training:
    return RECIPE.training.model_copy(update=changes)


def planned(processes: int, level: str | None = None, **changes: object) -> MemoryPlan:
    packed = quantized_level(QWEN_7B, level) if level else None
    return plan_memory(QWEN_7B, changed(**changes), 1024, "cuda", "liger", packed, processes)


def part(plan: MemoryPlan, name: str) -> int:
    return sum(one.bytes for one in plan.parts if one.name == name)


@pytest.mark.parametrize("level", [None, "Q4_K_M"])
def test_a_card_has_its_part_of_the_layers_and_those_that_run(level: str | None) -> None:
    changes = {"quantization": "gguf"} if level else {}
    packed = quantized_level(QWEN_7B, level) if level else None
    layers = layer_bytes(QWEN_7B, changed(**changes), packed)
    whole, shared = (planned(4, level, shard_base=on, **changes) for on in (False, True))
    assert (
        whole.allocated - shared.allocated == sum(layers) - sum(layers) // 4 - GATHERED * max(layers) > 1.5e9
    )
    assert shared.loading == 0  # it is loaded in main memory
    assert planned(1, level, shard_base=True, **changes) == planned(1, level, **changes)


def test_exchanging_takes_a_round_what_comes_and_the_sum() -> None:
    assert part(planned(1), "exchanged gradients") == 0
    trained = part(planned(1), "gradients")
    assert part(planned(4), "exchanged gradients") == 2 * trained + trained // 4


def test_sharing_out_is_advised_to_several_where_nothing_cheaper_is_enough() -> None:
    alone, four = (
        memory_reductions(Setup(QWEN_7B, changed(), 1024, "cuda", "liger", processes=processes), 4 * GIB)
        for processes in (1, 4)
    )
    assert four[-1].change == "train.shard_base: true" and four[-1].enough
    assert "shard_base" not in str(alone) and not alone[-1].enough
