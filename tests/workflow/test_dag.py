"""Snakemake and DVC know the same graph, and each takes over where the other stopped.

The graphs are the project's own; the behaviors are shown on a toy project (`tests/toy`) whose runner,
Snakefile and settings use the real `record`, `settle` and `prepare`.
"""

import hashlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from forked import SERVER
from graph_settings import graph_text
from make import ended, ran, until
from toy_project import ALL, EMPTIES, Toy, git, lose
from user_project import BIN, nothing_to_do

from pipeline.config.params import Params, load_params
from pipeline.config.sections import Graph
from pipeline.core.errors import ConfigError
from pipeline.core.locks import stages_at_work
from pipeline.core.owner import RUN
from pipeline.core.places import PROJECT
from pipeline.workflow import accepted
from pipeline.workflow.dvc_yaml import dvc_text
from pipeline.workflow.keys.code_keys import CODE, SETTINGS
from pipeline.workflow.prepare import prepare
from pipeline.workflow.remote import SHELL
from pipeline.workflow.settle import reuse, settle
from pipeline.workflow.stages import optional, stages_in, table
from pipeline.workflow.state.dvc_project import place, share_record
from pipeline.workflow.state.lockfile import in_force, recorded_stages

QUENCH = BIN / "quench"
pytest_plugins = ("toy_fixtures",)
pytestmark = pytest.mark.usefixtures("toy_tools")

AFTER_TRAIN = ["merge", "quantize", "quantize", "report"]  # sorted by name, as the toy's plans are


# ---- the three real graphs


@dataclass(frozen=True)
class Stage:
    """One stage as a tool knows it; paths are relative to the project."""

    command: str
    inputs: frozenset[str]
    outputs: frozenset[str]


