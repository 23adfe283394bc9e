"""compare: steps run once and go when nothing needs them, a killed run goes on, the statistics know rows and seeds, and the advice follows them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import yaml

from pipeline.__main__ import main as run_here
from pipeline.config.params import Params, load_params
from pipeline.config.strategies import CHANCE, LORA_LEVEL, LORA_NF4, MERGED_16, MERGED_NF4, WAYS
from pipeline.core.child import become
from pipeline.core.errors import ConfigError, DataError, GateError, MachineError, Stopped
from pipeline.gate.drops import CHANCE as GATES_CHANCE
from pipeline.llamacpp.tools import Toolchain
from pipeline.models.base_header import checked_header
from pipeline.stages.compare import child, plan, projects, reference
from pipeline.stages.compare.projects import KEY, open_project, sub_params, training_modules
from pipeline.stages.compare.recommendation import Measured, recommend
from pipeline.stages.compare.stage import decided, main
from pipeline.stages.compare.statistics import Difference, difference, half_width, mean_of
from pipeline.stages.compare.steps import Measurement, Step, measure_all, needed, size_of
from pipeline.workflow.code_keys import Package
from pipeline.workflow.settle import REUSE
from pipeline.workflow.stages import table


def with_compare(params: dict[str, Any], **changed: Any) -> dict[str, Any]:
    return params | {"compare": params["compare"] | changed}


# ---- statistics


def scores(random: np.random.Generator, seeds: int, rows: int, *, of_seeds: float = 0.05, of_rows: float = 0.3, of_both: float = 0.2) -> Any:
    """Scores around 0.5 with so much spread by seed, by row, and by both."""
    return 0.5 + of_seeds * random.normal(size=(seeds, 1)) + of_rows * random.normal(size=(1, rows)) + of_both * random.normal(size=(seeds, rows))


@pytest.mark.parametrize(("seeds", "least"), [(1, 0.92), (2, 0.85), (3, 0.90), (12, 0.92)])
@pytest.mark.parametrize(
    ("of_seeds", "of_rows", "of_both"), [(0.0, 0.3, 0.2), (0.02, 0.2, 0.2), (0.05, 0.05, 0.2), (0.05, 0.0, 0.01), (0.0, 0.0, 0.3)]
)
def test_the_interval_holds_the_truth_as_often_as_it_says(seeds: int, least: float, of_seeds: float, of_rows: float, of_both: float) -> None:
    random = np.random.default_rng(0)
    drawn = (scores(random, seeds, 60, of_seeds=of_seeds if seeds > 1 else 0, of_rows=of_rows, of_both=of_both) for _ in range(400))
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
    found = difference(first, second, 0)
    assert found.measurable
    assert 1.0 < found.low < found.points < found.high < 3.0
    back = difference(second, first, 0)
    assert (back.points, back.p_value) == (-found.points, found.p_value)
    shuffled = difference(first, np.roll(second, 50, axis=1), 0)
    assert not shuffled.measurable


def test_no_difference_is_none_and_one_seed_that_is_better_by_luck_is_not_measurable() -> None:
    same = np.random.default_rng(3).random((3, 50))
    found = difference(same, same, 0)
    assert (found.points, found.low, found.high, found.p_value, found.measurable) == (0, 0, 0, 1, False)
    lucky = same.copy()
    lucky[0] += 0.2
    assert not difference(same, lucky, 0).measurable  # the test over rows is certain, the seeds are not
    assert difference(same, lucky, 0).p_value < CHANCE
    assert difference(same[:1], lucky[:1], 0).measurable  # of one seed nobody knows


def test_a_single_score_says_nothing_and_shapes_must_agree() -> None:
    one = np.array([[1.0]])
    assert (mean_of(one).low, mean_of(one).high) == (0.0, 1.0)
    assert (difference(one, 0 * one, 0).low, difference(one, 0 * one, 0).high) == (-100.0, 100.0)
    with pytest.raises(ValueError, match="the same of both"):
        difference(one, np.ones((2, 1)), 0)
    assert CHANCE == GATES_CHANCE


# ---- the recommendation

DISK = {MERGED_16: 900, MERGED_NF4: 901, LORA_NF4: 400, LORA_LEVEL: 110}
SHIPPED = {MERGED_16: 100, MERGED_NF4: 100, LORA_NF4: 110, LORA_LEVEL: 110}


def advice(points: dict[str, float], noise: float, level: str = "Q4_K_M", seeds: int = 3) -> Any:
    """The advice where ways score so many points and differences below `noise` are not measurable."""
    measured = {way: Measured(points[way] / 100, DISK[way], SHIPPED[way]) for way in WAYS}
    ways = list(WAYS)
    found = {
        (one, other): Difference(gap := points[other] - points[one], gap - noise, gap + noise, 0.001 if abs(gap) > noise else 0.5)
        for place, one in enumerate(ways) for other in ways[place + 1 :]
    }  # fmt: skip
    return recommend(level, measured, found, seeds)


@pytest.mark.parametrize(
    ("points", "noise", "way", "decided", "words"),
    [
        ((70, 70, 70, 80), 5, LORA_LEVEL, True, "scores 80.0 points, 10.0 more than the next way (5.0 to 15.0): set base.quantization to gguf"),
        ((80, 70, 60, 70), 5, MERGED_16, True, "set merge.base to w16"),
        ((70, 80, 60, 70), 5, MERGED_NF4, True, "set merge.base to nf4"),
        ((60, 60, 80, 70), 5, LORA_NF4, True, "add base-Q4_K_M to quantize.levels and run `quench serve base-Q4_K_M --lora`"),
        ((70, 71, 72, 69), 5, LORA_LEVEL, False, "no way scores measurably below the best one, so take the one that needs least disk"),
        ((80, 79, 60, 60), 5, MERGED_16, False, "2 of 4 ways are not measurably below the best one, and of these"),
        ((80, 79, 78, 60), 5, LORA_NF4, False, "3 of 4 ways"),
        ((0, 0, 0, 0), 0, LORA_LEVEL, False, "no way scores measurably below"),
    ],
)
def test_the_advice_follows_the_figures_whatever_they_say(points: tuple[float, ...], noise: float, way: str, decided: bool, words: str) -> None:
    found = advice(dict(zip(WAYS, points, strict=True)), noise)
    assert (found.way, found.decided) == (way, decided)
    assert words in found.sentence
    assert "over 3 seeds" in found.sentence


def test_the_advice_names_its_level_and_says_when_it_rests_on_one_seed() -> None:
    found = advice(dict(zip(WAYS, (70, 70, 70, 80), strict=True)), 5, "Q4_0", 1)
    assert found.sentence.startswith("Q4_0: train on Q4_0 itself, put the adapter on it: with one seed it")
    assert "base.level to Q4_0" in found.sentence


# ---- steps


class Work:
    """Steps and measurements in `root` that write small files, and a list of what was run."""

    def __init__(self, root: Path) -> None:
        self.root, self.ran, self.fail = root, list[str](), ""

    def step(self, name: str, project: str, *needs: Step, scrap: tuple[Path, ...] = ()) -> Step:
        made = self.root / project / f"{name}.bin"

        def run() -> None:
            self.note(name)
            made.parent.mkdir(parents=True, exist_ok=True)
            assert all(path.exists() for need in needs for path in need.made), f"{name} lacks what it needs"
            made.write_bytes(b"x" * 10)

        return Step(name, self.root / project, (made,), run, needs, scrap)

    def measurement(self, name: str, *needs: Step, key: str = "k") -> Measurement:
        def run() -> dict[str, Any]:
            self.note(name)
            assert all(path.exists() for need in needs for path in need.made)
            return {"name": name}

        return Measurement(name, self.root / "records" / f"{name}.json", key, run, needs)

    def note(self, name: str) -> None:
        if name == self.fail:
            raise Stopped(15)
        self.ran.append(name)


def chain(work: Work, key: str = "k") -> list[Measurement]:
    train = work.step("train", "a")
    merge = work.step("merge", "b", train)
    convert = work.step("convert", "b", merge)
    levels = [work.step(f"level {name}", "b", convert) for name in "pq"]
    return [work.measurement(f"measure {name}", level, train, key=key) for name, level in zip("pq", levels, strict=True)]


def test_steps_run_once_in_order_and_leave_only_figures(tmp_path: Path) -> None:
    work, heard = Work(tmp_path), list[str]()
    figures = measure_all(chain(work), heard.append)
    assert work.ran == ["train", "merge", "convert", "level p", "measure p", "level q", "measure q"]
    assert [one["name"] for one in figures] == ["measure p", "measure q"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["records"]
    assert heard[0] == "train; 7 to go"
    assert heard[-1] == "measure q; 1 to go"


@pytest.mark.parametrize("at", ["train", "merge", "convert", "level p", "measure p", "level q", "measure q"])
def test_a_killed_run_goes_on_and_does_nothing_twice(tmp_path: Path, at: str) -> None:
    work = Work(tmp_path)
    work.fail = at
    with pytest.raises(Stopped):
        measure_all(chain(work), print)
    work.fail = ""
    assert len(measure_all(chain(work), print)) == 2
    assert work.ran == ["train", "merge", "convert", "level p", "measure p", "level q", "measure q"]


def test_what_nothing_needs_any_more_is_gone_before_the_next_step(tmp_path: Path) -> None:
    work = Work(tmp_path)
    measurements = chain(work)
    work.fail = "level q"
    with pytest.raises(Stopped):
        measure_all(measurements, print)
    left = {path.name for path in tmp_path.rglob("*.bin")}
    assert left == {"train.bin", "convert.bin"}  # the level that was measured is gone, and the merge since it was converted
    assert {step.name for step in needed(measurements[1:])} == {"train", "convert", "level q"}
    merge = measurements[0].needs[0].needs[0].needs[0]
    assert merge.bytes_of(merge.made[0]) == 10  # its size is known still


def test_figures_of_other_settings_are_measured_anew(tmp_path: Path) -> None:
    work = Work(tmp_path)
    measure_all(chain(work), print)
    assert measure_all(chain(work), print)
    assert len(work.ran) == 7
    measure_all(chain(work, key="other"), print)
    assert len(work.ran) == 14
    (tmp_path / "records/measure p.json").write_text("{")
    measure_all(chain(work, key="other"), print)
    assert work.ran[14:] == ["train", "merge", "convert", "level p", "measure p"]


def test_a_step_of_another_key_is_done_anew_and_what_it_needs_is_not(tmp_path: Path) -> None:
    """As the reference is when the code that measures is other code."""
    work = Work(tmp_path)

    def asked(key: str) -> list[Measurement]:
        train = work.step("train", "a")
        return [work.measurement("measure", replace(work.step("reference", "a", train), key=key), train, key=key)]

    for key in ("one", "other"):
        work.fail = "measure"
        with pytest.raises(Stopped):
            measure_all(asked(key), print)
    assert work.ran == ["train", "reference", "reference"]
    asked("other")[0].needs[0].mark.write_text("{")
    work.fail = ""
    measure_all(asked("other"), print)
    assert work.ran == ["train", "reference", "reference", "reference", "measure"]


def test_a_model_folder_is_as_large_as_its_weights(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"x" * 7)
    (tmp_path / "tokenizer.json").write_bytes(b"x" * 100)
    assert size_of(tmp_path) == 7


# ---- sub-projects and their processes


def test_a_sub_project_of_other_inputs_is_emptied_and_one_of_the_same_is_kept(tiny_root: Path) -> None:
    params, folder = load_params(tiny_root / "params.yaml"), tiny_root / "models/.compare/NF4-1"
    links = {"data/raw": tiny_root / "data/raw"}
    open_project(folder, params, {"train": {"seed": 1}}, links, "k")
    (folder / "mine").touch()
    open_project(folder, params, {"train": {"seed": 1}}, links, "k")
    assert (folder / "mine").exists()
    assert (folder / "data/raw/chats.jsonl").is_file()
    assert not list(folder.rglob("*.dvc"))
    assert not (folder / "dvc.yaml").exists()
    assert load_params(folder / "params.yaml").train.seed == 1
    open_project(folder, params, {"train": {"seed": 1}}, links, "other")
    assert not (folder / "mine").exists()
    assert (folder / KEY).read_text() == "other"
    assert (tiny_root / "data/raw/chats.jsonl").is_file()  # a link was removed, not what it leads to


def test_a_copied_project_works_on_its_own_files(tiny_root: Path, tmp_path: Path) -> None:
    for number, root in enumerate((tiny_root, tmp_path / "copy")):
        if number:
            shutil.copytree(tiny_root, root, symlinks=True)
        folder = root / "models/.compare/NF4-1"
        open_project(folder, load_params(root / "params.yaml"), {}, {"data/raw": root / "data/raw"}, "k")
        (folder / "mine").touch(exist_ok=bool(number))  # what was trained is kept
    assert (folder / "data/raw").resolve() == root / "data/raw"
    assert (tiny_root / "models/.compare/NF4-1/data/raw").resolve() == tiny_root / "data/raw"


def test_all_code_that_figures_depend_on_is_in_their_keys() -> None:
    """What is trained depends on the stages that compare starts, and a figure on all that measures, processes of their own included."""
    package = Package()
    measuring = package.closure(plan.__name__)
    assert {"stages/compare/measuring.py", "stages/compare/reference.py", "metrics/scorers.py", "llamacpp/server.py"} <= measuring
    training = package.closure(*training_modules())
    trains = {"stages/train/stage.py", "stages/train/run.py", "stages/compare/projects.py"}
    assert (trains | {"stages/compare/plan.py"}) - training == {"stages/compare/plan.py"}


def test_a_sub_project_is_this_project_but_for_what_it_must_be(tiny_params: dict[str, Any]) -> None:
    tiny_params["merge"]["base"], tiny_params["quantize"]["levels"] = "auto", ["Q4_K_M", "Q5_K_M", "base-Q4_K_M"]
    values = sub_params(Params.model_validate(with_compare(tiny_params, seeds=[1], levels=["Q4_0"])), {"train": {"seed": 9}})
    assert values["train"] == tiny_params["train"] | {"seed": 9, "sample_rows": 0}
    assert (values["quantize"]["levels"], values["merge"]["base"], values["compare"]["seeds"]) == (["Q4_0"], "w16", [])
    assert values["curate"] == tiny_params["curate"]


def test_a_stage_that_fails_ends_compare_with_its_exit_status(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(REUSE, "1")
    seen = {}

    class Process:
        def __init__(self, command: list[str], env: dict[str, str], **others: Any) -> None:
            seen.update(command=command, env=env, **others)

        def wait(self) -> int:
            return 5

    monkeypatch.setattr(child.subprocess, "Popen", Process)
    with pytest.raises(GateError, match=r"train in NF4-1 failed \(exit status 5; its reason stands above\)"):
        child.run_stage(tmp_path / "NF4-1", "train")
    assert REUSE not in seen["env"]  # nothing of a sub-project is in DVC's cache
    assert seen["command"][4:10] == [str(os.getpid()), str(int(signal.SIGTERM)), sys.executable, "-m", "pipeline", "train"]
    assert seen["start_new_session"]  # else Ctrl-C reaches it beside our own signal, and the second ends it without a checkpoint


def test_a_real_stage_is_run_and_its_own_error_class_comes_back(
    tiny_params: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tiny_params["base"]["model"] = str(tmp_path / "nowhere")
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(tiny_params))
    with pytest.raises(DataError, match=r"base in .* failed \(exit status 3; its reason stands above\)"):
        child.run_stage(tmp_path, "base")
    assert "nowhere is no folder" in capfd.readouterr().err


def test_ctrl_c_ends_what_a_stage_started_as_well(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = tmp_path / "pid"

    class Interrupted(subprocess.Popen[bytes]):
        def wait(self, timeout: float | None = None) -> int:
            if not told.exists():
                while not told.exists():
                    time.sleep(0.05)
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr(child.subprocess, "Popen", Interrupted)
    tool = f"import subprocess; one = subprocess.Popen(['sleep', '600']); open({str(tmp_path / 'new')!r}, 'w').write(str(one.pid)); "
    tool += f"import os; os.rename({str(tmp_path / 'new')!r}, {str(told)!r}); one.wait()"
    with pytest.raises(KeyboardInterrupt):
        child.run_module("timeit", "-n", "1", "-r", "1", tool, what="a stage")
    process, end = Path("/proc") / told.read_text(), time.monotonic() + 30
    while process.exists() and (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < end, "what the stage had started runs on"
        time.sleep(0.05)


def test_keys_and_sub_projects_know_the_type_that_auto_means_here(tiny_params: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_params["train"]["bnb_4bit_compute_dtype"] = "auto"
    params = Params.model_validate(tiny_params)
    for multiplies, dtype in ((True, "bfloat16"), (False, "float32")):
        monkeypatch.setattr("pipeline.core.cpu.multiplies_bfloat16", lambda found=multiplies: found)
        monkeypatch.setattr("pipeline.config.params.training_device", lambda: "cpu")
        chosen = decided(params)
        assert chosen.train.bnb_4bit_compute_dtype == dtype
        assert sub_params(chosen, {})["train"]["bnb_4bit_compute_dtype"] == dtype


def test_an_orphan_does_not_start() -> None:
    with pytest.raises(SystemExit, match="is gone"):
        become(1 << 22, signal.SIGTERM, ["python"])


# ---- the stage


def set_params(root: Path, **changed: Any) -> Params:
    params = with_compare(yaml.safe_load((root / "params.yaml").read_text()), **changed)
    (root / "params.yaml").write_text(yaml.safe_dump(params))
    return load_params(root / "params.yaml")


def test_without_seeds_nothing_is_measured(tiny_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tiny_root / "models/.compare/NF4-1").mkdir(parents=True)  # an unfinished run's
    main(load_params(tiny_root / "params.yaml"), tiny_root)
    assert json.loads((tiny_root / "reports/ways.json").read_text()) == {"seeds": []}
    assert "not measured" in capsys.readouterr().out
    assert not (tiny_root / "models/.compare/NF4-1").exists()


def test_what_is_missing_is_named_with_its_stage(tiny_root: Path) -> None:
    with pytest.raises(DataError, match=r"models/base/config\.json is missing: run `python -m pipeline base`"):
        main(set_params(tiny_root, seeds=[1]), tiny_root)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"compare": {"seeds": [1, 1]}}, "names a seed twice"),
        ({"compare": {"levels": ["Q4_K_M-imatrix"]}}, "leave -imatrix out"),
        ({"compare": {"seeds": [1]}, "evaluate": {"scorers": []}}, "name a scorer"),
        ({"compare": {"seeds": [1]}, "base": {"source": "gguf", "model": "a.gguf", "quantization": "gguf"}, "evaluate": {"models": ["adapter"]}},
         "where the 16-bit base is"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(tiny_params: dict[str, Any], tmp_path: Path, changes: dict[str, Any], words: str) -> None:
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


def test_a_disk_that_is_too_small_is_refused_before_anything_runs(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(ready)
    monkeypatch.setattr("pipeline.core.publish.shutil.disk_usage", lambda _: usage._replace(free=1_000_000))
    monkeypatch.setattr(plan, "run_stage", lambda *_: pytest.fail("a stage was run"))
    with pytest.raises(MachineError, match=r"models/\.compare needs [\d.]+ [MG]B and its disk has 1\.0 MB free"):
        main(set_params(ready, seeds=[1]), ready)


def test_other_code_to_measure_with_measures_anew_and_trains_nothing(ready: Path, tools: Toolchain, monkeypatch: pytest.MonkeyPatch) -> None:
    params = set_params(ready, seeds=[1], levels=["Q4_K_M"], rows=2)

    def keys(changed: tuple[str, ...] | None) -> tuple[str, list[str], list[str]]:
        for module in (projects, plan):
            monkeypatch.setattr(module, "code_hash", lambda *modules: f"{modules}{'!' if modules == changed else ''}")
        made = plan.Plan(ready, params, [], tools)
        return (
            made.training_key,
            [one.key for one in made.measurements()],
            [step.key for one in made.measurements() for step in one.needs if step.key],
        )

    (trained, measured, asked), (again, anew, asked_anew) = keys(None), keys((plan.__name__,))
    assert trained == again
    assert not set(measured) & set(anew) and not set(asked) & set(asked_anew)
    trained_anew, anew, _ = keys(training_modules())
    assert trained_anew != trained and not set(measured) & set(anew)


@pytest.mark.parametrize(
    ("level", "types", "words"),
    [
        ("TQ1_0", {}, r"compare\.levels has TQ1_0, whose type TQ1_0 can't be trained on"),
        ("Q1_0", {}, "whose type Q1_0"),
        ("IQ3_M", {}, "whose type IQ3_S"),
        ("Q4_K_M", {"attn_v": "tq2_0"}, r"quantize\.tensor_types\.attn_v asks for tq2_0"),
    ],
)
def test_a_level_that_cannot_be_trained_on_is_refused_before_anything_runs(
    ready: Path, monkeypatch: pytest.MonkeyPatch, level: str, types: dict[str, str], words: str
) -> None:
    monkeypatch.setattr(plan, "run_stage", lambda *_: pytest.fail("a stage was run"))
    monkeypatch.setattr("pipeline.stages.compare.stage.need_disk", lambda *_: pytest.fail("disk was asked for"))
    params = set_params(ready, seeds=[1], levels=["Q4_K_M", level] if level != "Q4_K_M" else [level])
    with pytest.raises(ConfigError, match=words):
        main(params.model_copy(update={"quantize": params.quantize.model_copy(update={"tensor_types": types})}), ready)
    assert not (ready / "models/.compare/NF4-1").exists()


@pytest.mark.parametrize(("odd", "words"), [("rope", "scaled rotary positions"), ("gemma", "for gemma, only")])
def test_a_base_that_cannot_be_trained_on_as_a_gguf_is_refused_before_anything_runs(
    ready: Path, monkeypatch: pytest.MonkeyPatch, odd: str, words: str
) -> None:
    monkeypatch.setattr(plan, "run_stage", lambda *_: pytest.fail("a stage was run"))
    file = ready / "models/gguf/tiny-base-F16.gguf"
    if odd == "rope":
        tiny.tiny_gguf(file, tensors={"rope_freqs.weight": np.ones(4, np.float32)})
    else:
        header = checked_header(file)
        changed = replace(header, fields=header.fields | {"general.architecture": odd})
        monkeypatch.setattr("pipeline.stages.compare.stage.checked_header", lambda _, changed=changed: changed)
    with pytest.raises(ConfigError, match=rf"the ways to ship can't be compared.*{words}.*compare\.seeds to \[\]"):
        main(set_params(ready, seeds=[1], levels=["Q4_K_M"]), ready)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_way_is_measured_over_two_seeds_and_a_killed_run_goes_on(
    ready: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, small in {"TIMED": 1, "PROMPT": 16, "TOKENS": 8}.items():
        monkeypatch.setattr(f"pipeline.stages.compare.measuring.{name}", small)
    monkeypatch.setattr(plan, "KLD_ROWS", 2)
    ran: list[tuple[str, str]] = []
    real: Callable[..., None] = plan.run_stage

    def counted(root: Path, *words: str) -> None:
        if len(ran) == stop_at:
            raise Stopped(15)
        if words == ("preprocess",):
            real(root, *words)
        else:  # in this process, which has imported torch
            assert run_here([*words, "--root", str(root)]) == 0
        ran.append((root.name, words[0]))

    monkeypatch.setattr(plan, "run_stage", counted)
    monkeypatch.setattr(plan, "run_module", lambda module, *words, what: reference.main(list(words)))
    for module in (projects, plan):
        monkeypatch.setattr(module, "code_hash", lambda *_: "")  # someone may be editing
    params = set_params(ready, seeds=[1, 2], levels=["Q4_K_M"], rows=2)
    before = {path for path in ready.rglob("*") if ".compare" not in path.parts}
    for stop_at in (3, 6, 10, 1000):
        if stop_at < 1000:
            with pytest.raises(Stopped):
                main(params, ready)
        else:
            main(params, ready)
    expected = [("Q4_K_M", "base"), ("Q4_K_M", "preprocess")]
    for seed in (1, 2):
        expected += [(f"NF4-{seed}", "train"), (f"Q4_K_M-{seed}", "train"), (f"Q4_K_M-{seed}", "lora")]
        expected += [(f"{name}-{seed}", stage) for name in ("W16", "NF4M") for stage in ("merge", "convert", "quantize@Q4_K_M")]
    assert sorted(ran) == sorted(expected)  # each once
    found = json.loads((ready / "reports/ways.json").read_text())
    level = found["levels"]["Q4_K_M"]
    assert list(level["ways"]) == sorted(WAYS)
    for way, figures in level["ways"].items():
        assert [one["seed"] for one in figures["by_seed"]] == [1, 2]
        assert 0 <= figures["kld"] < 0.1, way  # two steps of training: what is shipped says what the trained model says
        assert (figures["tok_s_bare"] is None) == (way in (MERGED_16, MERGED_NF4))
        assert figures["disk_bytes"] > figures["bytes"] or way == LORA_LEVEL
    assert level["ways"][LORA_LEVEL]["disk_bytes"] < level["ways"][LORA_NF4]["disk_bytes"] < level["ways"][MERGED_16]["disk_bytes"]
    assert level["recommended"] == LORA_LEVEL and not level["decided"]  # a random model scores nothing, so disk decides
    assert level["sentence"] in capsys.readouterr().out
    assert found["reference"]["level"] == "F16"
    # nothing of it stays but figures, and nothing was recorded or left elsewhere
    assert [path.name for path in (ready / "models/.compare").iterdir()] == ["records"]
    after = {path for path in ready.rglob("*") if ".compare" not in path.parts}
    assert after - before == {ready / "reports/ways.json"}
    main(params, ready)
    assert len(ran) == len(expected)  # all figures were there
    assert {stage.partition("@")[0] for _, stage in ran} == set(table().stages["compare"].starts)  # whose code is in compare's key


def test_one_more_seed_costs_one_seed(ready: Path, tools: Toolchain) -> None:
    """Figures are kept by way, level and seed, under a key that knows of no other seed."""
    first = plan.Plan(ready, set_params(ready, seeds=[1], levels=["Q4_K_M"], rows=4), [], tools)
    second = plan.Plan(ready, set_params(ready, seeds=[1, 2]), [], tools)
    keys = {one.record.name: one.key for one in second.measurements()}
    assert all(keys[one.record.name] == one.key for one in first.measurements())
    assert len(keys) == 10
