"""What GRPO takes beside its steps: llama-server's memory, and the file that it draws with."""

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
from pipeline.planning.duration import forwards, run_of
from pipeline.planning.level_bytes import level_bytes
from pipeline.planning.memory import SERVER, plan_memory
from pipeline.planning.rollouts import server_memory

F16 = level_bytes(QWEN_7B, "F16")


def grpo(quantization: str = "nf4", **changes: Any) -> Training:
    return RECIPE.training.model_copy(
        update={"method": "grpo", "quantization": quantization, "grpo": Grpo(**changes)}
    )


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


def test_the_command_counts_the_server_and_says_what_a_forward_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.commands.plan.first_gpu", lambda: None)
    words = ["plan", "--recipe", "demo-grpo", "--root", str(tmp_path)]
    assert "A forward has a prompt's completions together" in CliRunner().invoke(app, words).stdout
    found = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert found["memory"][SERVER]["bytes"] > 0
