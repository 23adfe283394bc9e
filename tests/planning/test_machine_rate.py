"""This machine's rates: what is measured and kept, and how the planned times follow them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from plans import GIB, SMOLLM2, UNMEASURED, run_plan

from pipeline.config.params import Params, load_params
from pipeline.core import cpu
from pipeline.core.hardware import Card, machine
from pipeline.core.places import PROJECT
from pipeline.core.usage import Figures, Usage
from pipeline.planning import duration, machine_rate, stage_times, stages
from pipeline.planning.duration import STEP_FACTOR, Work
from pipeline.planning.machine_rate import (
    Rate,
    disk_rates,
    hash_of_linears,
    keep_rate,
    linears_of,
    measure_rate,
    read_rate,
)
from pipeline.planning.model.base import find_shape
from pipeline.planning.plan import Plan, make_plan
from pipeline.planning.setup import setup_of
from pipeline.planning.stages import plan_stage, planned_stages

DEMO = load_params(PROJECT / "recipes/demo.yaml")
SHAPE = find_shape(DEMO, Path("none"))
LINEARS = hash_of_linears(SHAPE)
RATE = Rate(0.4, LINEARS, 1024, 400e6, 2e9, machine(), "2.13.0", "2026-11-30T20:00:00+00:00", 0.95)
# the demo's rows: 20 steps of 1,024 tokens in rows of 124, 28 % of them answered, and its held-out rows
WORK = Work(20_480, 20, 124.0, 0.28, 7_377)


@pytest.fixture(autouse=True)
def _multiplies_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "instructions", lambda *_: cpu.INSTRUCTIONS)
    for module in (duration, stage_times):
        monkeypatch.setattr(module, "usable_cores", lambda: 2)


def plan_at(rate: Rate | None, params: Params = DEMO, root: Path = Path("none")) -> Plan:
    """The plan of the demo's training on a CPU of this rate."""
    card = Card("main memory", 16 * GIB, "cpu")
    return make_plan(setup_of(params, find_shape(params, root), card), WORK, rate=rate)


def stages_at(rate: Rate | None, params: Params = DEMO) -> dict[str, Figures]:
    """Return what each stage is planned to take at this rate."""
    return dict(planned_stages(params, plan_at(rate, params)))


def seconds_of(stage: str, rate: Rate | None = RATE, params: Params = DEMO) -> float:
    """The planned seconds of a stage."""
    seconds = stages_at(rate, params)[stage].seconds
    assert seconds is not None
    return seconds


def test_steps_take_their_operations_at_the_measured_rate() -> None:
    plan = plan_at(RATE)
    assert plan.tflops == pytest.approx(0.4 / STEP_FACTOR) and not plan.tflops_assumed
    assert plan.seconds == pytest.approx(plan.flops_per_token * WORK.tokens / 0.4e12 * STEP_FACTOR)
    twice = plan_at(replace(RATE, tflops=0.8)).seconds
    assert twice is not None and twice * 2 == pytest.approx(plan.seconds)


def test_without_a_measurement_a_rate_is_assumed_and_said_to_be() -> None:
    for rate in (None, replace(RATE, tflops=None)):
        plan = plan_at(rate)
        of_cores = duration.CORE_TFLOPS["bfloat16"] * 2
        assert plan.tflops_assumed and plan.tflops == pytest.approx(of_cores / STEP_FACTOR)
    assert all(planned.products is None for planned in stages_at(None).values())


def test_without_a_measurement_a_cpu_that_widens_products_takes_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    narrow = seconds_of("train", None)
    monkeypatch.setattr(cpu, "instructions", lambda *_: set())
    assert seconds_of("train", None) > 2 * narrow


def test_only_what_multiplies_is_faster_at_a_higher_rate() -> None:
    slow = stages_at(RATE)
    fast = stages_at(replace(RATE, tflops=0.8))
    for stage, planned in slow.items():
        later = fast[stage].seconds
        assert later is not None and planned.seconds is not None
        if planned.products:
            assert later < planned.seconds and planned.products < planned.seconds, stage
        else:
            assert later == planned.seconds, stage
    assert {stage for stage, planned in slow.items() if planned.products is None} == {
        "base",
        "convert",
        *(f"quantize@{level}" for level in DEMO.quantize.levels),
    }


