"""Budgets and distillations in plans: what can be made, and what the 16-bit model needs."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from shaped_gguf import shaped, written
from typer.testing import CliRunner

from pipeline.cli import app
from pipeline.config.params import load_params
from pipeline.config.sections import Serve
from pipeline.core.errors import ConfigError
from pipeline.core.places import PROJECT
from pipeline.gguf.file import check_gguf
from pipeline.planning.budget import check_budgets, file_bytes
from pipeline.planning.published import published_shape
from pipeline.stages.budget.sizes import extremes, offered

SMOLLM2 = published_shape("smollm2-135m")
QWEN_7B = published_shape("Qwen/Qwen2.5-7B-Instruct")
GPU = Serve(n_gpu_layers=99)


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.commands.plan.first_gpu", lambda: None)


def plan(root: Path, *words: str, recipe: str = "demo-small", **quantize: Any) -> Any:
    params = load_params(PROJECT / f"recipes/{recipe}.yaml").model_dump(mode="json")
    params["quantize"] |= quantize
    params["evaluate"]["models"] = ["F16"]
    (root / "params.yaml").write_text(yaml.safe_dump(params, allow_unicode=True))
    return CliRunner().invoke(app, ["plan", "--root", str(root), *words])


@pytest.mark.parametrize(
    ("budget", "id"),
    [
        ("2.0bpw", "Q-BUDGET-003"),
        ("60MB", "Q-BUDGET-003"),
        ("300MB", "Q-BUDGET-004"),
        ("17bpw", "Q-BUDGET-004"),
        ("fits-100MB-at-8192", "Q-BUDGET-002"),
    ],
)
def test_what_no_file_can_have_is_refused_before_training(tmp_path: Path, budget: str, id: str) -> None:
    with pytest.raises(ConfigError, match=id):
        check_budgets(SMOLLM2, ["4.6bpw", budget], GPU)
    shown = plan(tmp_path, budgets=[budget])
    assert shown.exit_code == ConfigError.exit_code
    assert id in shown.stderr


def test_a_mixture_has_no_budgets() -> None:
    mixture = published_shape("qwen3-30b-a3b")
    check_budgets(mixture, ["Q4_K_M"], GPU)
    with pytest.raises(ConfigError, match="Q-BUDGET-009"):
        check_budgets(mixture, ["Q4_K_M", "20GB"], GPU)


def test_the_smallest_file_is_the_one_that_the_stage_finds(tmp_path: Path) -> None:
    """A wide model packs rows in blocks of 256, a narrow one in blocks of 32."""
    for hidden, inner, tied in ((256, 512, False), (96, 160, True)):
        shape = shaped(hidden, inner, tied, kv_heads=2)
        header = check_gguf(written(tmp_path / f"{hidden}.gguf", shape))
        least = header.start + extremes(offered(header))[0]
        check_budgets(shape, [f"{(least + 60_000) / 1e6:.6f}MB"], GPU)
        with pytest.raises(ConfigError, match="Q-BUDGET-003"):
            check_budgets(shape, [f"{(least - 60_000) / 1e6:.6f}MB"], GPU)


def test_each_slot_has_a_cache() -> None:
    one, four = (file_bytes(QWEN_7B, "fits-8GB-at-8192", Serve(n_gpu_layers=99, parallel=n)) for n in (1, 4))
    assert one - four == 3 * 8192 * 28 * 2 * 512 * 2


def test_the_disk_of_a_budget_is_planned(tmp_path: Path) -> None:
    shown = plan(tmp_path, "--json", budgets=["90MB"])
    assert shown.exit_code == 0, shown.stderr
    assert json.loads(shown.stdout)["disk"]["90MB GGUF"] == 90_000_000


def test_the_16_bit_model_answers_where_it_has_room(tmp_path: Path) -> None:
    wanted = {"levels": ["Q4_K_M"], "distill": ["Q4_K_M"], "recipe": "qwen2.5-7b-8gb"}
    for vram, on_cpu in (("8", True), ("24", False)):
        shown = plan(tmp_path, "--vram", vram, "--json", **wanted)
        (found,) = json.loads(shown.stdout)["distill"]
        assert found["level"] == "Q4_K_M"
        assert found["teacher_on_cpu"] is on_cpu
        assert found["fits"] is (found["memory"] <= int(vram) << 30)
    assert "on the CPU" in plan(tmp_path, "--vram", "8", **wanted).stdout
