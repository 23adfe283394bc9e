"""Download, disk, what is shipped and memory of each strategy a level, against sums by hand."""

from typing import Any

import pytest

from pipeline.config.params import load_params
from pipeline.core.places import PROJECT
from pipeline.planning.memory import plan_memory
from pipeline.planning.memory_reductions import Setup
from pipeline.planning.published import published_shape
from pipeline.planning.quantized import QuantizedBase, quantized_level
from pipeline.planning.strategies import Strategy, lora_bytes, strategies

TRAIN = load_params(PROJECT / "recipes" / "qwen2.5-7b-8gb.yaml").training
QWEN_7B = published_shape("Qwen/Qwen2.5-7B-Instruct")
assert QWEN_7B
Q4_K_M = 4_683_073_536  # bytes of the published file


def table(level: str = "Q4_K_M", quantized: QuantizedBase | None = None, **changed: Any) -> list[Strategy]:
    """The strategies of Qwen2.5-7B on a GPU, rows of 1,024 tokens."""
    assert QWEN_7B
    return strategies(
        Setup(QWEN_7B, TRAIN.model_copy(update=changed), 1024, "cuda", "liger", quantized), level
    )


def test_qwen_7b_by_hand() -> None:
    sixteen, lora = 2 * 7_615_616_512, 2 * 40_370_176
    assert (lora_bytes(QWEN_7B, TRAIN, "F16"), lora_bytes(QWEN_7B, TRAIN, "F32")) == (lora, 2 * lora)
    # norms and biases stay in float32; 36 bytes of header a token
    f16 = sixteen + 2 * QWEN_7B.small_weights + 36 * 152_064
    level = quantized_level(QWEN_7B, "Q4_K_M").file
    assert level == pytest.approx(Q4_K_M, rel=0.001)
    merged_16, merged_nf4, on_nf4, on_level, scales, distilled, merged_distilled = table()
    assert (merged_16.download, merged_nf4.download, on_nf4.download, on_level.download) == (
        sixteen,
        sixteen,
        sixteen + level,
        level,
    )
    assert merged_16.on_disk == merged_nf4.on_disk == 2 * sixteen + f16 + level
    # the level and each copy with other scales; what is learned from is there too
    assert (scales.on_disk, distilled.on_disk) == (2 * level, f16 + 3 * level)
    assert (scales.download, distilled.download, merged_distilled.download) == (level, f16, sixteen)
    assert merged_distilled.on_disk == merged_16.on_disk + level
    assert scales.shipped == distilled.shipped == merged_distilled.shipped == (level,)
    assert (on_nf4.on_disk, on_level.on_disk) == (sixteen + level + lora, level + lora)
    assert merged_16.shipped == merged_nf4.shipped == (level,) and on_nf4.shipped == on_level.shipped == (
        level,
        lora,
    )


def test_as_it_is_told() -> None:
    merged_16, _, _, on_level, *_ = table()
    assert [round(strategy.download / 1e9, 1) for strategy in (merged_16, on_level)] == [15.2, 4.7]
    assert [round(strategy.on_disk / 1e9, 1) for strategy in (merged_16, on_level)] == [
        50.4,
        4.8,
    ]  # 15.2 + 15.2 + 15.2 + 4.7, and 4.7 + 0.08


def test_memory_is_the_plans_own() -> None:
    def total(quantization: str, tuner: str = "lora") -> int:
        assert QWEN_7B
        base = quantized_level(QWEN_7B, "Q4_K_M")
        return plan_memory(
            QWEN_7B,
            TRAIN.model_copy(update={"quantization": quantization, "tuner": tuner}),
            1024,
            "cuda",
            "liger",
            base,
        ).total

    assert [strategy.training for strategy in table()] == [
        total("none"),
        total("nf4"),
        total("nf4"),
        total("gguf"),
        total("gguf", "scales"),
        total("gguf", "scales"),
        max(total("nf4"), total("gguf", "scales")),
    ]
    assert table() == table(tuner="scales")
    assert table() == table(quantization="gguf")  # whichever is set


def test_a_file_that_is_there_is_taken_and_what_it_was_made_from() -> None:
    base = QuantizedBase(
        3_000_000_000, 400_000_000, 500_000_000, 4_000_000_000, frozenset({"Q4_K"}), "as in the file"
    )
    assert table(quantized=base)[3].download == 4_000_000_000
    finer = QuantizedBase(
        *(3_000_000_000, 400_000_000, 500_000_000, 4_000_000_000),
        frozenset({"Q4_K"}),
        "as in the file",
        8_000_000_000,
    )
    strategy = table(quantized=finer)[3]
    assert (strategy.download, strategy.on_disk) == (8_000_000_000, 12_000_000_000 + 2 * 40_370_176)


@pytest.mark.parametrize("changed", [{"use_dora": True}, {"alpha_pattern": {"q_proj": 8}}])
def test_strategies_with_an_adapters_gguf_are_left_out_where_it_cant_hold_the_adapter(
    changed: dict[str, Any],
) -> None:
    plain, left = table(), table(**changed)
    assert [one.name for one in left] == [one.name for one in plain if len(one.shipped) == 1]
    by_scales = next(one for one in left if one.tuner == "scales")
    assert by_scales in plain  # scales have neither


def test_types_that_cant_be_trained_on_are_said() -> None:
    assert [strategy.training is None for strategy in table("IQ3_S")] == [
        False,
        False,
        False,
        True,
        True,
        True,
        True,
    ]
    assert table("IQ4_XS")[3].training