@pytest.mark.parametrize(
    ("section", "key", "value", "stage"),
    [
        ("evaluate", "task_rows", 96, "evaluate@F16"),
        ("evaluate", "perplexity_rows", 64, "evaluate@Q4_K_M"),
        ("evaluate", "parallel", 1, "evaluate@F16"),
        ("evaluate", "max_new_tokens", 200, "evaluate@base-F16"),
        ("parity", "rows", 16, "parity"),
    ],
)
def test_more_to_measure_takes_longer(section: str, key: str, value: int, stage: str) -> None:
    changed = getattr(DEMO, section).model_copy(update={key: value})
    assert seconds_of(stage, params=DEMO.model_copy(update={section: changed})) > 1.05 * seconds_of(stage)


def test_what_is_left_out_takes_no_time() -> None:
    chosen = DEMO.model_copy(update={"merge": DEMO.merge.model_copy(update={"base": "nf4"})})
    assert stages_at(RATE, chosen)["merge"].products is None
    assert seconds_of("merge", params=chosen) < seconds_of("merge") / 2
    quick = DEMO.model_copy(update={"parity": DEMO.parity.model_copy(update={"depth": "quick"})})
    assert seconds_of("parity", params=quick) < seconds_of("parity")
    unscored = DEMO.model_copy(
        update={"evaluate": DEMO.evaluate.model_copy(update={"scorers": [], "general": "none"})}
    )
    assert seconds_of("evaluate@F16", params=unscored) < seconds_of("evaluate@F16") * 0.6


def test_examples_before_the_base_s_questions_are_read_once() -> None:
    def seconds(examples: int) -> float:
        changed = DEMO.evaluate.model_copy(update={"base_examples": examples})
        return seconds_of("evaluate@base-F16", params=DEMO.model_copy(update={"evaluate": changed}))

    assert seconds(0) < 0.9 * seconds(3)
    assert seconds(3) < seconds(6) < 1.05 * seconds(3)


def test_a_slow_disk_takes_longer_and_a_fast_one_nothing_less() -> None:
    usual = seconds_of("convert")
    assert seconds_of("convert", replace(RATE, written=4e9)) == usual
    assert seconds_of("convert", replace(RATE, written=100e6)) > usual + 10


def test_a_measurement_is_kept_in_a_project_and_read_on_this_machine_alone(tmp_path: Path) -> None:
    keep_rate(RATE, tmp_path)
    assert read_rate(tmp_path, SHAPE) is None and not list(tmp_path.iterdir())
    (tmp_path / "params.yaml").write_text("{}\n", encoding="utf-8")
    keep_rate(RATE, tmp_path)
    keep_rate(replace(RATE, tflops=0.1, core_share=0.47), tmp_path)
    assert read_rate(tmp_path, SHAPE) == RATE
    assert read_rate(tmp_path, SMOLLM2) is None
    keep_rate(replace(RATE, machine="another, 64 cores"), tmp_path)
    assert read_rate(tmp_path, SHAPE) is None
    for text in ("{", "[]", '{"tflops": 1}', "null", json.dumps({"tflops": "fast"})):
        (tmp_path / machine_rate.FILE).write_text(text, encoding="utf-8")
        assert read_rate(tmp_path, SHAPE) is None


def test_the_disk_is_measured_without_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_rate, "DISK_BYTES", 1 << 20)
    monkeypatch.setattr(machine_rate, "PIECE", 1 << 18)
    written, read = disk_rates(tmp_path)
    assert written and read and not list(tmp_path.iterdir())
    assert disk_rates(tmp_path / "missing") == (None, None)


@pytest.mark.parametrize(("core_share", "disturbed"), [(None, False), (0.95, False), (0.47, True)])
def test_a_disturbed_measurement_says_so(core_share: float | None, disturbed: bool) -> None:
    rate = replace(RATE, core_share=core_share)
    assert rate.is_disturbed is disturbed
    assert ("plan again when nothing else runs" in rate.sentence) is disturbed


