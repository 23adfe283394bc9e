"""What GRPO takes beside its steps: rollouts by a rate that is said to be an estimate, and llama-server."""

import json
from pathlib import Path
from typing import Any

import pytest
from test_planning import QWEN_7B, RECIPE
from typer.testing import CliRunner

from pipeline.cli import app
from pipeline.config.sections import Training
from pipeline.config.sections.grpo import Grpo
from pipeline.planning.disk import CACHE, own_bytes, plan_disk
from pipeline.planning.drawing import BANDWIDTH, draws, plan_drawing, server_memory
from pipeline.planning.duration import forwards, run_of
from pipeline.planning.level_bytes import level_bytes
from pipeline.planning.memory import SERVER, plan_memory
from pipeline.planning.published import published_shape
from pipeline.planning.quantized import quantized_level

F16 = level_bytes(QWEN_7B, "F16")


def grpo(quantization: str = "nf4", **changes: Any) -> Training:
    return RECIPE.training.model_copy(
        update={"method": "grpo", "quantization": quantization, "grpo": Grpo(**changes)}
    )


def test_a_run_draws_a_group_for_each_prompt_of_its_steps() -> None:
    found = plan_drawing(QWEN_7B, grpo(group_size=4, max_new_tokens=100), 10, "cuda")
    assert found and found.completions == 10 * 8 * 4  # accumulation 8
    assert found.tokens_per_second == pytest.approx(BANDWIDTH["cpu"] / F16)
    assert found.seconds == pytest.approx(320 * 100 * F16 / BANDWIDTH["cpu"])
    assert "estimated" in found.basis
    unknown = plan_drawing(QWEN_7B, grpo(), None, "cuda")
    assert unknown and unknown.completions is None and unknown.seconds is None
    assert plan_drawing(QWEN_7B, RECIPE.training, 10, "cuda") is None and not draws(RECIPE.training)


def test_who_draws_and_on_what_sets_the_rate() -> None:
    def rate(train: Training) -> float:
        found = plan_drawing(QWEN_7B, train, 1, "cuda", quantized_level(QWEN_7B, "Q4_K_M"))
        assert found
        return found.tokens_per_second

    file = quantized_level(QWEN_7B, "Q4_K_M").file
    assert rate(grpo("gguf")) == pytest.approx(BANDWIDTH["cpu"] / file)
    assert rate(grpo("gguf", parallel=4)) == rate(grpo("gguf"))
    assert rate(grpo("gguf", parallel=4, n_gpu_layers=99)) == pytest.approx(4 * BANDWIDTH["cuda"] / file)
    own = grpo(rollouts="in-process")
    assert rate(own) > 4 * rate(grpo())
    assert rate(own.model_copy(update={"offload_layers": 14})) < rate(own) / 5


def test_of_a_mixture_only_the_chosen_experts_are_read() -> None:
    mixture = published_shape("qwen3-30b-a3b")
    assert mixture
    found = plan_drawing(mixture, grpo(), 1, "cuda")
    assert found and found.tokens_per_second > 5 * BANDWIDTH["cpu"] / level_bytes(mixture, "F16")


def test_the_servers_memory_is_where_its_layers_are() -> None:
    def server(device: str, **changes: Any) -> int | None:
        plan = plan_memory(QWEN_7B, grpo(**changes), 1024, device, "chunked")  # type: ignore[arg-type]
        return next((part.bytes for part in plan.parts if part.name == SERVER), None)

    cache = 28 * 2 * 512 * 2 * (1024 + 256 + 8)
    assert server("cpu") == round((F16 + cache) * 1.1) and server("cuda") == 0
    assert server("cpu", n_gpu_layers=99) == 0 and server("cuda", n_gpu_layers=99) == server("cpu")
    assert server("cuda", n_gpu_layers=7) == round((F16 + cache) * 1.1 / 4)
    assert server("cpu", parallel=3) == round((F16 + 3 * cache) * 1.1)
    assert server("cpu", rollouts="in-process") is None
    assert server_memory(QWEN_7B, RECIPE.training, 1024, "cuda") is None


def test_training_takes_all_completions_and_their_likelihoods_before() -> None:
    train = grpo(group_size=4, max_new_tokens=100).model_copy(update={"num_train_epochs": 2.0})
    assert run_of(train, 50, 5_000).tokens == 2 * 4 * (5_000 + 50 * 100)
    assert (forwards(grpo()), forwards(grpo(kl_beta=0.1))) == (1.0, 2.0)


def test_the_file_that_is_made_for_rollouts_takes_disk_and_no_copy() -> None:
    plain, found = (plan_disk(QWEN_7B, train, ["Q4_K_M"]) for train in (RECIPE.training, grpo()))
    assert own_bytes(found) - own_bytes(plain) == F16 and found[CACHE] == plain[CACHE]


def test_the_command_says_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.commands.plan.first_gpu", lambda: None)
    words = ["plan", "--recipe", "demo-grpo", "--root", str(tmp_path)]
    shown = " ".join(CliRunner().invoke(app, words).stdout.split())
    assert "Rollouts: about" in shown and "estimated: 0.14 GB of weights" in shown
    found = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert found["drawing"]["completions"] == 60 * 4 * 8 and found["memory"][SERVER]["bytes"] > 0
