"""benchmarks/gpu_all.py: a failure costs no other part its figures; unrun is "not measured", not passed."""

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from make import ended

from benchmarks import gpu_all
from benchmarks.gpu_all import PartError, Run, measure, table
from benchmarks.packed_attention import borders_of
from pipeline.core.places import PROJECT
from pipeline.models.row_attention import rows_of
from pipeline.stages.train.dataset import flattened


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run without processes: every part is a stub that the test may replace."""
    for part in gpu_all.PARTS:
        monkeypatch.setattr(gpu_all, part, named(part, lambda run: None))
    done = SimpleNamespace(join=lambda seconds: None, exitcode=0, kill=lambda: None)
    monkeypatch.setattr(Run, "start", lambda *arguments, **asked: (done, None))
    return Run(tmp_path, tmp_path, time.monotonic() + 60, smoke=False)


def named(name: str, function: Any) -> Any:
    function.__name__ = name
    return function


def test_a_part_that_fails_costs_no_other_its_figures(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(run: Run) -> None:
        run.note(ours_tokens_per_second=4_321.0)
        raise PartError("CUDA out of memory")

    monkeypatch.setattr(gpu_all, "speed", named("speed", fail))
    monkeypatch.setattr(
        gpu_all, "planner", named("planner", lambda run: run.note(planner_error=0.2, longest_row=3_000))
    )
    measure(run, list(gpu_all.PARTS))
    lines = table(run).splitlines()
    assert next(line for line in lines if "Quench: tokens/s" in line).split("|")[2].strip() == "4,321"
    assert "not measured" in next(line for line in lines if "Quench ÷ plain" in line)
    assert next(line for line in lines if "largest error" in line).endswith("| MISSED |")
    assert next(line for line in lines if "longest row" in line).endswith("| met |")
    assert {
        key for line in (run.out / "figures.jsonl").read_text().splitlines() for key in json.loads(line)
    } == set(run.figures)


def test_nothing_is_passed_where_nothing_ran(run: Run) -> None:
    run.deadline = time.monotonic()
    measure(run, list(gpu_all.PARTS))
    assert run.figures == {}
    assert "met" not in [line.split("|")[4].strip() for line in table(run).splitlines()]
    assert all(run.reasons[part] for part in gpu_all.PARTS if part != "tests")


@pytest.mark.parametrize("lengths", [[5, 3, 9], [8] * 8, [1, 2], [4]])
def test_the_borders_of_a_packs_rows_are_those_of_the_collator(lengths: list[int]) -> None:
    rows = rows_of(torch.block_diag(*(torch.ones(n, n).tril() for n in lengths)).bool()[None, None])
    borders = borders_of(rows)
    batch = flattened(
        [{"input_ids": [0] * sum(lengths), "labels": [0] * sum(lengths), "seq_lengths": lengths}]
    )
    expected = batch.get("cu_seq_lens_q", torch.tensor([0, *lengths]))  # A row alone comes without borders.
    assert torch.equal(borders, expected.to(torch.int32))
    assert borders.dtype == torch.int32
    assert int(borders.diff().max()) == batch.get("max_length_q", lengths[0])


def test_a_pack_whose_rows_are_not_causal_has_no_borders() -> None:
    square = torch.block_diag(torch.ones(3, 3), torch.ones(2, 2).tril()).bool()
    with pytest.raises(ValueError, match="causal"):
        borders_of(rows_of(square[None, None]))


@pytest.mark.slow
def test_all_parts_run_on_tiny_shapes(tmp_path: Path) -> None:
    """Check that the parts which wait for a GPU won't fail on the day there is one."""
    done = ended([sys.executable, PROJECT / "benchmarks/gpu_all.py", "--smoke", "--out", str(tmp_path)])
    assert done.returncode == 0, done.stderr[-2000:]
    figures: dict[str, float] = {}
    for line in (tmp_path / "figures.jsonl").read_text(encoding="utf-8").splitlines():
        figures |= json.loads(line)
    assert {"packed_masked_ratio", "packed_by_row_ratio", "packed_compiled_ratio"} <= figures.keys()
    assert {"quantized_speed_ratio", "scales_speed_ratio", "offload_loss_difference"} <= figures.keys()
    assert figures["packed_by_row_loss_difference"] < 1e-3
    assert figures["packed_compiled_loss_difference"] < 1e-3
