"""Budgets and distillations in plans: what can be made, and what the 16-bit model needs."""

from contextlib import nullcontext
from pathlib import Path

import pytest
from plans import GIB, MIXTURE, QWEN_7B, SMOLLM2, plan_json, run_plan, write_params
from shaped_gguf import fewest_bytes, shaped, written

from pipeline.config.sections import Serve
from pipeline.core.errors import ConfigError
from pipeline.planning.budget import check_budgets, file_bytes, need_room

GPU = Serve(n_gpu_layers=99)
F16 = {"models": ["F16"]}


@pytest.mark.parametrize(
    ("budget", "id"),
    [("2.0bpw", "Q-BUDGET-003"), ("300MB", "Q-BUDGET-004"), ("fits-100MB-at-8192", "Q-BUDGET-002")],
)
def test_what_no_file_can_have_is_refused_before_training(tmp_path: Path, budget: str, id: str) -> None:
    with pytest.raises(ConfigError, match=f"{id}: "):
        check_budgets(SMOLLM2, ["4.6bpw", budget], GPU)
    write_params(tmp_path, "demo-small", quantize={"budgets": [budget]}, evaluate=F16)
    shown = run_plan("--root", tmp_path)
    assert shown.exit_code == ConfigError.exit_code and id in shown.stderr


def test_a_mixture_has_no_budgets() -> None:
    check_budgets(MIXTURE, [], GPU)
    with pytest.raises(ConfigError, match="Q-BUDGET-009: "):
        check_budgets(MIXTURE, ["20GB"], GPU)


def test_the_smallest_file_is_one_of_the_smallest_types(tmp_path: Path) -> None:
    """A wide model packs rows in blocks of 256, a narrow one in blocks of 32."""
    for hidden, inner, tied, bits in ((256, 512, False, "2.62"), (96, 160, True, "4.25")):
        shape = shaped(hidden, inner, tied, kv_heads=2)
        least = fewest_bytes(written(tmp_path / f"{hidden}.gguf", shape))
        check_budgets(shape, [f"{(least + 5_000) / 1e6:.6f}MB"], GPU)
        with pytest.raises(ConfigError, match=rf"Q-BUDGET-003: .*\({bits} bits"):
            check_budgets(shape, [f"{(least - 5_000) / 1e6:.6f}MB"], GPU)


@pytest.mark.parametrize(
    ("most", "id"),
    [(-1, "Q-BUDGET-002"), (0, "Q-BUDGET-003"), (99, "Q-BUDGET-003"), (100, ""), (200, "Q-BUDGET-004")],
)
def test_a_budget_lies_from_the_smallest_file_on_and_below_the_largest(most: int, id: str) -> None:
    with pytest.raises(ConfigError, match=f"{id}: ") if id else nullcontext():
        need_room("4bpw", most, least=100, largest=200, bits=2.0)


def test_each_slot_has_a_cache() -> None:
    one, four = (file_bytes(QWEN_7B, "fits-8GB-at-8192", Serve(n_gpu_layers=99, parallel=n)) for n in (1, 4))
    assert one - four == 3 * 8192 * 28 * 2 * 512 * 2
    assert one == int(8 * GIB / 1.1) - 8192 * 28 * 2 * 512 * 2
    assert file_bytes(QWEN_7B, "fits-1GB-at-32768") == 0


def test_the_disk_of_a_budget_is_planned(tmp_path: Path) -> None:
    write_params(tmp_path, "demo-small", quantize={"budgets": ["90MB"]}, evaluate=F16)
    assert plan_json("--root", tmp_path)["disk"]["90MB GGUF"] == 90_000_000


def test_the_16_bit_model_answers_where_it_has_room(tmp_path: Path) -> None:
    write_params(tmp_path, quantize={"levels": ["Q4_K_M"], "distill": ["Q4_K_M"]}, evaluate=F16)
    for vram, on_cpu in (("8", True), ("24", False)):
        (found,) = plan_json("--vram", vram, "--root", tmp_path)["distill"]
        assert found["level"] == "Q4_K_M"
        assert found["teacher_on_cpu"] is on_cpu
        assert found["fits"] is (found["memory"] <= int(vram) << 30)