def test_linears_are_counted_as_often_as_a_token_goes_through_them() -> None:
    counted = linears_of(SMOLLM2)
    assert sum(inputs * outputs * count for (inputs, outputs), count in counted.items()) == (
        SMOLLM2.used_weights
    )


def test_the_plan_shows_and_keeps_what_it_measured(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("{}\n", encoding="utf-8")
    shown = run_plan("--recipe", "demo", "--root", tmp_path, rate=RATE)
    words = " ".join(shown.stdout.split())
    assert "0.40 TFLOP/s in bfloat16 products of 1024 tokens" in words and "400 MB/s written" in words
    found = json.loads(run_plan("--recipe", "demo", "--root", tmp_path, "--json", rate=RATE).stdout)
    assert found["rate"]["tflops"] == 0.4 and not found["tflops_assumed"]
    given = run_plan("--recipe", "demo", "--tflops", 2, "--root", tmp_path, "--json", rate=RATE)
    planned = json.loads(given.stdout)
    assert planned["tflops"] == 2 and not planned["tflops_measured"]
    assert planned["rate"]["tflops"] == 0.4  # the kept one
    assert read_rate(tmp_path, SHAPE) == RATE
    other = json.loads(run_plan("--recipe", "demo", "--root", tmp_path, "--json", rate=UNMEASURED).stdout)
    assert other["tflops_assumed"] and other["rate"]["tflops"] is None


def test_the_share_of_products_is_of_the_time_that_was_seen() -> None:
    planned = Figures(None, 100.0, None, 40.0)
    assert Usage(planned, Figures(1, 80.0, 1), 1).share_of_products == 0.5
    assert Usage(replace(planned, products=None), Figures(1, 80.0, 1), 1).share_of_products is None
    assert Usage(planned, Figures(1, None, 1), 1).share_of_products is None


def test_a_machine_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.undo()  # This machine's own products are measured.
    monkeypatch.setattr(machine_rate, "PRODUCT_SECONDS", 0.1)
    monkeypatch.setattr(machine_rate, "DISK_BYTES", 1 << 20)
    before = torch.random.get_rng_state()
    rate = measure_rate(tmp_path, SMOLLM2, 100_000)
    assert rate.tflops and rate.tflops > 0 and rate.tokens == machine_rate.MOST_TOKENS
    assert rate.machine == machine() and rate.torch == torch.__version__
    assert torch.equal(before, torch.random.get_rng_state())  # training draws what it would without
    assert f"in {rate.multiplied_in} products" in rate.sentence


@pytest.mark.parametrize(("steps", "measured"), [(20, 1), (2, 0)])
def test_a_training_of_minutes_measures_a_machine_that_was_not(
    steps: int, measured: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = []

    def measure(*asked: object) -> Rate:
        calls.append(asked)
        return RATE

    monkeypatch.setattr(stages, "measure_rate", measure)
    monkeypatch.setattr(stages, "first_gpu", lambda: None)
    (tmp_path / "params.yaml").touch()
    tokens = tmp_path / "data/tokens"
    tokens.mkdir(parents=True)
    counts = {"packed_rows": 200, "tokens": 200_000}
    (tokens / "manifest.json").write_text(json.dumps({"splits": {"train": counts}}), encoding="utf-8")
    params = DEMO.model_copy(update={"train": DEMO.train.model_copy(update={"max_steps": steps})})
    for _ in range(2):
        planned = plan_stage("train", params, tmp_path)
    assert len(calls) == measured
    assert (read_rate(tmp_path, SHAPE) == RATE) is bool(measured)
    assert (planned.products is not None) is bool(measured)


def test_a_measurement_that_fails_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")

    def fail(*_: object) -> float:
        raise RuntimeError("can't allocate memory")

    monkeypatch.setattr(machine_rate, "product_rate", fail)
    monkeypatch.setattr(machine_rate, "DISK_BYTES", 1 << 20)
    assert measure_rate(tmp_path, SMOLLM2, 1024).tflops is None