@pytest.fixture(scope="module", params=["demo", "demo, compared", "demo-gguf", "demo-scales"])
def recipe(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A params.yaml of each graph's recipe, of a recipe comparing strategies, of one distilling a level."""
    name, _, compared = request.param.partition(", ")
    file = tmp_path_factory.mktemp("recipe") / f"{name}.yaml"
    values = load_params(PROJECT / f"recipes/{name}.yaml").model_dump(mode="json")
    if compared:
        values["quantize"] |= {"distill": ["Q4_K_M"]}
        values["compare"] |= {"seeds": [42, 43], "levels": ["Q4_K_M", "Q6_K"]}
        values["compare"]["strategies"] += ["distilled_scales", "merged_distilled"]
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def graph(recipe: Path) -> Graph:
    """The graph that the recipe needs."""
    return load_params(recipe).graph


@pytest.fixture(scope="module")
def dvc_stages(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The stages of a real graph for DVC, by DVC's own loader."""
    from dvc.repo import Repo

    folder = tmp_path_factory.mktemp("dvc-graph")
    shutil.copy(recipe, folder / "params.yaml")
    (folder / "dvc.yaml").write_text(dvc_text(load_params(recipe)))
    Repo.init(str(folder), no_scm=True).close()
    with Repo(str(folder)) as repo:
        repo.index.check_graph()
        return {stage.name: stage for stage in repo.index.stages if stage.name not in (CODE, SETTINGS)}


@pytest.fixture(scope="module")
def dvc_graph(dvc_stages: dict[str, Any]) -> dict[str, Stage]:
    def paths(entries: Iterable[Any]) -> frozenset[str]:
        return frozenset(entry.def_path for entry in entries if not hasattr(entry, "params"))

    return {
        name: Stage(stage.cmd, paths(stage.deps), paths(stage.outs)) for name, stage in dvc_stages.items()
    }


@pytest.fixture(scope="module")
def snakemake_graph(
    recipe: Path, dvc_graph: dict[str, Stage], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Stage]:
    """The real Snakefile's jobs, by Snakemake's loader, in a folder of just its sources (empty files)."""
    from snakemake.api import DAGSettings, OutputSettings, ResourceSettings, SnakemakeApi
    from snakemake.shell import shell

    folder = tmp_path_factory.mktemp("snakemake-graph")
    shutil.copy(PROJECT / "Snakefile", folder)
    shutil.copytree(PROJECT / "graphs", folder / "graphs")
    shutil.copy(recipe, folder / "params.yaml")
    made = {path for stage in dvc_graph.values() for path in stage.outputs}
    for source in {path for stage in dvc_graph.values() for path in stage.inputs}:
        if source not in made and source not in FOLDERS:
            (folder / source).parent.mkdir(parents=True, exist_ok=True)
            (folder / source).touch() if "." in Path(source).name else (folder / source).mkdir(
                parents=True, exist_ok=True
            )
    (folder / "data/raw/a.jsonl").touch()
    # what the Snakefile tells its jobs is not for this process and the tests after it
    with pytest.MonkeyPatch.context() as patch, SnakemakeApi(OutputSettings(quiet=None)) as api:
        for name in ("QUENCH_REUSE", RUN):
            patch.setenv(name, "")
        workflow = api.workflow(
            resource_settings=ResourceSettings(cores=2), snakefile=folder / "Snakefile", workdir=folder
        )
        workflow.dag(DAGSettings(forceall=True)).printrulegraph()
        jobs = [job for job in workflow._workflow.dag.jobs if job.rule.name != "all"]
        assert workflow._workflow.default_target == "all"
        assert shell._process_prefix == SHELL  # the shell and `tee` outlive the signals that a stage gets
        return {_job_name(job): _job_stage(job) for job in jobs}


# no stage writes them as such, several write into them
EMPTY = {"data/augmented", "reports/compare", "reports/distill"}  # by default
FOLDERS = ("models/gguf", "reports/eval", *EMPTY)


def _job_name(job: Any) -> str:
    return "@".join([job.rule.name, *(["-".join(job.wildcards)] if job.wildcards else [])])


def _job_stage(job: Any) -> Stage:
    assert list(map(str, job.log)) == [f"logs/{_job_name(job).replace('@', '-')}.log"]
    command, tee, log = job.shellcmd.partition(" 2>&1 | tee ")
    assert tee and log == job.log[0]  # a stage's own sentence is seen and kept
    return Stage(command, frozenset(map(str, job.input)), frozenset(map(str, job.output)))


def _holds(folder: str, path: str) -> bool:
    return path == folder or path.startswith(folder + "/")


def _edges(graph: dict[str, Stage]) -> set[tuple[str, str]]:
    """(stage, stage that it follows); a folder as an input follows every stage that writes into it."""
    return {
        (name, other)
        for name, stage in graph.items()
        for other, before in graph.items()
        if any(
            _holds(path, output) or _holds(output, path) for path in stage.inputs for output in before.outputs
        )
    }


def test_dvc_yaml_is_what_the_table_of_stages_says() -> None:
    assert (PROJECT / "dvc.yaml").read_text() == graph_text("merged"), "run `quench config graph`"


def test_both_tools_know_the_same_stages(
    recipe: Path, dvc_graph: dict[str, Stage], snakemake_graph: dict[str, Stage]
) -> None:
    assert dvc_graph.keys() == snakemake_graph.keys()
    wanted = stages_in(load_params(recipe)).keys() - {"augment"}  # which has no job
    assert {name.partition("@")[0] for name in dvc_graph} == wanted
    for name, stage in dvc_graph.items():
        assert stage.command == snakemake_graph[name].command == f"python -m pipeline {name}"
        assert stage.outputs == snakemake_graph[name].outputs, name
        assert ("@" in name) == bool(table().stages[name.partition("@")[0]].each)


def test_both_tools_know_the_same_edges(
    dvc_graph: dict[str, Stage], snakemake_graph: dict[str, Stage]
) -> None:
    assert _edges(dvc_graph) == _edges(snakemake_graph)
    for name, stage in dvc_graph.items():
        theirs = snakemake_graph[name].inputs
        # DVC can't list one input per level, so it names the folder: every input is in both, file by file or
        # by its folder
        folders = {
            path for path in stage.inputs if any(_holds(path, other) and path != other for other in theirs)
        }
        assert folders <= {*FOLDERS}, name
        assert {
            path for path in theirs if not any(_holds(folder, path) for folder in folders)
        } == stage.inputs - folders - EMPTY, name


def _value(sections: dict[str, Any], key: str) -> Any:
    """Return the value at a key, "" for null; None if there is no such key."""
    found: Any = sections
    for part in key.split("."):
        if not isinstance(found, dict) or part not in found:
            return None
        found = found[part]
    return "" if found is None else found


def test_every_parameter_is_tracked(recipe: Path, dvc_stages: dict[str, Any]) -> None:
    text = dvc_text(load_params(recipe))
    sections = yaml.safe_load(recipe.read_text()) | {"derived": load_params(recipe).derived}
    in_graph = set(re.findall(r"\$\{(\w+\.\w+)\}", text))
    in_graph |= {when.setting for when in optional(load_params(recipe).graph).values()}
    for name in dvc_stages:
        # compare_nf4: what of `compare` it reads, is in its name
        stage = name.partition("@")[0].partition("_")[0]
        tracked = {key for dep in dvc_stages[name].deps if hasattr(dep, "params") for key in dep.params}
        if stage not in sections:
            assert stage in ("lora", "tuned") and not tracked  # They have no settings of their own.
            continue
        keys = {f"{stage}.{key}" for key in Params.model_fields[stage].annotation.model_fields}  # type: ignore[union-attr]
        assert sections[stage].keys() == {key.partition(".")[2] for key in keys}
        keys -= {"train.report_to"}  # Trackers only look at a training.
        assert "compare_" in name or stage in tracked or keys <= tracked | in_graph, (
            f"{name} doesn't track {keys - tracked - in_graph}"
        )
        unknown = {key for key in tracked if key not in sections and _value(sections, key) is None}
        assert not unknown, name


def test_a_stage_depends_on_the_keys_of_its_code_and_on_no_module(
    dvc_graph: dict[str, Stage], snakemake_graph: dict[str, Stage]
) -> None:
    for graph in (dvc_graph, snakemake_graph):
        for name, stage in graph.items():
            code = {path for path in stage.inputs if path.startswith(("pipeline/", ".quench/"))}
            mine = name.partition("@")[0]
            keys = [mine, *(f"train.{method}" for method in table().stages[mine].methods)]
            assert code == {f".quench/code/{key.replace('${train.method}', 'sft')}.key" for key in keys}, name


# ---- the toy: two tools, one project


@pytest.fixture
def whole_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages and DVC are started as users start them, for what kills and signals do to them."""
    monkeypatch.delenv(SERVER)


def test_after_snakemake_dvc_has_nothing_to_do(toy: Toy) -> None:
    """Behaviors 1 and 10."""
    assert sorted(toy.ran()) == sorted(ALL)
    assert toy.repro() == []
    toy.agree()


def test_after_dvc_snakemake_has_nothing_to_do(fresh_toy: Path, built_toy: Path, tmp_path: Path) -> None:
    """Behavior 2; both tools make the same bytes."""
    shutil.copytree(fresh_toy, tmp_path / "toy")
    toy = Toy(tmp_path / "toy")
    assert sorted(toy.repro()) == sorted(ALL)
    assert toy.bytes() == Toy(built_toy).bytes()
    toy.agree()


@pytest.mark.slow
def test_a_path_of_odd_characters_is_like_any_other(fresh_toy: Path, tmp_path: Path) -> None:
    """Though a shell, a glob, a template or a terminal would take them for something else."""
    odd = tmp_path / " a;b&c|d>e!`f`$HOME #g'h\"i*j?[k]\\l%s\nä日 .~"
    shutil.copytree(fresh_toy, odd / "toy")
    toy = Toy(odd / "toy")
    toy.build()
    toy.agree()
    toy.change("max_task_drop: 10.0", "max_task_drop: 8.0")
    assert toy.repro() == ["report"]
    toy.agree()


@pytest.mark.slow
def test_pulled_clone_with_any_dates_has_nothing_to_do(clone: Toy) -> None:
    """Behavior 3. The base's weights are not kept by DVC: nobody fetches them before a stage needs them."""
    clone._repo(lambda repo: repo.pull())
    dice = random.Random(3)  # noqa: S311
    for path in clone.root.rglob("*"):
        if not {".git", ".dvc"} & set(path.parts):
            date = dice.choice([10**9, time.time(), time.time() + 10**8]) * dice.uniform(0.9, 1)
            os.utime(path, (date, date))
    assert clone.plan() == []
    assert clone.repro() == ["base"]
    clone.agree()


@pytest.mark.slow
def test_a_pulled_clone_has_what_is_empty(clone: Toy) -> None:
    """Of clean data nothing is rejected. An empty file, and an empty folder, have records like any other."""
    clone._repo(lambda repo: repo.pull())
    assert clone.empties() == EMPTIES
    assert clone.plan() == []
    assert ended([QUENCH, "model", "verify"], cwd=clone.root).returncode == 0


@pytest.mark.slow
def test_a_worktree_takes_what_is_empty_from_the_remote(toy: Toy, tmp_path: Path) -> None:
    git(toy.root, "worktree", "add", "--quiet", str(tmp_path / "beside"))
    beside = Toy(tmp_path / "beside")
    beside._repo(lambda repo: repo.pull())
    assert beside.empties() == EMPTIES
    assert beside.plan() == []


def test_a_clone_without_its_empty_outputs_is_planned(clone: Toy, built_toy: Path) -> None:
    """The record of an empty file has the MD5 of no bytes, which is no list of a folder's files."""
    shutil.copytree(built_toy / "data/raw", clone.root / "data/raw")
    assert clone.plan() == sorted(ALL)


@pytest.mark.parametrize("lost", EMPTIES)
def test_a_lost_empty_output_comes_back(toy: Toy, lost: str) -> None:
    lose(toy.root / lost)
    done = toy.snakemake("-n")
    assert nothing_to_do(done.stdout + done.stderr), done.stderr
    assert f"restored from DVC's cache: {lost}\n" in done.stderr
    assert toy.empties() == EMPTIES
    toy.agree()


@pytest.mark.parametrize("is_cached", [True, False])
def test_empty_outputs_are_reused(toy: Toy, monkeypatch: pytest.MonkeyPatch, is_cached: bool) -> None:
    """If the cache has lost them too, the stage runs."""
    monkeypatch.setenv("QUENCH_REUSE", "1")
    for name in EMPTIES:
        lose(toy.root / name)
        if not is_cached:
            toy.object(name).unlink()
    assert reuse("curate", toy.root) == is_cached
    assert toy.empties() == (EMPTIES if is_cached else [])


@pytest.mark.slow
def test_an_empty_output_that_got_content_is_named(toy: Toy) -> None:
    """And the other way round: a folder's list in the cache that has lost its content is damaged."""
    rejects = toy.root / "data/rejects.jsonl"
    rejects.chmod(0o644)
    rejects.write_text("x")
    listing = toy.object("data/final")
    listing.chmod(0o644)
    listing.write_bytes(b"")
    done = ended([QUENCH, "model", "verify"], cwd=toy.root)
    assert done.returncode == 3 and "data/rejects.jsonl changed on disk" in done.stderr
    assert "Traceback" not in done.stderr
    toy.build()
    assert toy.empties() == EMPTIES
    toy.agree()


@pytest.mark.slow
def test_clone_without_artifacts_is_told_of_the_pull(clone: Toy, built_toy: Path) -> None:
    """Behavior 11; no raw data at all is said first."""
    done = clone.snakemake("-n")
    assert done.returncode == 3
    assert "Q-WORKFLOW-013" in done.stderr and "`dvc pull`" in done.stderr
    shutil.copytree(built_toy / "data/raw", clone.root / "data/raw")
    assert clone.plan() == sorted(ALL)
    assert re.search(r"`dvc pull`.* 9 artifacts ", clone.snakemake("-n").stderr)


@pytest.mark.slow
def test_base_fetched_again_runs_only_what_is_stale(clone: Toy) -> None:
    """A pulled clone lacks the base's weights; a change that needs them must not train again."""
    clone._repo(lambda repo: repo.pull())
    clone.change("\n  base: auto", "\n  base: nf4")
    done = clone.snakemake("models/demo-F16.gguf")
    assert done.returncode == 0, done.stderr
    assert clone.ran() == ["base", "merge"]


@pytest.mark.slow
def test_changed_parameter_and_back(toy: Toy, tmp_path: Path) -> None:
    """Behaviors 4 and 6."""
    follows = ["merge", "quantize", "quantize", "report"]
    before = toy.bytes()
    other = Toy(tmp_path / "other")
    shutil.copytree(toy.root, other.root)
    toy.change("\n  base: auto", "\n  base: nf4")
    assert toy.plan() == follows
    assert list(toy.status()) == ["merge"]
    assert sorted(toy.repro()) == follows
    toy.agree()
    toy.change("\n  base: nf4", "\n  base: auto")
    assert toy.repro() == []
    assert toy.bytes() == before
    toy.agree()
    other.change("max_task_drop: 10.0", "max_task_drop: 8.0")
    other.build()
    assert other.ran()[len(ALL) :] == ["report"]
    other.agree()


@pytest.mark.slow
def test_edited_code_runs_or_is_accepted(toy: Toy) -> None:
    """Behavior 5."""
    follows = ["merge", "quantize", "quantize", "report", "train"]
    (toy.root / "train.txt").write_text("code of train, with a comment\n")
    assert toy.plan() == follows
    assert list(toy.status()) == ["train"]
    toy.commit("train")
    toy.agree()
    (toy.root / "train.txt").write_text("code of train, another\n")
    assert toy.plan() == follows
    assert toy.repro() == ["train"]  # the same bytes: DVC may stop here, and Snakemake has to believe it
    toy.agree()


@pytest.mark.slow
def test_lost_outputs_come_back_alone(toy: Toy) -> None:
    """Behavior 7, by either tool."""
    before = toy.bytes()
    shutil.rmtree(toy.root / "models/adapter")
    (toy.root / "models/demo-Q4_K_M.gguf").unlink()
    done = toy.snakemake()
    assert done.returncode == 0
    restored = re.search(r"restored from DVC's cache: (.*)\n", done.stderr)
    assert restored and set(restored[1].split(", ")) == {"models/adapter", "models/demo-Q4_K_M.gguf"}
    assert toy.bytes() == before
    shutil.rmtree(toy.root / "data/final/b")
    assert toy.repro() == []
    assert toy.bytes() == before
    assert len(toy.ran()) == len(ALL)
    toy.agree()


@pytest.mark.slow
def test_touched_input_means_nothing(toy: Toy) -> None:
    """Behavior 8, a date in the future included; settling twice writes nothing."""
    for name in ("data/raw", "data/raw/a.jsonl", "train.txt", "params.yaml"):
        os.utime(toy.root / name)
    os.utime(toy.root / "curate.txt", (2**31, 2**31))
    toy.agree()
    assert (toy.root / "curate.txt").stat().st_mtime <= time.time()
    assert settle(toy.root).dated == 0
    (toy.root / "curate.txt").write_text("edited\n")
    assert settle(toy.root).dated > 0
    assert settle(toy.root).dated == 0


SNAKEMAKE = ["snakemake"]
REPRO = ["dvc", "repro"]


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "finisher"), [(SNAKEMAKE, REPRO), (REPRO, SNAKEMAKE)])
@pytest.mark.usefixtures("whole_processes")
def test_killed_run_is_finished_by_the_other_tool(
    clone: Toy, built_toy: Path, victim: list[str], finisher: list[str]
) -> None:
    """Behaviors 9 and 11: build a clone without artifacts, kill -9 at random moments; no manual unlocking."""
    kill_and_finish(clone, built_toy, victim, finisher, [1, 2], random.Random())  # noqa: S311


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.usefixtures("whole_processes")
def test_run_killed_anywhere_is_finished_by_one_command(clone: Toy, built_toy: Path, seed: int) -> None:
    """One kill -9, from before the first stage to behind the last one. A killed `dvc repro` may leave half a
    lock, which DVC refuses and Snakemake's preparation removes.
    """
    moments = random.Random(seed)  # noqa: S311
    victim, finisher = ((SNAKEMAKE, SNAKEMAKE), (REPRO, SNAKEMAKE), (SNAKEMAKE, REPRO))[seed % 3]
    kill_and_finish(clone, built_toy, victim, finisher, [moments.randint(0, len(ALL))], moments)


