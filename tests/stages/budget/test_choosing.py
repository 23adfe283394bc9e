"""budget: what fits is counted exactly, the knapsack is the best, a difference counts beyond noise only."""

import itertools
import random
from pathlib import Path
from typing import Any

import pytest
from families import byte_folder
from shaped_gguf import fewest_bytes
from tiny import tiny_gguf

from pipeline.config.budgets import Budget, parse_budget
from pipeline.config.levels import ModelName
from pipeline.config.params import Params
from pipeline.config.sections import Serve
from pipeline.core.errors import ConfigError, DataError
from pipeline.llamacpp.tools import Llama, Toolchain
from pipeline.planning.budget import most_bytes
from pipeline.stages.budget.search import is_closer, paired
from pipeline.stages.budget.sizes import allocate, prove
from pipeline.stages.budget.stage import Files, budget


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("4.2GB", Budget("size", 4.2e9)),
        ("500MB", Budget("size", 500e6)),
        ("4.6bpw", Budget("bits", 4.6)),
        ("fits-8GB-at-8192", Budget("fits", 8 << 30, 8192)),
    ],
)
def test_a_budget_is_a_size_bits_per_weight_or_memory_with_a_context(text: str, wanted: Budget) -> None:
    assert parse_budget(text) == wanted
    assert Params.model_validate({"quantize": {"budgets": [text]}}).quantize.budgets == [text]
    assert ModelName(text).has_own_types


@pytest.mark.parametrize(
    "text", ["", "4.2 GB", "4.2gb", "-1GB", "1e3GB", "0GB", "0bpw", "fits-8GB", "Q4_K_M", "4.6"]
)
def test_what_is_no_budget_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="budget"):
        Params.model_validate({"quantize": {"budgets": [text]}})


def test_a_budget_is_a_level_of_the_tuned_model() -> None:
    values = {"quantize": {"levels": ["Q4_0"], "budgets": ["1GB"]}, "evaluate": {"models": ["F16"]}}
    params = Params.model_validate(values)
    assert params.quantize.tuned == ["Q4_0", "1GB"]


def test_what_serving_takes_is_left_out_of_the_memory() -> None:
    def most(text: str, **serve: Any) -> int:
        budget = parse_budget(text)
        assert budget
        settings = Serve(**{"n_gpu_layers": 99, "parallel": 2} | serve)
        return most_bytes(budget, weights=8000, header=100, cache=10, serve=settings)

    assert most("1MB") == 1_000_000
    assert most("4.5bpw") == 100 + 4500
    # a tenth for buffers; two slots of the context
    assert most("fits-1MB-at-1000") == int((1 << 20) / 1.1 - 20_000)
    assert most("fits-1MB-at-50000") < 0
    assert most("fits-1GB-at-1000", n_gpu_layers=0) == int((512 << 20) / 1.1 - 20_000)


def test_what_is_not_as_it_was_chosen_is_refused(tmp_path: Path) -> None:
    file = tiny_gguf(tmp_path / "tiny.gguf")
    prove(file, {"token_embd.weight": "F16"}, file.stat().st_size)
    for types, most in (({"token_embd.weight": "Q8_0"}, None), ({}, file.stat().st_size - 1)):
        with pytest.raises(DataError, match="Q-BUDGET-005"):
            prove(file, types, most)


def test_a_budget_that_nothing_or_everything_fits_is_refused(tools: Toolchain, tmp_path: Path) -> None:
    """Rows of 32 and 64 weights hold no block of 256, and norms have no choice."""
    source, folder = tiny_gguf(tmp_path / "tiny.gguf"), byte_folder(tmp_path / "folder")
    (tmp_path / "val.jsonl").touch()
    target, scratch = tmp_path / "budget.gguf", tmp_path / "scratch"
    files = Files(source, folder, folder, None, tmp_path / "val.jsonl", target, scratch)
    least, most = fewest_bytes(source), source.stat().st_size
    no_rows = "Q-BUDGET-007"  # the size is none of the reasons
    limits = {least - 1: "Q-BUDGET-003", least: no_rows, most - 1: no_rows, most: "Q-BUDGET-004"}
    for size, error in limits.items():
        with pytest.raises((ConfigError, DataError), match=error):
            budget(f"{size / 1e6:.6f}MB", files, Llama(tools), serve=Serve(), longest=256)


def test_the_knapsack_is_the_best_of_all_allocations() -> None:
    dice = random.Random(0)  # noqa: S311
    kinds = ("Q4_0", "Q5_0", "Q6_K", "Q8_0")
    for _ in range(20):
        names = [f"blk.{number}.attn_q.weight" for number in range(5)]
        sizes = {name: {kind: dice.randrange(1, 99) * 32 for kind in kinds} for name in names}
        damages = {name: {kind: dice.random() for kind in kinds} for name in names}
        each_size = [each.values() for each in sizes.values()]
        room = dice.randrange(sum(map(min, each_size)), sum(map(max, each_size)) + 1)
        found = allocate(damages, sizes | {"output_norm.weight": {"F32": 64}}, room + 64)
        assert sum(sizes[name][kind] for name, kind in found.items()) <= room
        best = min(
            sum(damages[name][kind] for name, kind in zip(names, each, strict=True))
            for each in itertools.product(kinds, repeat=5)
            if sum(sizes[name][kind] for name, kind in zip(names, each, strict=True)) <= room
        )
        assert sum(damages[name][kind] for name, kind in found.items()) == pytest.approx(best)


def test_a_difference_on_few_rows_is_noise() -> None:
    assert not is_closer(paired([0.2] * 4, [0.1] * 4))
    assert is_closer(paired([0.2] * 12, [0.1] * 12))
    assert not is_closer(paired([0.1] * 12, [0.2] * 12))
