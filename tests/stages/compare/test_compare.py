"""compare: jobs train and measure, killed jobs resume, statistics know rows and seeds; advice fits them."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import tiny
import torch
import yaml
from golden import Golden
from killed import kill_at

from pipeline.__main__ import main as run_here
from pipeline.config.params import Params, load_params
from pipeline.config.strategies import (
    LORA_LEVEL,
    LORA_NF4,
    MERGED_16,
    MERGED_DISTILLED,
    MERGED_NF4,
    SCALES_LEVEL,
    STRATEGIES,
    Job,
    StrategyName,
)
from pipeline.core.child import become
from pipeline.core.errors import ConfigError, DataError, GateError, MachineError
from pipeline.core.hashing import tree_hash
from pipeline.gguf.patch import write_patch
from pipeline.metrics.paired import CHANCE
from pipeline.models.base_header import checked_header
from pipeline.stages.compare import made, measure, nf4, projects, reference, train
from pipeline.stages.compare.projects import level_settings, open_project, sub_params
from pipeline.stages.compare.recommendation import Advice, Measured, recommend
from pipeline.stages.compare.stage import main
from pipeline.stages.compare.statistics import Difference, difference, half_width, mean_of
from pipeline.stages.compare.summary import part_of_speed
from pipeline.subprojects import distill, distill_rows, processes
from pipeline.subprojects.processes import size_of
from pipeline.workflow.package import Package
from pipeline.workflow.settle import REUSE
from pipeline.workflow.stages import code_of_stages, items_of, rules, table, values_of

JOBS = ("compare_nf4", "compare_train", "compare_unquantized", "compare_measure")
ON_NF4 = (MERGED_16, MERGED_NF4, LORA_NF4)


# the modules that run stages in sub-projects
RUN_STAGES = (train, made, projects, processes, distill, distill_rows)


def no_stage_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in RUN_STAGES:
        monkeypatch.setattr(module, "run_stage", lambda *_: pytest.fail("a stage was run"))


def with_compare(params: dict[str, Any], **changed: Any) -> dict[str, Any]:
    return params | {"compare": params["compare"] | changed}


# ---- statistics


def scores(
    random: np.random.Generator,
    seeds: int,
    rows: int,
    *,
    of_seeds: float = 0.05,
    of_rows: float = 0.3,
    of_both: float = 0.2,
) -> Any:
    """Scores around 0.5 with so much spread by seed, by row, and by both."""
    return (
        0.5
        + of_seeds * random.normal(size=(seeds, 1))
        + of_rows * random.normal(size=(1, rows))
        + of_both * random.normal(size=(seeds, rows))
    )


@pytest.mark.parametrize(("seeds", "least"), [(1, 0.92), (2, 0.85), (3, 0.90), (12, 0.92)])
@pytest.mark.parametrize(
    ("of_seeds", "of_rows", "of_both"),
    [(0.0, 0.3, 0.2), (0.02, 0.2, 0.2), (0.05, 0.05, 0.2), (0.05, 0.0, 0.01), (0.0, 0.0, 0.3)],
)
def test_the_interval_holds_the_truth_as_often_as_it_says(
    seeds: int, least: float, of_seeds: float, of_rows: float, of_both: float
) -> None:
    random = np.random.default_rng(0)
    drawn = (
        scores(random, seeds, 60, of_seeds=of_seeds if seeds > 1 else 0, of_rows=of_rows, of_both=of_both)
        for _ in range(400)
    )
    assert sum(abs(one.mean() - 0.5) <= half_width(one) for one in drawn) / 400 >= least


def test_rows_alone_would_be_too_sure_where_seeds_differ() -> None:
    found = scores(np.random.default_rng(1), 4, 400, of_seeds=0.1, of_rows=0.05, of_both=0.05)
    assert half_width(found) > 4 * half_width(found.mean(axis=0, keepdims=True))


def test_one_seed_has_the_rows_own_interval_and_equal_scores_have_none() -> None:
    from scipy.stats import t

    rows = np.random.default_rng(2).random((1, 30))
    low, high = t.interval(0.95, 29, rows.mean(), rows.std(ddof=1) / 30**0.5)
    assert half_width(rows) == pytest.approx((high - low) / 2)
    assert half_width(rows.T) == half_width(rows)
    assert half_width(np.full((3, 20), 0.7)) < 1e-12


def test_a_difference_is_paired() -> None:
    random = np.random.default_rng(2)
    first = scores(random, 3, 100, of_seeds=0.0)
    second = first + 0.02 + 0.01 * random.normal(size=first.shape)  # hard rows are hard for both
    found = difference(first, second)
    assert found.measurable
    assert 1.0 < found.low < found.points < found.high < 3.0
    back = difference(second, first)
    assert (back.points, back.p_value) == (-found.points, found.p_value)
    shuffled = difference(first, np.roll(second, 50, axis=1))
    assert not shuffled.measurable


def test_no_difference_is_none_and_one_seed_that_is_better_by_luck_is_not_measurable() -> None:
    same = np.random.default_rng(3).random((3, 50))
    found = difference(same, same)
    assert (found.points, found.low, found.high, found.p_value, found.measurable) == (0, 0, 0, 1, False)
    lucky = same.copy()
    lucky[0] += 0.2
    assert not difference(same, lucky).measurable  # the test over rows is certain, the seeds are not
    assert difference(same, lucky).p_value < CHANCE
    assert difference(same[:1], lucky[:1]).measurable  # of one seed nobody knows


def test_a_single_score_says_nothing_and_shapes_must_agree() -> None:
    one = np.array([[1.0]])
    assert mean_of(one)[1:] == (0.0, 1.0)
    assert (difference(one, 0 * one).low, difference(one, 0 * one).high) == (-100.0, 100.0)
    with pytest.raises(ValueError, match="the same of both"):
        difference(one, np.ones((2, 1)))


# ---- the recommendation

FIRST_FOUR = (MERGED_16, MERGED_NF4, LORA_NF4, LORA_LEVEL)
DISK = dict(zip(STRATEGIES, (900, 901, 400, 110, 200, 700, 1000), strict=True))
SHIPPED = dict(zip(STRATEGIES, (100, 100, 110, 110, 100, 100, 100), strict=True))


def advice(
    points: dict[str, float],
    noise: float,
    level: str = "Q4_K_M",
    seeds: int = 3,
    speed: dict[str, float] | None = None,
    right: dict[str, float] | None = None,
    **general: Difference,
) -> Advice:
    """The advice where strategies score so many points and differences below `noise` are not measurable."""
    measured = {
        strategy: Measured(
            found / 100,
            DISK[strategy],
            SHIPPED[strategy],
            general.get(strategy),
            (speed or {}).get(strategy, 1.0),
        )
        for strategy, found in points.items()
    }
    found, perfect = (
        {
            (one, other): Difference(
                gap := of[other] - of[one], gap - noise, gap + noise, 0.001 if abs(gap) > noise else 0.5
            )
            for one, other in combinations(points, 2)
        }
        for of in (points, right or dict.fromkeys(points, 0.0))
    )
    return recommend(level, measured, found, perfect, seeds)


ADVICE = [
    ((70, 70, 70, 80), 5, LORA_LEVEL, True),
    ((80, 70, 60, 70), 5, MERGED_16, True),
    ((70, 80, 60, 70), 5, MERGED_NF4, True),
    ((60, 60, 80, 70), 5, LORA_NF4, True),
    ((70, 71, 72, 69), 5, LORA_LEVEL, False),
    ((80, 79, 60, 60), 5, MERGED_16, False),
    ((80, 79, 78, 60), 5, LORA_NF4, False),
    ((0, 0, 0, 0), 0, LORA_LEVEL, False),
]


@pytest.mark.parametrize(("points", "noise", "strategy", "decided"), ADVICE)
def test_the_advice_follows_the_figures_whatever_they_say(
    points: tuple[float, ...], noise: float, strategy: str, decided: bool
) -> None:
    found = advice(dict(zip(FIRST_FOUR, points, strict=True)), noise)
    assert (found.recommended, found.decided) == (strategy, decided)


EQUAL = dict.fromkeys((MERGED_16, LORA_LEVEL, SCALES_LEVEL), 70.0)
SLOW = {LORA_LEVEL: 0.65}


def more_rows_all_right() -> Advice:
    """Which is no noise, whatever the score says."""
    right = {MERGED_16: 10.0, LORA_LEVEL: 30.0, SCALES_LEVEL: 12.0}
    return advice(EQUAL | {LORA_LEVEL: 71.0}, 5, speed=SLOW, right=right)


def test_what_the_advice_says(snapshot: Any) -> None:
    said = [advice(dict(zip(FIRST_FOUR, points, strict=True)), noise) for points, noise, *_ in ADVICE]
    said += [
        advice(EQUAL, 5, speed=SLOW),
        more_rows_all_right(),
        advice(dict(zip(FIRST_FOUR, (70, 70, 70, 80), strict=True)), 5, "Q4_0", 1),
        advice(
            EQUAL | {SCALES_LEVEL: 90.0}, 5, "Q4_0", **{SCALES_LEVEL: Difference(-15.0, -20.0, -9.0, 0.001)}
        ),
    ]
    assert "".join(f"{one.sentence}\n" for one in said) == snapshot(extension_class=Golden)


def test_of_equals_the_faster_is_taken_however_little_disk_an_adapter_needs() -> None:
    assert advice(EQUAL, 5, speed=SLOW).recommended == SCALES_LEVEL
    assert advice(EQUAL, 5, speed={LORA_LEVEL: 0.96}).recommended == LORA_LEVEL
    best = advice(EQUAL | {LORA_LEVEL: 90.0}, 5, speed=SLOW)
    assert best.recommended == LORA_LEVEL  # though slow
    assert advice(dict.fromkeys((LORA_NF4, LORA_LEVEL), 70.0), 5, speed=SLOW).recommended == LORA_NF4
    assert not advice({SCALES_LEVEL: 70.0}, 5).decided  # nothing else was measured
    # the best score is no excuse for fewer rows that are all right
    right = {MERGED_16: 10.0, SCALES_LEVEL: 19.0}
    found = advice({MERGED_16: 70.3, SCALES_LEVEL: 70.2}, 5, right=right)
    assert (found.recommended, found.decided) == (SCALES_LEVEL, True)
    found = more_rows_all_right()
    assert (found.recommended, found.decided) == (LORA_LEVEL, True)


def timed(shipped: float, bare: float | None = None, *, disturbed: bool = False) -> dict[str, Any]:
    speed = {"shipped": {"median": shipped}, "disturbed": disturbed}
    return {"speed": speed | ({} if bare is None else {"bare": {"median": bare}})}


@pytest.mark.parametrize(
    ("seeds", "part"),
    [
        ([timed(60.0)], 1.0),
        ([timed(60.0, 80.0)] * 2, 0.75),
        ([timed(81.0, 80.0)], 1.0),  # noise
        ([timed(20.0, 100.0, disturbed=True), timed(90.0, 100.0)], 0.9),
        ([timed(20.0, 100.0, disturbed=True)], 1.0),  # nothing says that it is slower
    ],
)
def test_an_adapters_speed_is_a_part_of_that_without(seeds: list[dict[str, Any]], part: float) -> None:
    assert part_of_speed(seeds) == part


# ---- sub-projects and their processes


def test_a_model_folder_is_as_large_as_its_weights(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"x" * 7)
    (tmp_path / "tokenizer.json").write_bytes(b"x" * 100)
    assert size_of(tmp_path) == 7


def test_a_sub_project_has_settings_of_its_own_and_keeps_what_a_killed_job_left(ready: Path) -> None:
    params, links = set_params(ready), {"data/raw": ready / "data/raw"}
    folder = open_project(ready, "nf4-1", params, {"train": {"seed": 1}}, links)
    (folder / "models/checkpoints").mkdir(parents=True)
    assert open_project(ready, "nf4-1", params, {"train": {"seed": 1}}, links) == folder
    assert folder.parent == ready / "models/.compare"
    assert (folder / "models/checkpoints").exists()
    assert (folder / "data/raw/chats.jsonl").is_file()
    assert not list(folder.rglob("*.dvc")) and not (folder / "dvc.yaml").exists()
    assert load_params(folder / "params.yaml").train.seed == 1


def test_a_jobs_sub_project_has_its_seed_and_its_merge(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Seen(Exception):
        """Nothing is made."""

    def look(project: Path, *_: Any) -> None:
        found.append(load_params(project / "params.yaml"))

    def stop(project: Path, *_: Any) -> None:
        look(project)
        raise Seen

    found: list[Params] = []
    params, trained = set_params(ready, seeds=[7]), ready / "models/compare/nf4-7"
    monkeypatch.setattr(nf4, "train", look)
    nf4.main(params, ready, "7")
    (trained / "adapter").mkdir(parents=True)
    (trained / "train.json").write_text("{}")
    monkeypatch.setattr(made, "run_stage", stop)
    for strategy in (MERGED_16, MERGED_NF4):
        with pytest.raises(Seen):
            measure.main(params, ready, f"{strategy}-Q4_K_M-7")
    assert found[0].train.seed == 7
    assert [one.merge.base for one in found[1:]] == ["16-bit", "nf4"]


def test_a_copied_project_works_on_its_own_files(ready: Path, tmp_path: Path) -> None:
    for root in (ready, tmp_path / "copy"):
        if root != ready:
            shutil.copytree(ready, root, symlinks=True)
        folder = open_project(
            root, "nf4-1", load_params(root / "params.yaml"), {}, {"data/raw": root / "data/raw"}
        )
        assert (folder / "data/raw").resolve() == root / "data/raw"
    assert (ready / "models/.compare/nf4-1/data/raw").resolve() == ready / "data/raw"


def test_all_code_that_a_job_runs_is_in_its_key() -> None:
    """What is trained depends on the stages that the job starts, and a figure on all that measures, processes
    of their own included.
    """
    package, modules = Package(), code_of_stages()
    measuring, on_nf4, training = (
        package.closure(*modules[stage]) for stage in ("compare_measure", "compare_nf4", "compare_train")
    )
    compare = "stages/compare"
    assert {f"{compare}/reference.py", "metrics/scorers.py", "stages/merge/stage.py"} <= {*measuring}
    assert {"stages/train/stage.py", "subprojects/processes.py"} <= {*on_nf4} & {*training}
    # other code to measure with trains nothing again
    measures = {f"{compare}/measure.py", f"{compare}/reference.py", "workflow/settle.py"}
    assert not measures & {*on_nf4, *training}
    assert not {"make_adapted", "with_scales"} & {*training[f"{compare}/made.py"]}


def test_every_strategy_is_trained_and_made_and_can_be_asked_for() -> None:
    names = list(STRATEGIES)
    assert [list(get_args(StrategyName)), list(train.TRAINERS), list(made.MAKERS)] == [names] * 3
    assert {name for name in names if Job(name, "Q4_0", 1).training == "nf4-1"} == {*ON_NF4}


def test_a_sub_project_is_this_project_but_for_what_it_must_be(tiny_params: dict[str, Any]) -> None:
    tiny_params["merge"]["base"], tiny_params["quantize"]["levels"] = (
        "auto",
        ["Q4_K_M", "Q5_K_M", "base-Q4_K_M"],
    )
    values = sub_params(
        Params.model_validate(with_compare(tiny_params, seeds=[1], levels=["Q4_0"])), {"train": {"seed": 9}}
    )
    assert values["train"] == tiny_params["train"] | {"seed": 9, "sample_rows": 0}
    assert (values["quantize"]["levels"], values["merge"]["base"], values["compare"]["seeds"]) == (
        ["Q4_0"],
        "16-bit",
        [],
    )
    assert values["curate"] == tiny_params["curate"]


# a project's base that is found by its hash, wherever it is
OTHER_FILE = {"model": "a/b-GGUF", "revision": "0" * 40, "file": "b.gguf", "sha256": "0" * 64}


def test_scales_are_trained_at_a_rate_of_their_own(tiny_params: dict[str, Any], tmp_path: Path) -> None:
    changed = with_compare(tiny_params, seeds=[1], levels=["Q4_0"])
    changed["base"] |= OTHER_FILE | {"places": [{"path": "b.gguf"}]}
    params = Params.model_validate(changed)
    settings = level_settings(params, tmp_path, Job(SCALES_LEVEL, "Q4_0", 1), scales=True)
    values = sub_params(params, settings)
    assert (values["train"]["tuner"], values["train"]["learning_rate"]) == ("scales", 5e-3)
    base = Params.model_validate(values).base
    assert (base.gguf_name, base.sha256, base.places) == (base.model, None, [])


def python(code: str) -> None:
    """A process of a job that runs this."""
    processes.run_module("timeit", "-n", "1", "-r", "1", code, what="train in nf4-1")


def test_a_process_of_a_job_has_a_session_of_its_own_and_ends_the_job_with_its_exit_status(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(REUSE, "1")
    # else Ctrl-C reaches it beside our own signal, and the second ends it without a checkpoint; nothing of a
    # sub-project is in DVC's cache
    python(f"import os; assert os.getsid(0) == os.getpid() and {REUSE!r} not in os.environ")
    with pytest.raises(GateError, match=r"Q-COMPARE-007.*status 5"):
        python("import os; os._exit(5)")


def test_a_real_stage_is_run_and_its_own_error_class_comes_back(
    tiny_params: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tiny_params["base"]["model"] = str(tmp_path / "nowhere")
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(tiny_params))
    with pytest.raises(DataError, match="Q-COMPARE-007"):
        processes.run_stage(tmp_path, "base")
    assert "nowhere" in capfd.readouterr().err


def test_ctrl_c_ends_what_a_stage_started_as_well(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    output = tmp_path / "pid"

    class Interrupted(subprocess.Popen[bytes]):
        def wait(self, timeout: float | None = None) -> int:
            if not output.exists():
                while not output.exists():
                    time.sleep(0.05)
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr(processes.subprocess, "Popen", Interrupted)
    tool = (
        f"import subprocess; one = subprocess.Popen(['sleep', '600']); open({str(tmp_path / 'new')!r}, "
        "'w').write(str(one.pid)); "
    )
    tool += f"import os; os.rename({str(tmp_path / 'new')!r}, {str(output)!r}); one.wait()"
    with pytest.raises(KeyboardInterrupt):
        processes.run_module("timeit", "-n", "1", "-r", "1", tool, what="a stage")
    process, end = Path("/proc") / output.read_text(), time.monotonic() + 30
    while process.exists() and (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < end
        time.sleep(0.05)


def test_what_a_killed_job_had_started_ends_by_itself(tmp_path: Path) -> None:
    """`kill -9` of a job leaves it no moment to end its stage: the kernel tells the stage, as by SIGTERM."""
    output, told = tmp_path / "pid", tmp_path / "told"
    stage = (
        "import os, signal, sys, time; "
        f"signal.signal(signal.SIGTERM, lambda *_: (open({str(told)!r}, 'w').close(), sys.exit(0))); "
        f"open({str(tmp_path / 'new')!r}, 'w').write(str(os.getpid())); "
        f"os.rename({str(tmp_path / 'new')!r}, {str(output)!r}); time.sleep(600)"
    )
    call = f"processes.run_module('timeit', '-n', '1', '-r', '1', {stage!r}, what='a stage')"
    job = subprocess.Popen(
        [sys.executable, "-c", f"from pipeline.subprojects import processes; {call}"],
        cwd=Path(__file__).parents[3],
    )
    end = time.monotonic() + 60
    while not output.exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    job.kill()
    job.wait()
    process = Path("/proc") / output.read_text()
    while process.exists() and (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < end
        time.sleep(0.05)
    assert told.exists()  # and is not killed: a training writes its checkpoint first


def test_an_orphan_does_not_start() -> None:
    with pytest.raises(SystemExit, match="is gone"):
        become(1 << 22, signal.SIGTERM, ["python"])


# ---- the stage


def set_params(root: Path, section: str = "compare", **changed: Any) -> Params:
    params = yaml.safe_load((root / "params.yaml").read_text())
    params[section] |= changed
    (root / "params.yaml").write_text(yaml.safe_dump(params))
    return load_params(root / "params.yaml")


def test_without_seeds_nothing_is_measured(tiny_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tiny_root / "models/.compare/nf4-1").mkdir(parents=True)  # an unfinished run's
    assert run_here(["compare", "--root", str(tiny_root)]) == 0
    assert json.loads((tiny_root / "reports/strategies.json").read_text()) == {"seeds": []}
    assert "not measured" in capsys.readouterr().out
    assert not list((tiny_root / "models/.compare").iterdir())


def test_what_is_missing_is_named_with_what_makes_it(ready: Path) -> None:
    with pytest.raises(DataError, match=r"Q-CORE-001: .*compare_unquantized@1`"):
        main(set_params(ready, seeds=[1]), ready)
    shutil.rmtree(ready / "data/tokens")
    with pytest.raises(DataError, match="Q-CORE-001"):
        nf4.main(load_params(ready / "params.yaml"), ready, "1")


@pytest.mark.parametrize(
    "job",
    [
        "compare_nf4@x",
        "compare_train@Q4_K_M",
        "compare_unquantized@-1",
        "compare_measure@best-Q4_K_M-1",
        "compare_nf4@2",
        "compare_train@Q4_K_M-1",
        "compare_train@lora_level-Q4_K_M-01",
        "compare_train@lora_level-Q6_K-1",
        "compare_train@merged_distilled-Q4_K_M-1",
        "compare_measure@merged_16-Q6_K-1",
    ],
)
def test_a_job_that_nobody_asks_for_is_refused_before_it_runs(
    ready: Path, job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    set_params(ready, seeds=[1], levels=["Q4_K_M"])
    assert run_here([job, "--root", str(ready)]) == ConfigError.exit_code
    assert "Q-COMPARE-001" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"compare": {"strategies": ["best"]}}, "is 'best', input should be 'merged_16'"),
        ({"compare": {"strategies": {"nf4": [MERGED_16]}}}, "one list of names .`quench config upgrade`"),
        (
            {"compare": {"seeds": [1], "strategies": [SCALES_LEVEL]}},
            "compare.strategies scales_level: name two at least",
        ),
        ({"compare": {"levels": ["Q4_K_M-imatrix"]}}, "leave -imatrix out"),
        ({"compare": {"seeds": [1]}, "evaluate": {"scorers": []}}, "name a scorer"),
        (
            {
                "compare": {"seeds": [1]},
                "base": {"model": "a.gguf", "quantization": "gguf"},
                "evaluate": {"models": ["adapter"]},
            },
            "where the 16-bit base is",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(
    tiny_params: dict[str, Any], tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    for section, changed in changes.items():
        tiny_params[section] |= changed
    file = tmp_path / "params.yaml"
    file.write_text(yaml.safe_dump(tiny_params))
    with pytest.raises(ConfigError, match=words):
        load_params(file)


@pytest.fixture
def ready(prepared: Path, tiny_gguf_base: Path, tmp_path: Path) -> Path:
    """A tiny project in which everything has run that compare reads."""
    root = tmp_path / "project"
    shutil.copytree(prepared, root, ignore=shutil.ignore_patterns("base"))
    (root / "models/base").symlink_to(prepared / "models/base")
    (root / "models/gguf").mkdir()
    shutil.copy(tiny_gguf_base, root / "models/gguf/tiny-base-F16.gguf")
    return root


def test_a_disk_that_is_too_small_is_refused_before_anything_runs(
    ready: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(ready)
    monkeypatch.setattr("pipeline.core.publish.shutil.disk_usage", lambda _: usage._replace(free=1_000_000))
    no_stage_runs(monkeypatch)
    with pytest.raises(
        MachineError, match=r"models/\.compare needs [\d.]+ [MG]B and its disk has 1\.0 MB free"
    ):
        nf4.main(set_params(ready, seeds=[1]), ready, "1")


@pytest.mark.parametrize(
    ("level", "types", "words"),
    [
        ("TQ1_0", {}, "compare.levels has TQ1_0, whose type TQ1_0 can't be trained on"),
        ("Q1_0", {}, "whose type Q1_0"),
        ("IQ3_M", {}, "whose type IQ3_S"),
        ("Q4_K_M", {"attn_v": "tq2_0"}, "quantize.tensor_types.attn_v asks for tq2_0"),
    ],
)
def test_a_level_that_cannot_be_trained_on_is_refused_before_anything_runs(
    ready: Path, monkeypatch: pytest.MonkeyPatch, level: str, types: dict[str, str], words: str
) -> None:
    no_stage_runs(monkeypatch)
    monkeypatch.setattr(projects, "need_disk", lambda *_: pytest.fail("disk was asked for"))
    params = set_params(ready, seeds=[1], levels=["Q4_K_M", level] if level != "Q4_K_M" else [level])
    with pytest.raises(ConfigError, match="Q-COMPARE-003") as caught:
        nf4.main(
            params.model_copy(
                update={"quantize": params.quantize.model_copy(update={"tensor_types": types})}
            ),
            ready,
            "1",
        )
    assert words in caught.value.sentence
    assert not (ready / "models/.compare/nf4-1").exists()


@pytest.mark.parametrize(
    ("odd", "words"), [("rope", "scaled rotary positions"), ("gemma", "for gemma, only")]
)
def test_a_base_that_cannot_be_trained_on_as_a_gguf_is_refused_before_anything_runs(
    ready: Path, monkeypatch: pytest.MonkeyPatch, odd: str, words: str
) -> None:
    no_stage_runs(monkeypatch)
    file = ready / "models/gguf/tiny-base-F16.gguf"
    if odd == "rope":
        tiny.tiny_gguf(file, tensors={"rope_freqs.weight": np.ones(4, np.float32)})
    else:
        header = checked_header(file)
        changed = replace(header, fields=header.fields | {"general.architecture": odd})
        monkeypatch.setattr(
            "pipeline.stages.compare.projects.checked_header", lambda _, changed=changed: changed
        )
    with pytest.raises(ConfigError, match="Q-COMPARE-002") as caught:
        nf4.main(set_params(ready, seeds=[1], levels=["Q4_K_M"]), ready, "1")
    assert words in caught.value.sentence


def jobs_of(params: Params, *stages: str) -> list[str]:
    """The jobs of these stages, as Snakemake and DVC name them."""
    values = values_of(params)
    return [
        f"{stage}@{ending}" for stage in stages for ending, _ in items_of(table().stages[stage].each, values)
    ]


def test_one_more_seed_or_level_is_jobs_of_its_own(tiny_params: dict[str, Any]) -> None:
    """Jobs know of no other seed and level: neither their names nor what they depend on changes."""

    def with_jobs(seeds: list[int], *levels: str) -> Params:
        return Params.model_validate(with_compare(tiny_params, seeds=seeds, levels=list(levels)))

    assert not {rule.name for rule in rules(with_jobs([], "Q4_K_M"), 1)} & {*JOBS}
    made = {rule.name: rule.items for rule in rules(with_jobs([1], "Q4_K_M"), 1)}
    usual = "|".join((*ON_NF4, LORA_LEVEL, SCALES_LEVEL))
    assert made["compare_train"] == {"strategy": usual, "level": "Q4_K_M", "seed": "1"}
    asked = with_jobs([1], "Q4_K_M"), with_jobs([1, 2], "Q4_K_M"), with_jobs([1], "Q4_K_M", "Q6_K")
    one, seeds, levels = (set(jobs_of(params, *JOBS)) for params in asked)
    assert len(one) == 12 and one < seeds and one < levels
    assert all(job.endswith(("@2", "-2")) for job in seeds - one) and len(seeds - one) == 12
    assert all("Q6_K" in job for job in levels - one) and len(levels - one) == 10


def test_only_what_is_asked_for_is_trained(tiny_params: dict[str, Any]) -> None:
    """A strategy that nobody asks for is no job, and a job depends on its own training alone."""
    asked = [MERGED_16, SCALES_LEVEL, MERGED_DISTILLED]
    params = Params.model_validate(with_compare(tiny_params, seeds=[1], levels=["Q4_0"], strategies=asked))
    assert jobs_of(params, *JOBS) == [
        "compare_nf4@1",
        *(f"compare_train@{name}-Q4_0-1" for name in asked),
        "compare_unquantized@1",
        *(f"compare_measure@{name}-Q4_0-1" for name in asked),
    ]
    trained = {
        rule.name: {dep for dep in rule.deps if dep.startswith("models/compare/")}
        for rule in rules(params, 1)
    }
    on_nf4, own = "models/compare/nf4-{seed}", "models/compare/{strategy}-{level}-{seed}"
    assert trained["compare_nf4"] == set()
    assert trained["compare_train"] == trained["compare_unquantized"] == {on_nf4}
    assert trained["compare_measure"] == {on_nf4, own}


def test_a_strategy_that_trains_on_nf4_alone_names_that_training(
    ready: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_stage_runs(monkeypatch)
    params = set_params(ready, seeds=[1], levels=["Q4_0"])
    for name in ON_NF4:
        train.main(params, ready, f"{name}-Q4_0-1")
        folder = ready / f"models/compare/{name}-Q4_0-1"
        assert json.loads((folder / "training.json").read_text()) == {"training": "nf4-1"}


def test_checkpoints_of_other_inputs_are_not_gone_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job was killed and its rows or settings changed: nobody else can need what it left."""
    project, asked = tmp_path / "nf4-1", list[tuple[str, ...]]()

    def refuses(root: Path, *words: str) -> None:
        asked.append(words)
        if "--no-resume" not in words:
            raise ConfigError("Q-COMPARE-007", "train in nf4-1 failed")
        for file in (root / "models/adapter/adapter_config.json", root / "reports/train.json"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("{}")

    monkeypatch.setattr(processes, "run_stage", refuses)
    with pytest.raises(ConfigError, match="Q-COMPARE-007"):
        projects.train(project, tmp_path / "trained")
    (project / "models/checkpoints/checkpoint-1").mkdir(parents=True)
    projects.train(project, tmp_path / "trained")
    assert asked == [("train",), ("train",), ("train", "--no-resume")]
    assert sorted(path.name for path in (tmp_path / "trained").iterdir()) == ["adapter", "train.json"]
    assert not project.exists()


def test_a_level_that_is_another_file_than_was_trained_on_names_the_job_that_trains_again(
    ready: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another build of llama.cpp may quantize to other bytes."""
    adapter = ready / "models/compare/lora_level-Q4_K_M-1/adapter"
    adapter.mkdir(parents=True)
    (adapter / "run.json").write_text(json.dumps({"base": {"weights_sha256": "0" * 64}}))
    no_stage_runs(monkeypatch)
    params = set_params(ready, seeds=[1], levels=["Q4_K_M"])
    with pytest.raises(DataError, match=r"Q-COMPARE-008: .*compare_train@lora_level-Q4_K_M-1`"):
        made.make_on_level(params, ready, Job(LORA_LEVEL, "Q4_K_M", 1))


@pytest.mark.parametrize("name", [SCALES_LEVEL, MERGED_DISTILLED])
def test_a_patch_goes_on_no_other_file_of_the_level(
    tiny_gguf_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    trained, project = tmp_path / f"models/compare/{name}-Q4_0-1", tmp_path / "models/.compare/measured"
    for folder in (trained, project / "models"):
        folder.mkdir(parents=True)
    write_patch(tiny_gguf_base, tiny_gguf_base, trained / projects.PATCH)
    (project / "models/adapter").symlink_to(trained)
    level_file = project / "level.gguf"
    level_file.write_bytes(tiny_gguf_base.read_bytes() + b"\0")
    no_stage_runs(monkeypatch)
    with pytest.raises(DataError, match=rf"Q-COMPARE-008: .*compare_train@{name}-Q4_0-1`"):
        made.with_scales(Job(name, "Q4_0", 1), made.Made(project, level_file, None, {}))


TRAINING_STEP = "pipeline.stages.train.trainer:QuenchTrainer.training_step"


def in_this_process(root: Path, *words: str) -> None:
    """`run_stage` without a process of its own, which would import torch again."""
    assert run_here([*words, "--root", str(root)]) == 0


def run_small(patch: pytest.MonkeyPatch, run_stage: Callable[..., None] = in_this_process) -> None:
    """Jobs measure little, and their stages run by `run_stage`."""
    for name, small in {"TIMED": 1, "PROMPT": 16, "TOKENS": 8}.items():
        patch.setattr(measure, name, small)
    patch.setattr(reference, "KLD_ROWS", 2)
    patch.setattr("pipeline.stages.train.stage.use_all_cores", lambda: torch.set_num_threads(1))
    for module in RUN_STAGES:
        patch.setattr(module, "run_stage", run_stage)
    patch.setattr(measure, "run_module", lambda module, *words, what: reference.main(list(words)))


def do_job(root: Path, job: str) -> None:
    """A job in a process that begins with nothing patched."""
    run_small(pytest.MonkeyPatch())
    in_this_process(root, job)


def test_a_job_that_was_killed_in_its_training_ends_in_the_same_bytes(
    ready: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_small(monkeypatch)
    set_params(ready, seeds=[1], levels=["Q4_0"])
    whole = Path(shutil.copytree(ready, tmp_path / "whole", symlinks=True))
    in_this_process(whole, "compare_nf4@1")
    kill_at(TRAINING_STEP, 2, do_job, ready, "compare_nf4@1")
    assert (ready / "models/.compare/nf4-1/models/checkpoints/checkpoint-1").is_dir()
    assert not (ready / "models/compare/nf4-1").exists()
    in_this_process(ready, "compare_nf4@1")
    assert tree_hash(ready / "models/compare/nf4-1/adapter") == tree_hash(
        whole / "models/compare/nf4-1/adapter"
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_strategy_is_measured_and_a_killed_job_goes_on(
    ready: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[tuple[str, str]] = []
    real: Callable[..., None] = processes.run_stage

    def counted(root: Path, *words: str) -> None:
        if words == ("preprocess",):
            real(root, *words)
        else:
            in_this_process(root, *words)
        ran.append((root.name, words[0]))

    run_small(monkeypatch, counted)
    set_params(ready, "distill", max_steps=2)
    params = set_params(ready, seeds=[1], levels=["Q4_0"], strategies=list(STRATEGIES))
    general = {"subject": "letters", "choices": ["a", "b"], "answer": 0}
    (ready / "data/evaluation").mkdir(exist_ok=True)
    (ready / "data/evaluation/three.jsonl").write_text(
        "".join(json.dumps(general | {"question": f"Which letter is number {one}?"}) + "\n" for one in "123")
    )
    params = set_params(ready, "evaluate", general="three.jsonl")
    (ready / "data/distill").mkdir()
    chats = [{"instruction": f"Word {one}?", "output": f"It is {one}."} for one in "abcdef"]
    (ready / "data/distill/more.json").write_text(json.dumps(chats))
    before = {path for path in ready.rglob("*") if ".compare" not in path.parts}
    killed = {
        "compare_nf4@1": TRAINING_STEP,
        "compare_train@lora_level-Q4_0-1": "pipeline.stages.preprocess.stage:main",
        "compare_train@scales_level-Q4_0-1": "pipeline.stages.tuned.stage:main",
        "compare_measure@merged_16-Q4_0-1": "pipeline.stages.convert.stage:main",
        "compare_measure@lora_level-Q4_0-1": "pipeline.stages.lora.stage:main",
    }
    for job in jobs_of(params, *JOBS):
        if place := killed.pop(job, None):
            kill_at(place, 1, do_job, ready, job)
        assert run_here([job, "--root", str(ready)]) == 0, job
    assert not killed
    assert sorted({name for name, stage in ran if stage == "train"}) == [
        "distilled_scales-Q4_0-1",
        "distilled_scales-Q4_0-1-distillation",
        "lora_level-Q4_0-1",
        "merged_distilled-Q4_0-1-distillation",
        "nf4-1",
        "scales_level-Q4_0-1",
    ]
    for name in ("scales_level", "distilled_scales", "merged_distilled"):  # a patch, and no weights
        assert sorted(path.name for path in (ready / f"models/compare/{name}-Q4_0-1").iterdir()) == [
            "patch.safetensors",
            "run.json",
            "train.json",
        ]
    assert list((ready / "models/.compare").iterdir()) == []  # each job has removed its scratch
    main(params, ready)
    found = json.loads((ready / "reports/strategies.json").read_text())
    at_level = found["levels"]["Q4_0"]
    assert list(at_level["strategies"]) == sorted(STRATEGIES)
    for strategy, figures in at_level["strategies"].items():
        assert [one["seed"] for one in figures["by_seed"]] == [1]
        # two steps of training: what is shipped says what the trained model says
        assert 0 <= figures["kld"] < 0.1, strategy
        if figures["tok_s"] is not None:  # other tests beside this one disturb speeds
            assert (figures["tok_s_bare"] is None) == (strategy not in (LORA_NF4, LORA_LEVEL))
        assert figures["general"]["rows"] == found["untuned_general"]["rows"] == 3
        assert figures["general_change"].keys() > {"points", "low", "high", "measurable"}
        assert figures["disk_bytes"] > figures["bytes"] or strategy == LORA_LEVEL
    assert (
        at_level["strategies"][LORA_LEVEL]["disk_bytes"]
        < at_level["strategies"][LORA_NF4]["disk_bytes"]
        < at_level["strategies"][MERGED_16]["disk_bytes"]
        < at_level["strategies"][MERGED_DISTILLED]["disk_bytes"]
    )
    distilled = at_level["strategies"][MERGED_DISTILLED]["by_seed"][0]["training"]["parts"]
    assert set(distilled) == {"nf4-1", "merged_distilled-Q4_0-1"}
    trained = json.loads((ready / "models/compare/distilled_scales-Q4_0-1/train.json").read_text())
    learned = trained["distillation"]["rows"]
    assert learned["general"] == 6 and list(learned["data_distill"]["files"]) == ["more.json"]
    # a random model scores nothing, so speed and disk decide
    assert at_level["recommended"] in (LORA_LEVEL, LORA_NF4, SCALES_LEVEL) and not at_level["decided"]
    assert at_level["sentence"] in capsys.readouterr().out
    assert (found["reference"]["level"], found["seconds"] > 0) == ("F16", True)
    after = {path for path in ready.rglob("*") if ".compare" not in path.parts}
    new = {
        path.relative_to(ready).as_posix()
        for path in after - before
        if path.is_file() and path.suffix == ".json"
    }
    assert {one for one in new if one.startswith("reports")} == {
        "reports/strategies.json",
        "reports/compare/merged_16-1.json",
        *(f"reports/compare/{job.partition('@')[2]}.json" for job in jobs_of(params, "compare_measure")),
    }
    # fewer strategies: nothing to train for them, and what no cache has stays
    set_params(ready, strategies=[SCALES_LEVEL, MERGED_NF4])
    assert run_here(["compare", "--root", str(ready)]) == 0
    found = json.loads((ready / "reports/strategies.json").read_text())
    assert set(found["levels"]["Q4_0"]["strategies"]) == {MERGED_NF4, SCALES_LEVEL}
    assert len(list((ready / "models/compare").iterdir())) == 1 + len(STRATEGIES)
    started = {stage for _, stage in ran}
    # whose code is in the jobs' keys
    assert started == {one for job in JOBS for one in table().stages[job].starts}