@pytest.mark.slow
@pytest.mark.usefixtures("whole_processes")
def test_recording_goes_on_when_the_run_is_killed(toy: Toy) -> None:
    """A finished stage is recorded all the same, and the raw data that it read is in the cache."""
    (toy.root / "curate.txt").write_text("edited\n")
    shutil.rmtree(toy.root / ".dvc/cache/files")
    words = "from pathlib import Path; from pipeline.workflow.state.record import record"
    run = subprocess.Popen(
        [sys.executable, "-c", f"{words}; record('curate', Path())"],
        cwd=toy.root,
        env=os.environ | {"PYTHONPATH": str(PROJECT)},
        start_new_session=True,
    )
    until(lambda: any("commit" in child.cmdline() for child in psutil.Process(run.pid).children()))
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    with share_record(toy.root):
        recorded = recorded_stages(toy.root)["curate"]
    md5s = {dep["path"]: dep["md5"] for dep in recorded["deps"]}
    assert md5s["curate.txt"] == hashlib.md5(b"edited\n", usedforsecurity=False).hexdigest()
    assert place(toy.root / ".dvc/cache/files/md5", md5s["data/raw"]).is_file()


def kill_and_finish(
    clone: Toy,
    built_toy: Path,
    victim: list[str],
    finisher: list[str],
    kills: list[int],
    moments: random.Random,
) -> None:
    """Kill `victim` up to 0.4 s after so many more stages, at each of `kills`; check that `finisher` then
    makes the bytes of the toy that was built without a kill.
    """
    shutil.copytree(built_toy / "data/raw", clone.root / "data/raw")
    with (clone.root / "output").open("w") as output:
        for stages in kills:
            wanted = len(clone.ran()) + stages
            run = subprocess.Popen(
                [BIN / victim[0], *victim[1:]],
                cwd=clone.root,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            while len(clone.ran()) < wanted and run.poll() is None:
                time.sleep(0.01)
            time.sleep(moments.uniform(0, 0.4))
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)
            run.wait()
        subprocess.run(
            [BIN / finisher[0], *finisher[1:]], cwd=clone.root, stdout=output, stderr=output, check=True
        )
    assert clone.bytes() == Toy(built_toy).bytes()
    clone.agree()


