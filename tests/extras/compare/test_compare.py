"""compare: jobs train and measure, each in a sub-project of its own, and killed jobs resume."""

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import yaml
from killed import kill_at
from make import until
from subproject_stages import first_project, in_this_process, no_stage_runs, run_stages

from pipeline.__main__ import main as run_here
from pipeline.config.params import Params, load_params
from pipeline.config.strategies import (
    MERGED_16,
    STRATEGIES,
    Job,
)
from pipeline.core.child import become
from pipeline.core.errors import ConfigError, DataError, GateError, MachineError, QuenchError
from pipeline.core.hashing import tree_hash
from pipeline.extras.compare import made, projects
from pipeline.gguf.patch import write_patch
from pipeline.llamacpp.tools import Toolchain
from pipeline.models.base_header import checked_header
from pipeline.subprojects.processes import run_module, run_stage, size_of
from pipeline.workflow.keys.imports import Package
from pipeline.workflow.stages import code_of_stages, items_of, rules, table, values_of

JOBS = ("compare_nf4", "compare_train", "compare_unquantized", "compare_measure")
ON_NF4 = (MERGED_16, "merged_nf4", "lora_nf4")


def seen(root: Path, job: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The job's sub-project, as it is when its first stage would run."""
    return first_project(monkeypatch, lambda: run_here([job, "--root", str(root)]))


def with_compare(params: dict[str, Any], **changed: Any) -> dict[str, Any]:
    return params | {"compare": params["compare"] | changed}


# ---- sub-projects and their processes


def test_a_model_folder_is_as_large_as_its_weights(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"x" * 7)
    (tmp_path / "tokenizer.json").write_bytes(b"x" * 100)
    assert size_of(tmp_path) == 7


def test_a_sub_project_is_this_project_but_for_what_it_must_be_and_keeps_what_a_killed_job_left(
    ready: Path, tiny_params: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_params(ready, "merge", base="auto")
    set_params(ready, "quantize", levels=["Q4_K_M", "Q5_K_M", "base-Q4_K_M"])
    set_params(ready, seeds=[9], levels=["Q4_0"])
    folder = seen(ready, "compare_nf4@9", monkeypatch)
    (folder / "models/checkpoints").mkdir(parents=True)
    assert seen(ready, "compare_nf4@9", monkeypatch) == folder
    assert folder == ready / "models/.compare/nf4-9"
    assert (folder / "models/checkpoints").exists()
    assert not list(folder.rglob("*.dvc")) and not (folder / "dvc.yaml").exists()
    values = load_params(folder / "params.yaml").model_dump(mode="json")
    assert values["train"] == tiny_params["train"] | {"seed": 9, "sample_rows": 0}
    kept = (values["quantize"]["levels"], values["merge"]["base"], values["compare"]["seeds"])
    assert kept == (["Q4_0"], "16-bit", [])
    assert values["curate"] == tiny_params["curate"]


def test_a_measurement_merges_as_its_strategy_says(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_params(ready, seeds=[7], levels=["Q4_K_M"])
    trained = ready / "models/compare/nf4-7"
    (trained / "adapter").mkdir(parents=True)
    (trained / "train.json").write_text("{}")
    for strategy, base in ((MERGED_16, "16-bit"), ("merged_nf4", "nf4")):
        folder = seen(ready, f"compare_measure@{strategy}-Q4_K_M-7", monkeypatch)
        assert load_params(folder / "params.yaml").merge.base == base


def test_a_copied_project_works_on_its_own_files(
    ready: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_params(ready, seeds=[1])
    first = seen(ready, "compare_nf4@1", monkeypatch)
    copy = Path(shutil.copytree(ready, tmp_path / "copy", symlinks=True))
    for root, folder in ((copy, seen(copy, "compare_nf4@1", monkeypatch)), (ready, first)):
        assert (folder / "data/tokens").resolve() == root / "data/tokens"


def test_all_code_that_a_job_runs_is_in_its_key() -> None:
    """Check that the key of a training covers the stages that the job starts, and the key of a figure all
    code that measures, also in processes of its own.
    """
    package, modules = Package(), code_of_stages()
    measuring, on_nf4, training = (
        package.closure(*modules[stage]) for stage in ("compare_measure", "compare_nf4", "compare_train")
    )
    compare = "extras/compare"
    assert {f"{compare}/reference.py", "metrics/scorers.py", "stages/merge/stage.py"} <= {*measuring}
    assert {"stages/train/stage.py", "subprojects/processes.py"} <= {*on_nf4} & {*training}
    # other code to measure with trains nothing again
    assert not {f"{compare}/measure.py", f"{compare}/reference.py"} & {*on_nf4, *training}


def test_every_strategy_is_trained_and_made_and_can_be_asked_for() -> None:
    names = list(STRATEGIES)
    assert Params.model_validate({"compare": {"strategies": names}}).compare.strategies == names
    assert {name for name in names if Job(name, "Q4_0", 1).training == "nf4-1"} == {*ON_NF4}


# a project's base that is found by its hash, wherever it is
OTHER_FILE = {"model": "a/b-GGUF", "revision": "0" * 40, "file": "b.gguf", "sha256": "0" * 64}


def test_scales_are_trained_at_a_rate_of_their_own(
    ready: Path, tools: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_params(ready, "base", **OTHER_FILE, places=[{"path": "b.gguf"}])
    set_params(ready, seeds=[1], levels=["Q4_0"])
    values = load_params(seen(ready, "compare_train@scales_level-Q4_0-1", monkeypatch) / "params.yaml")
    assert (values.train.tuner, values.train.learning_rate) == ("scales", 5e-3)
    base = values.base
    assert (base.gguf_name, base.sha256, base.places) == (base.model, None, [])


def python(code: str) -> None:
    """A process of a job that runs this."""
    run_module("timeit", "-n", "1", "-r", "1", code, what="train in nf4-1")


def test_a_process_of_a_job_has_a_session_of_its_own_and_ends_the_job_with_its_exit_status(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("QUENCH_REUSE", "1")
    # else Ctrl-C reaches it beside our own signal, and the second ends it without a checkpoint; nothing of a
    # sub-project is in DVC's cache
    python("import os; assert os.getsid(0) == os.getpid() and 'QUENCH_REUSE' not in os.environ")
    with pytest.raises(GateError, match=r"Q-COMPARE-007.*status 5"):
        python("import os; os._exit(5)")


def test_a_real_stage_is_run_and_its_own_error_class_comes_back(
    tiny_params: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tiny_params["base"]["model"] = str(tmp_path / "nowhere")
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(tiny_params))
    with pytest.raises(DataError, match="Q-COMPARE-007"):
        run_stage(tmp_path, "base")
    assert "nowhere" in capfd.readouterr().err


def test_ctrl_c_ends_what_a_stage_started_as_well(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    output = tmp_path / "pid"

    class Interrupted(subprocess.Popen[bytes]):
        def wait(self, timeout: float | None = None) -> int:
            if not output.exists():
                until(output.exists)
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr("pipeline.subprojects.processes.subprocess.Popen", Interrupted)
    tool = (
        f"import subprocess; one = subprocess.Popen(['sleep', '600']); open({str(tmp_path / 'new')!r}, "
        "'w').write(str(one.pid)); "
    )
    tool += f"import os; os.rename({str(tmp_path / 'new')!r}, {str(output)!r}); one.wait()"
    with pytest.raises(KeyboardInterrupt):
        run_module("timeit", "-n", "1", "-r", "1", tool, what="a stage")
    until(lambda: has_ended(output.read_text()))


def has_ended(pid: str) -> bool:
    """Return True if there is no such process, or if only its exit status is left."""
    process = Path("/proc") / pid
    return not process.exists() or (process / "stat").read_text().rpartition(")")[2].split()[0] == "Z"


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
    until(output.exists)
    job.kill()
    job.wait()
    until(lambda: has_ended(output.read_text()))
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


def test_without_seeds_there_is_no_such_stage(tiny_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here(["compare", "--root", str(tiny_root)]) == ConfigError.exit_code
    assert "Q-WORKFLOW-021" in capsys.readouterr().err


def refused(root: Path, job: str, error: type[QuenchError], capsys: pytest.CaptureFixture[str]) -> str:
    """Check that the job ends with this error's exit code, and return what it says before."""
    capsys.readouterr()
    assert run_here([job, "--root", str(root)]) == error.exit_code
    return capsys.readouterr().err


def test_what_is_missing_is_named_with_what_makes_it(ready: Path, capsys: pytest.CaptureFixture[str]) -> None:
    set_params(ready, seeds=[1])
    said = refused(ready, "compare", DataError, capsys)
    assert "Q-CORE-001" in said and "compare_unquantized@1`" in said
    shutil.rmtree(ready / "data/tokens")
    assert "Q-CORE-001" in refused(ready, "compare_nf4@1", DataError, capsys)


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
    assert "Q-COMPARE-001" in refused(ready, job, ConfigError, capsys)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"compare": {"strategies": ["best"]}}, "is 'best', input should be 'merged_16'"),
        ({"compare": {"strategies": {"nf4": [MERGED_16]}}}, "input should be a valid list"),
        (
            {"compare": {"seeds": [1], "strategies": ["scales_level"]}},
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
    ready: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usage = shutil.disk_usage(ready)
    monkeypatch.setattr("pipeline.core.publish.shutil.disk_usage", lambda _: usage._replace(free=1_000_000))
    no_stage_runs(monkeypatch)
    set_params(ready, seeds=[1])
    said = refused(ready, "compare_nf4@1", MachineError, capsys)
    assert re.search(r"models/\.compare needs [\d.]+ [MG]B .*1\.0 MB free", said)


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
    ready: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    level: str,
    types: dict[str, str],
    words: str,
) -> None:
    no_stage_runs(monkeypatch)
    monkeypatch.setattr(
        "pipeline.extras.compare.projects.need_disk", lambda *_: pytest.fail("disk was asked for")
    )
    set_params(ready, "quantize", tensor_types=types)
    set_params(ready, seeds=[1], levels=sorted({"Q4_K_M", level}))
    said = refused(ready, "compare_nf4@1", ConfigError, capsys)
    assert "Q-COMPARE-003" in said and words in said
    assert not (ready / "models/.compare/nf4-1").exists()


@pytest.mark.parametrize(
    ("odd", "words"), [("rope", "scaled rotary positions"), ("gemma", "for gemma, only")]
)
def test_a_base_that_cannot_be_trained_on_as_a_gguf_is_refused_before_anything_runs(
    ready: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], odd: str, words: str
) -> None:
    no_stage_runs(monkeypatch)
    file = ready / "models/gguf/tiny-base-F16.gguf"
    if odd == "rope":
        tiny.tiny_gguf(file, tensors={"rope_freqs.weight": np.ones(4, np.float32)})
    else:
        header = checked_header(file)
        changed = replace(header, fields=header.fields | {"general.architecture": odd})
        monkeypatch.setattr(
            "pipeline.extras.compare.projects.checked_header", lambda _, changed=changed: changed
        )
    set_params(ready, seeds=[1], levels=["Q4_K_M"])
    said = refused(ready, "compare_nf4@1", ConfigError, capsys)
    assert "Q-COMPARE-002" in said and words in said


@pytest.mark.parametrize("job", ["compare_nf4@1", "compare_train@lora_level-Q4_K_M-1"])
def test_a_project_of_texts_is_refused_before_anything_runs(
    job: str, ready: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    no_stage_runs(monkeypatch)
    text = {"id": "a", "source": "a.txt:1", "domain": "d", "kind": "text", "messages": [], "text": "Anna."}
    (ready / "data/final/test.jsonl").write_text(f"{json.dumps(text)}\n")
    set_params(ready, seeds=[1], levels=["Q4_K_M"], strategies=["merged_16", "lora_level"])
    said = refused(ready, job, DataError, capsys)
    assert "Q-COMPARE-010" in said and "all are texts" in said and "compare.seeds" in said
    assert not list((ready / "models/.compare").glob("*/params.yaml"))


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
    usual = "|".join((*ON_NF4, "lora_level", "scales_level"))
    assert made["compare_train"] == {"strategy": usual, "level": "Q4_K_M", "seed": "1"}
    asked = with_jobs([1], "Q4_K_M"), with_jobs([1, 2], "Q4_K_M"), with_jobs([1], "Q4_K_M", "Q6_K")
    one, seeds, levels = (set(jobs_of(params, *JOBS)) for params in asked)
    assert len(one) == 12 and one < seeds and one < levels
    assert all(job.endswith(("@2", "-2")) for job in seeds - one) and len(seeds - one) == 12
    assert all("Q6_K" in job for job in levels - one) and len(levels - one) == 10


def test_only_what_is_asked_for_is_trained(tiny_params: dict[str, Any]) -> None:
    """A strategy that nobody asks for is no job, and a job depends on its own training alone."""
    asked = [MERGED_16, "scales_level", "merged_distilled"]
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
    set_params(ready, seeds=[1], levels=["Q4_0"])
    for name in ON_NF4:
        assert run_here([f"compare_train@{name}-Q4_0-1", "--root", str(ready)]) == 0
        folder = ready / f"models/compare/{name}-Q4_0-1"
        assert json.loads((folder / "training.json").read_text()) == {"training": "nf4-1"}


def test_checkpoints_of_other_inputs_are_not_gone_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job was killed and its rows or settings changed: nobody else can need what it left."""
    project, asked = tmp_path / "nf4-1", list[tuple[str, ...]]()

    def refuses(module: str, *words: str, what: str) -> None:
        root = Path(words[words.index("--root") + 1])
        words = words[: words.index("--root")]
        asked.append(words)
        if "--no-resume" not in words:
            raise ConfigError("Q-COMPARE-007", "train in nf4-1 failed")
        for file in (root / "models/adapter/adapter_config.json", root / "reports/train.json"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("{}")

    run_stages(monkeypatch, refuses)
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
        made.make_on_level(params, ready, Job("lora_level", "Q4_K_M", 1))


@pytest.mark.parametrize("name", ["scales_level", "merged_distilled"])
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


TRAINING_STEP = "pipeline.stages.train.loop:Trainer.micro_batch"


def run_small(patch: pytest.MonkeyPatch, run: Callable[..., None] = in_this_process) -> None:
    """Jobs measure little, and their stages are run by `run`."""
    for name, small in {"TIMED": 1, "PROMPT": 16, "TOKENS": 8}.items():
        patch.setattr(f"pipeline.extras.compare.measure.{name}", small)
    patch.setattr("pipeline.extras.compare.reference.KLD_ROWS", 2)
    run_stages(patch, run)


def do_job(root: Path, job: str) -> None:
    """A job in a process that begins with nothing patched."""
    run_small(pytest.MonkeyPatch())
    assert run_here([job, "--root", str(root)]) == 0


@pytest.mark.slow
def test_a_job_that_was_killed_in_its_training_ends_in_the_same_bytes(
    ready: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_small(monkeypatch)
    set_params(ready, seeds=[1], levels=["Q4_0"])
    whole = Path(shutil.copytree(ready, tmp_path / "whole", symlinks=True))
    assert run_here(["compare_nf4@1", "--root", str(whole)]) == 0
    kill_at(TRAINING_STEP, 2, do_job, ready, "compare_nf4@1")
    assert (ready / "models/.compare/nf4-1/models/checkpoints/checkpoint-1").is_dir()
    assert not (ready / "models/compare/nf4-1").exists()
    assert run_here(["compare_nf4@1", "--root", str(ready)]) == 0
    assert tree_hash(ready / "models/compare/nf4-1/adapter") == tree_hash(
        whole / "models/compare/nf4-1/adapter"
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_strategy_is_measured_and_a_killed_job_goes_on(
    ready: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[tuple[str, str]] = []
    real: Callable[..., None] = run_module

    def counted(module: str, *words: str, what: str) -> None:
        run = real if words[0] == "preprocess" else in_this_process
        run(module, *words, what=what)
        if module == "pipeline":
            ran.append((Path(words[words.index("--root") + 1]).name, words[0]))

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
    assert run_here(["compare", "--root", str(ready)]) == 0
    found = json.loads((ready / "reports/strategies.json").read_text())
    at_level = found["levels"]["Q4_0"]
    assert list(at_level["strategies"]) == sorted(STRATEGIES)
    for strategy, figures in at_level["strategies"].items():
        assert [one["seed"] for one in figures["by_seed"]] == [1]
        # two steps of training: what is shipped says what the trained model says
        assert 0 <= figures["kld"] < 0.1, strategy
        if figures["tok_s"] is not None:  # other tests beside this one disturb speeds
            assert (figures["tok_s_bare"] is None) == (strategy not in ("lora_nf4", "lora_level"))
        assert figures["general"]["rows"] == found["untuned_general"]["rows"] == 3
        assert figures["general_change"].keys() > {"points", "low", "high", "measurable"}
        assert figures["disk_bytes"] > figures["bytes"] or strategy == "lora_level"
    assert (
        at_level["strategies"]["lora_level"]["disk_bytes"]
        < at_level["strategies"]["lora_nf4"]["disk_bytes"]
        < at_level["strategies"][MERGED_16]["disk_bytes"]
        < at_level["strategies"]["merged_distilled"]["disk_bytes"]
    )
    distilled = at_level["strategies"]["merged_distilled"]["by_seed"][0]["training"]["parts"]
    assert set(distilled) == {"nf4-1", "merged_distilled-Q4_0-1"}
    trained = json.loads((ready / "models/compare/distilled_scales-Q4_0-1/train.json").read_text())
    learned = trained["distillation"]["rows"]
    assert learned["general"] == 6 and list(learned["data_distill"]["files"]) == ["more.json"]
    # a random model scores nothing, so speed and disk decide
    assert at_level["recommended"] in ("lora_level", "lora_nf4", "scales_level") and not at_level["decided"]
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
    set_params(ready, strategies=["scales_level", "merged_nf4"])
    assert run_here(["compare", "--root", str(ready)]) == 0
    found = json.loads((ready / "reports/strategies.json").read_text())
    assert set(found["levels"]["Q4_0"]["strategies"]) == {"merged_nf4", "scales_level"}
    assert len(list((ready / "models/compare").iterdir())) == 1 + len(STRATEGIES)
    started = {stage for _, stage in ran}
    # whose code is in the jobs' keys
    assert started == {one for job in JOBS for one in table().stages[job].starts}
