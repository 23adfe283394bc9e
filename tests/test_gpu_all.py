"""benchmarks/gpu_all.py: one failure costs no other part its figures, and what didn't run is "not measured",
never passed.
"""

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import gpu_all
from benchmarks.gpu_all import PartError, Run, measure, table

SPEED = gpu_all.speed


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
    assert "not measured" in (ratio := next(line for line in lines if "Quench ÷ plain" in line))
    assert "CUDA out of memory" in ratio
    assert next(line for line in lines if "largest error" in line).endswith("| MISSED |")
    assert next(line for line in lines if "longest row" in line).endswith("| met |")
    assert {
        key for line in (run.out / "figures.jsonl").read_text().splitlines() for key in json.loads(line)
    } == set(run.figures)


def test_a_side_that_fails_costs_the_other_neither_figures_nor_a_round(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    def part(run: Run, name: str, side: str, **asked: Any) -> Any:
        started.append(name)
        if side != "ours":
            raise PartError("CUDA out of memory")
        yield {"bf16_tflops": 700.0}
        yield {"tokens_per_second": 4_321.0, "peak_gib": 6.5}

    monkeypatch.setattr(Run, "part", part)
    monkeypatch.setattr(gpu_all, "speed", SPEED)
    monkeypatch.setattr(gpu_all, "nf4_settings", lambda run, **changes: None)
    measure(run, ["speed"])
    assert started == ["ours-1", "plain-1", "ours-2", "unsloth"]
    assert run.figures["utilization"] == pytest.approx(4_321 * 42.5e9 / 700e12)
    lines = table(run).splitlines()
    assert all(
        "CUDA out of memory" in next(line for line in lines if name in line)
        for name in ("plain Hugging", "Quench ÷ plain", "Unsloth: t")
    )


@pytest.mark.slow
def test_tests_that_take_too_long_are_counted_as_far_as_they_came(tmp_path: Path) -> None:
    tests = tmp_path / "test_some.py"
    tests.write_text("import time\ndef test_one():\n    pass\ndef test_two():\n    time.sleep(300)\n")
    run = Run(tmp_path, tmp_path, time.monotonic() + 60, smoke=False)
    with pytest.raises(PartError, match="only those were run"):
        gpu_all.pytest(run, str(tests), "--rootdir", str(tmp_path), seconds=5)
    assert run.figures == {"tests_passed": 1, "tests_failed": 0, "tests_skipped": 0}


def test_tests_that_cannot_be_run_are_not_measured(tmp_path: Path) -> None:
    run = Run(tmp_path, tmp_path, time.monotonic() + 60, smoke=False)
    with pytest.raises(PartError, match="pytest ended with 4"):
        gpu_all.pytest(run, str(tmp_path), "--no-such-option", seconds=60)
    assert run.figures == {}


def test_nothing_is_passed_where_nothing_ran(run: Run) -> None:
    run.deadline = time.monotonic()
    measure(run, list(gpu_all.PARTS))
    assert run.figures == {}
    assert "met" not in [line.split("|")[4].strip() for line in table(run).splitlines()]
    assert all("the time was over" in run.reasons[part] for part in gpu_all.PARTS if part != "tests")