@pytest.mark.slow
@pytest.mark.parametrize("victim", [["snakemake"], ["dvc", "repro"]])
@pytest.mark.usefixtures("whole_processes")
def test_a_killed_run_takes_its_jobs_along(toy: Toy, victim: list[str]) -> None:
    """kill -9 of the tool alone: its stage, and the tool that this runs, are gone in seconds; the next run
    sweeps, and ends in the same bytes.
    """
    toy.change("max_task_drop: 10.0", "max_task_drop: 8.0")
    (toy.root / "tool").touch()
    with (toy.root / "output").open("w") as output:
        run = subprocess.Popen([BIN / victim[0], *victim[1:]], cwd=toy.root, stdout=output, stderr=output)
        until(lambda: _sleeps_below(run.pid))
        started = psutil.Process(run.pid).children(recursive=True)
        pid = next(
            process.pid
            for process in started
            if "run.py" in process.cmdline() and process.name() != "sh" and process.name() != "bash"
        )
        assert stages_at_work(toy.root) == {"report": str(pid)}
        os.kill(run.pid, signal.SIGKILL)  # nobody waits for it yet: it stays as a zombie
        over = lambda one: not one.is_running() or one.status() == psutil.STATUS_ZOMBIE  # noqa: E731
        until(lambda: all(map(over, started)), seconds=5)
    run.wait()
    (toy.root / "tool").unlink()
    scrap = toy.root / "models/.merging"
    scrap.mkdir()
    (scrap / "half").write_bytes(b"x" * 2000)
    done = toy.snakemake()
    assert done.returncode == 0, done.stderr
    assert not scrap.exists()
    assert toy.ran()[len(ALL) :] == ["report", "report"]
    toy.agree()


