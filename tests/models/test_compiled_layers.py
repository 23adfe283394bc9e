"""Compiled layers give the losses and gradients of layers that are not, by a few graphs for all of them."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from needed import need
from qlora import settings
from torch._dynamo.utils import counters
from train_runs import goes_on_to_the_same, run

from pipeline.config.sections import Training
from pipeline.models.chunked_loss import chunked_loss
from pipeline.models.compiled_layers import compile_layers
from pipeline.models.qlora import load_quantized
from pipeline.models.row_attention import attend_by_row
from pipeline.models.tuners import causal_model, put_tuner
from pipeline.stages.train.dataset import flattened

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++"))), reason=need("a C++ compiler")),
]
# Packs of two rows and of more, with other lengths, and rows alone, which have no mask.
PACKS = [[40, 24], [64], [20, 30], [10, 20, 40], [12], [33, 7]]
# A layer that doesn't train doubles them: 26 were seen with one, 12 without. Three graphs are one layer's.
MOST_GRAPHS = 30
FLOAT32: dict[str, Any] = {"bnb_4bit_compute_dtype": "float32"}  # The rounding of bfloat16 would hide faults.
# of a gradient, float32: sums in another order
ROUNDING = 1e-5


@pytest.fixture(autouse=True)
def compiled_here() -> None:
    """Compile in this process, from nothing: what other tests compiled would count as graphs of a test."""
    # Setting it is all that this module always allows: a value that was put back may be hidden from readers.
    torch._inductor.config.compile_threads = 1
    torch.compiler.reset()
    counters.clear()


def model_of(base: Path, recipe: Training) -> Any:
    """The base with an adapter that is not zero, compiled if the recipe says so."""
    torch.manual_seed(0)
    model = put_tuner(load_quantized(base, recipe), recipe).train()
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.02)
    attend_by_row(causal_model(model))
    if recipe.compiled:
        compile_layers(causal_model(model))
    if recipe.gradient_checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False}, every_n_layers=1)
    return model


def packed(lengths: list[int]) -> dict[str, Any]:
    """A pack of rows as the trainer gives it to the model."""
    ids = [number * 7919 % 250 for number in range(sum(lengths))]
    return flattened([{"input_ids": ids, "labels": ids, "seq_lengths": lengths}])


def losses_and_gradients(model: Any) -> list[tuple[float, dict[str, torch.Tensor]]]:
    """The loss of each pack, with its gradients."""
    found = []
    for lengths in PACKS:
        model.zero_grad()
        loss = chunked_loss(causal_model(model), packed(lengths))
        loss.backward()
        gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.requires_grad}
        found.append((loss.item(), gradients))
    return found


@pytest.mark.parametrize(
    "changes",
    [
        {"quantization": "none"},
        {"gradient_checkpointing": True, "layers": [1]},
    ],
    ids=["16-bit", "NF4, checkpointing, a layer that doesn't train"],
)
def test_losses_and_gradients_are_those_of_plain_layers(prepared: Path, changes: dict[str, Any]) -> None:
    base = prepared / "models/base"
    plain = losses_and_gradients(model_of(base, settings(**FLOAT32 | changes)))
    compiled = losses_and_gradients(model_of(base, settings(**FLOAT32 | changes, compile=True)))
    assert 0 < counters["stats"]["unique_graphs"] <= MOST_GRAPHS
    for (loss, gradients), (compiled_loss, compiled_gradients) in zip(plain, compiled, strict=True):
        assert compiled_loss == pytest.approx(loss, rel=1e-6)
        for name, gradient in gradients.items():
            error = (compiled_gradients[name] - gradient).norm() / gradient.norm()
            assert error < ROUNDING, name


def test_a_compiled_run_is_the_plain_one_and_resumes_to_the_same_bytes(
    prepared: Path, tmp_path: Path
) -> None:
    """NF4, packed rows, evaluations and samples between the steps; no dropout, which draws other numbers."""
    changes: dict[str, Any] = {"lora_dropout": 0.0, "sample_rows": 1, "max_steps": 4} | FLOAT32
    plain = run(prepared, tmp_path / "plain", **changes)
    compiled = goes_on_to_the_same(prepared, tmp_path, **changes, compile=True)
    assert (plain["compiled"], compiled["compiled"]) == (False, True)
    for one, other in zip(plain["metrics_log"], compiled["metrics_log"], strict=True):
        for figure in {"loss", "eval_loss", "grad_norm"} & one.keys():
            assert other[figure] == pytest.approx(one[figure], rel=1e-4), (one["step"], figure)