@pytest.mark.slow
@pytest.mark.usefixtures("whole_processes")
def test_a_run_waits_for_a_stage_that_is_at_work(toy: Toy) -> None:
    """Started by hand, a stage has no run to end with; Snakemake names it and leaves its possible scraps."""
    (toy.root / "hold").touch()
    scrap = toy.root / "models/.merging"
    scrap.mkdir()
    stage = subprocess.Popen([sys.executable, "run.py", "report"], cwd=toy.root)
    try:
        until(lambda: stages_at_work(toy.root) != {} and not scrap.exists())  # it has swept, and is at work
        scrap.mkdir()
        done = toy.snakemake("-n")
        assert (done.returncode, scrap.exists()) == (6, True)
        assert re.search(rf"Q-WORKFLOW-011: report .*{stage.pid}\b", done.stderr)
        again = ended([sys.executable, "run.py", "curate"], cwd=toy.root)
        assert again.returncode == 0 and "swept" not in again.stderr and scrap.exists()
    finally:
        (toy.root / "hold").unlink()
    assert stage.wait(60) == 0
    toy.agree()
    assert not scrap.exists()


def _sleeps_below(pid: int) -> bool:
    """Return True if a process started a `sleep`; others of its children may end while they are looked at."""
    with suppress(psutil.NoSuchProcess):
        return any(process.name() == "sleep" for process in psutil.Process(pid).children(recursive=True))
    return False


@pytest.mark.slow
@pytest.mark.parametrize("keep", [0, 10, 0.5])
def test_a_lock_file_that_a_kill_cut_short_is_set_aside(toy: Toy, keep: float) -> None:
    """DVC writes `dvc.lock` in place: a kill in that moment leaves an empty or half a file."""
    lock = toy.root / "dvc.lock"
    whole = lock.read_bytes()
    lock.write_bytes(
        whole[: keep if keep in (0, 10) else len(whole) // 2].rpartition(b":")[0] if keep else b""
    )
    before = toy.bytes()
    toy.build()
    assert toy.bytes() == before
    toy.agree()


@pytest.mark.slow
@pytest.mark.usefixtures("whole_processes")
def test_many_starts_at_once(toy: Toy) -> None:
    """Behavior 12: one works, the others name it and leave with 6."""
    toy.change("max_task_drop: 10.0", "max_task_drop: 8.0")
    (toy.root / "hold").touch()
    logs = [(toy.root / f"output-{number}").open("w+") for number in range(8)]
    runs = [
        subprocess.Popen([BIN / "snakemake"], cwd=toy.root, stdout=subprocess.DEVNULL, stderr=log)
        for log in logs
    ]
    try:
        until(lambda: sum(run.poll() is None for run in runs) <= 1, 60)
    finally:
        (toy.root / "hold").unlink()
    codes = [run.wait(timeout=120) for run in runs]
    assert sorted(codes) == [0] + [6] * 7
    winner = runs[codes.index(0)].pid
    for code, log in zip(codes, logs, strict=True):
        log.seek(0)
        assert code == 0 or re.search(rf"Q-WORKFLOW-009: .*{winner}\b", log.read())
        log.close()
    assert toy.ran()[len(ALL) :] == ["report"]


# ---- planned, but nothing it depends on has changed: the outputs come back from the cache


def spared(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The stages whose outputs came back instead of a run, sorted."""
    assert done.returncode == 0, done.stderr
    return sorted(
        re.findall(
            r"^(\w+)(?:@\w+)?: nothing it depends on has changed: its outputs are back from DVC's cache$",
            done.stdout,
            re.M,
        )
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lost", "rerun"), [("everything", ["curate", "train", "merge"]), ("adapter", ["curate", "train"])]
)
def test_what_the_cache_has_lost_is_built(toy: Toy, lost: str, rerun: list[str]) -> None:
    """All of the cache, as an over-eager `dvc gc` leaves it, or the adapter's files alone: built again it is
    the same, so others are spared.
    """
    cache = toy.root / ".dvc/cache/files/md5"
    if lost == "adapter":
        for path in (toy.root / "models/adapter").rglob("*.txt"):
            digest = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
            (cache / digest[:2] / digest[2:]).unlink()
    else:
        shutil.rmtree(cache)
    before = toy.bytes()
    (toy.root / "data/raw/b.jsonl").write_text("rows\n")
    done = toy.snakemake("models/demo-F16.gguf")
    assert toy.ran()[len(ALL) :] == rerun
    assert [*rerun, *spared(done)] == ["curate", "train", "merge"]
    assert toy.bytes() == before


@pytest.mark.slow
def test_who_asks_for_a_run_gets_one(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forced by Snakemake's or DVC's flag, or started by hand; a preset `QUENCH_REUSE` changes nothing."""
    monkeypatch.setenv("QUENCH_REUSE", "1")
    assert spared(toy.snakemake("models/demo-F16.gguf", "--forcerun", "train")) == []
    toy._repo(lambda repo: repo.reproduce("report", single_item=True, force=True))
    monkeypatch.delenv("QUENCH_REUSE")
    subprocess.run([sys.executable, "run.py", "report"], cwd=toy.root, check=True)
    assert toy.ran()[len(ALL) :] == ["train", "merge", "report", "report"]
    toy.agree()


@pytest.mark.parametrize(
    ("line", "forced"),
    [
        ("", False),
        ("train -n -c2 --force-use-threads -sFile", False),
        ("-f", True),
        ("-pF train", True),
        ("-Rtrain", True),
        ("-R train", True),
        ("--force", True),
        ("--forceall -c2", True),
        ("--forcerun=train", True),
    ],
)
def test_flags_that_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, forced: bool) -> None:
    """Then no stage may have its outputs back instead of a run."""
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(PROJECT / name, tmp_path)
    (tmp_path / "data/raw").mkdir(parents=True)
    (tmp_path / "data/raw/a.jsonl").touch()
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.setattr("pipeline.workflow.prepare._held", [])
    monkeypatch.setattr(sys, "argv", ["snakemake", *line.split()])
    prepare(root=tmp_path)
    assert ("QUENCH_REUSE" in os.environ) == (not forced)


def test_a_full_disk_is_one_sentence(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Met while outputs come back: no traceback, and no run that would meet it too."""
    from dvc.output import Output

    from pipeline.core.errors import MachineError

    def full(self: Output, force: bool) -> None:
        raise OSError(28, "No space left on device", self.fs_path)

    monkeypatch.setattr(Output, "checkout", full)
    monkeypatch.setenv("QUENCH_REUSE", "1")
    with pytest.raises(MachineError, match="Q-WORKFLOW-017"):
        reuse("report", toy.root)


@pytest.mark.slow
@pytest.mark.usefixtures("whole_processes")
def test_killed_while_outputs_come_back(toy: Toy) -> None:
    """Half an adapter is none; the next start restores it and sweeps what a copy left beside outputs."""
    adapter = toy.root / "models/adapter"
    for number in range(2000):  # enough to be met half copied
        (adapter / str(number)).write_text(str(number))
    for stage in ("train", "merge"):
        toy.commit(stage)
    before = toy.bytes()
    (toy.root / "data/raw/b.jsonl").write_text("rows\n")
    run = subprocess.Popen(
        [BIN / "snakemake"],
        cwd=toy.root,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    # Snakemake deletes it; it comes back
    for wanted in (lambda: not adapter.exists(), lambda: len(list(adapter.glob("*"))) > 50):
        while not wanted() and run.poll() is None:
            time.sleep(0.002)
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    assert 0 < len(list(adapter.glob("*"))) < 2000
    scraps = [toy.root / folder / f".{'x' * 22}.tmp" for folder in ("models", "models/base")]
    for scrap in scraps:
        scrap.write_text("half a file")
    assert spared(toy.snakemake()) == sorted(["train", *AFTER_TRAIN])
    assert toy.ran()[len(ALL) :] == ["curate"]
    assert toy.bytes() == before
    assert not any(scrap.exists() for scrap in scraps)
    toy.agree()


# ---- bytes that changed behind their date (more in tests/workflow/test_integrity.py)


@pytest.mark.slow
def test_damage_is_planned_around_and_recovered(toy: Toy) -> None:
    """A file that changed behind its date comes back from the cache; one whose copy there is damaged too is
    made again; nothing else runs.
    """
    assert toy.plan() == []
    before = toy.bytes()
    copy = hashlib.md5((toy.root / "models/demo-Q5_K_M.gguf").read_bytes(), usedforsecurity=False).hexdigest()
    for path in (
        "models/adapter/a.txt",
        "models/demo-Q5_K_M.gguf",
        f".dvc/cache/files/md5/{copy[:2]}/{copy[2:]}",
    ):
        _flip(toy.root / path)
    alone = ended([sys.executable, "run.py", "merge"], cwd=toy.root)
    assert alone.returncode == 3
    assert re.search(r"models/adapter \(a\.txt\).*`dvc checkout --force models/adapter`", alone.stderr)
    done = toy.snakemake()
    assert "models/adapter/a.txt, models/demo-Q5_K_M.gguf" in done.stderr
    assert spared(done) == ["merge", "quantize", "report", "train"]
    assert toy.ran()[len(ALL) :] == ["quantize"]
    assert toy.bytes() == before
    toy.agree()


def _flip(path: Path) -> None:
    """Change a byte in place; date, size and mode stay."""
    found = path.stat()
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.write(b"#")
    path.chmod(found.st_mode)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


# ---- mistakes, and the other uses of `snakemake`


@pytest.mark.parametrize(
    ("file", "text", "code", "words"),
    [
        ("params.yaml", "base: 3\n", 2, "Q-CONFIG-003"),
        ("params.yaml", "seed: 2020-99-99\n", 2, "Q-CONFIG-002"),
        ("data/raw", None, 3, "Q-WORKFLOW-013"),
        ("dvc.yaml", "stages: [\n", 4, "Q-WORKFLOW-016"),
    ],
)
def test_mistake_is_one_sentence_with_its_exit_code(
    toy: Toy, file: str, text: str | None, code: int, words: str
) -> None:
    if text is None:
        (toy.root / file / "a.jsonl").unlink()
    else:
        (toy.root / file).write_text(text)
    done = toy.snakemake()
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "id"),
    [
        (["--config", "train=x"], "Q-CONFIG-005"),
        (["--config", "train={r: 4}", "-n"], "Q-WORKFLOW-008"),
        (["-n", "--configfile", "params.yaml"], "Q-WORKFLOW-008"),
    ],
)
def test_settings_that_no_stage_would_see_are_refused(toy: Toy, words: list[str], id: str) -> None:
    before, settings = toy.ran(), (toy.root / "params.yaml").read_bytes()
    done = toy.snakemake(*words)
    assert done.returncode == 2
    assert id in done.stderr
    assert "Traceback" not in done.stderr
    assert toy.ran() == before and (toy.root / "params.yaml").read_bytes() == settings


@pytest.mark.slow
def test_a_setting_given_to_either_tool_is_params_yamls(toy: Toy) -> None:
    before = toy.ran()
    done = toy.snakemake("--config", "train={r: 4}")
    assert done.returncode == 0, done.stderr
    assert load_params(toy.root / "params.yaml").train.r == 4
    assert sorted(toy.ran()[len(before) :]) == sorted(["train", *AFTER_TRAIN])
    toy.agree()
    before = toy.ran()
    subprocess.run(["git", "add", "--all"], cwd=toy.root, check=True)
    subprocess.run(["git", "commit", "--quiet", "--message", "run"], cwd=toy.root, check=True)
    command = [sys.executable, "-m", "dvc", "exp", "run", "--quiet", "-S", "train.r=2"]
    done = ran(command, cwd=toy.root)
    assert load_params(toy.root / "params.yaml").train.r == 2
    assert sorted(toy.ran()[len(before) :]) == sorted(["train", *AFTER_TRAIN])
    toy.agree()


@pytest.mark.slow
def test_other_uses_of_snakemake_still_work(toy: Toy) -> None:
    locks = toy.root / ".snakemake/locks"
    locks.mkdir(exist_ok=True)
    (locks / "0.output.lock").write_text("models/adapter\n")
    assert toy.snakemake("--unlock").returncode == 0
    assert list(locks.glob("*")) == []
    graph = toy.snakemake("--rulegraph")
    assert graph.returncode == 0
    assert graph.stdout.startswith("digraph")
    assert "train" in toy.snakemake("--list").stdout.split()


def test_stop_at_a_named_stage(fresh_toy: Path, tmp_path: Path) -> None:
    shutil.copytree(fresh_toy, tmp_path / "toy")
    assert Toy(tmp_path / "toy").plan("train") == ["base", "curate", "train"]


# ---- a change that is declared to be without effect


@pytest.mark.slow
def test_an_accepted_change_runs_nothing_but_the_report_in_either_tool(toy: Toy) -> None:
    before = toy.bytes()
    toy.change("\n  base: auto", "\n  base: nf4")
    assert accepted.accept(toy.root, "merge", "the same on this base") == {"merge": "merge.base: auto → nf4"}
    params = load_params(toy.root / "params.yaml")
    assert params.report.accepted["merge"].why == "the same on this base"
    assert in_force(toy.root, params).keys() == {"merge"}
    assert {*toy.status()} == {"report"}
    assert toy.plan() == ["report"]
    assert toy.repro() == ["report"]
    toy.agree()
    assert {path: md5 for path, md5 in toy.bytes().items() if "index" not in path} == {
        path: md5 for path, md5 in before.items() if "index" not in path
    }


@pytest.mark.slow
def test_what_is_taken_back_runs_again(toy: Toy) -> None:
    """Also by `dvc repro`, whose cache of runs must not take the outputs for those of the new setting; and a
    setting that is set back is up to date.
    """
    recorded = recorded_stages(toy.root)["merge"]
    toy.change("\n  base: auto", "\n  base: nf4")
    accepted.accept(toy.root, "merge", "as I say")
    assert recorded_stages(toy.root)["merge"] != recorded
    assert accepted.undo(toy.root, "merge") == ["merge"]
    assert recorded_stages(toy.root)["merge"] == recorded
    assert toy.plan() == AFTER_TRAIN
    toy.change("\n  base: nf4", "\n  base: auto")
    assert toy.plan() == []
    toy.change("\n  base: auto", "\n  base: nf4")
    accepted.accept(toy.root, "merge", "as I say")
    shutil.rmtree(toy.root / ".quench/accepted")  # as in another clone
    accepted.undo(toy.root, "merge")
    assert sorted(toy.repro()) == AFTER_TRAIN
    toy.agree()


@pytest.mark.slow
def test_what_was_accepted_ends_when_the_stage_runs_again(toy: Toy) -> None:
    toy.change("\n  base: auto", "\n  base: nf4")
    accepted.accept(toy.root, "merge", "as I say")
    assert toy.snakemake("--force", "merge").returncode == 0
    assert toy.ran()[len(ALL) :] == ["merge"]
    params = load_params(toy.root / "params.yaml")
    assert params.report.accepted and not in_force(toy.root, params)
    toy.build()
    toy.agree()


@pytest.mark.slow
def test_only_settings_and_code_can_be_accepted(toy: Toy) -> None:
    files = [toy.root / name for name in ("params.yaml", "dvc.lock")]
    before = [file.read_bytes() for file in files]
    toy.change("\n  base: auto", "\n  base: nf4")
    (toy.root / "data/raw/b.jsonl").write_text("more\n")
    toy.put("models/demo-F16.gguf", "damaged\n")
    for stage in ("curate", "train", "merge", "report", "quantize@F16"):
        with pytest.raises(ConfigError) as refused:
            accepted.accept(toy.root, stage, "as I say")
        assert refused.value.id == "Q-WORKFLOW-041", stage
    with pytest.raises(ConfigError) as refused:
        accepted.undo(toy.root, "merge")
    assert refused.value.id == "Q-WORKFLOW-042"
    toy.change("\n  base: nf4", "\n  base: auto")
    assert [file.read_bytes() for file in files] == before
