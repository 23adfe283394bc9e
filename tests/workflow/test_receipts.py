"""Remote jobs leave receipts; the Snakemake process records them with DVC if all is as the job left it."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from graph_settings import graph_text

from pipeline.__main__ import main
from pipeline.core.errors import DataError
from pipeline.core.owner import RUN
from pipeline.workflow.remote import finish_workflow, job_settings
from pipeline.workflow.state.integrity import verify_inputs
from pipeline.workflow.state.settings import refresh_lock

REMOTE, REUSE = "QUENCH_REMOTE", "QUENCH_REUSE"


@pytest.fixture
def project(prepared: Path, tmp_path: Path) -> Path:
    """A DVC project in which the first stages have run and nothing is recorded."""
    return make_project(prepared, tmp_path / "project")


def make_project(prepared: Path, root: Path) -> Path:
    """Make that at `root`."""
    from dvc.repo import Repo

    shutil.copytree(prepared, root)
    (root / "dvc.yaml").write_text(graph_text("merged"))
    Repo.init(str(root), no_scm=True).close()
    refresh_lock(root)
    for folder in ("guard", "evaluation", "distill"):
        (root / "data" / folder).mkdir(exist_ok=True)
    return root


@pytest.fixture(scope="module")
def curated_once(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project after a job on another machine has curated. Read only."""
    root = make_project(prepared, tmp_path_factory.mktemp("curated") / "project")

    before = sorted((root / ".dvc").rglob("*"))  # DVC's locks are files there
    with pytest.MonkeyPatch.context() as job:
        job.setenv(REMOTE, "1")
        job.setenv(REUSE, "1")
        assert main(["curate", "--root", str(root)]) == 0
    assert not (root / "dvc.lock").exists() and sorted((root / ".dvc").rglob("*")) == before
    return root


@pytest.fixture
def curated(curated_once: Path, tmp_path: Path) -> Path:
    """A copy of that."""
    return Path(shutil.copytree(curated_once, tmp_path / "curated"))


def left(root: Path) -> list[str]:
    """The names of what jobs left."""
    return [path.name for path in (root / ".quench/finished").iterdir()]


def is_recorded(root: Path) -> bool:
    """Return True if dvc.lock has the stage curate."""
    return (root / "dvc.lock").is_file() and "  curate:" in (root / "dvc.lock").read_text()


@pytest.mark.slow
def test_what_a_job_finished_is_recorded_by_another_process(
    curated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert left(curated) == ["curate.json"]
    receipt = json.loads((curated / ".quench/finished/curate.json").read_text())
    assert receipt["stage"] == "curate" and "data/raw" in receipt["inputs"]
    assert set(receipt["outputs"]) > {"data/final/train.jsonl", "reports/data.json"}
    finish_workflow(curated, failed=False)
    assert left(curated) == []
    from dvc.repo import Repo

    monkeypatch.chdir(curated)
    with Repo() as repo:
        assert repo.status(["curate"]) == {}


def append(name: str) -> Callable[[Path], None]:
    def edit(root: Path) -> None:
        with (root / name).open("a") as file:
            file.write("\n")

    return edit


def another_seed(root: Path) -> None:
    text = (root / "params.yaml").read_text()
    assert text.count("test_fraction: 0.2") == 1
    (root / "params.yaml").write_text(text.replace("test_fraction: 0.2", "test_fraction: 0.3"))


@pytest.mark.parametrize(
    "edit",
    [
        append("data/raw/chats.jsonl"),
        append("data/final/val.jsonl"),
        another_seed,
        lambda root: (root / "data/rejects.jsonl").unlink(),
    ],
    ids=["an input", "an output", "a setting", "an output that is gone"],
)
def test_what_changed_since_is_not_recorded(curated: Path, edit: Callable[[Path], None]) -> None:
    edit(curated)
    finish_workflow(curated, failed=False)
    assert left(curated) == [] and not is_recorded(curated)


def test_the_next_job_goes_by_the_receipt(curated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """dvc.lock may know an earlier output of the same name, or none."""
    monkeypatch.setenv(REMOTE, "1")
    verify_inputs("preprocess", curated)
    append("data/final/train.jsonl")(curated)
    with pytest.raises(DataError, match=r"Q-WORKFLOW-007.*data/final/train\.jsonl"):
        verify_inputs("preprocess", curated)


def test_a_receipt_that_is_cut_short_is_none(curated: Path) -> None:
    file = curated / ".quench/finished/curate.json"
    file.write_text(file.read_text()[:100])
    finish_workflow(curated, failed=True)
    assert not is_recorded(curated)


def failed_job(project: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code of a job on another machine that lacks its input."""
    (project / "data/raw").rename(project / "raw")
    with monkeypatch.context() as job:
        job.setenv(REMOTE, "1")
        return main(["curate", "--root", str(project)])


def test_a_failed_job_is_shown_with_its_exit_code(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = failed_job(project, monkeypatch)
    said = capsys.readouterr().err
    finish_workflow(project, failed=False)  # of a job that was run again, and did its work
    with pytest.raises(SystemExit) as end:
        finish_workflow(project, failed=True)
    assert end.value.code == code == 3
    assert capsys.readouterr().err == said
    finish_workflow(project, failed=True)  # said once


@pytest.mark.slow
def test_a_stage_that_runs_again_forgets_what_an_earlier_job_left(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed_job(project, monkeypatch)
    assert left(project) == ["curate.json"]
    (project / "raw").rename(project / "data/raw")
    assert main(["curate", "--root", str(project)]) == 0
    assert left(project) == [] and is_recorded(project)


def test_a_job_is_no_part_of_the_submitting_process(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler copies the environment to the job, which would end with the process of that number."""
    monkeypatch.setenv("PATH", "/usr/bin")
    for name in (RUN, REUSE, REMOTE):
        monkeypatch.setenv(name, "1")
    settings = job_settings(project, remote=True)
    assert settings.convert.name == "tiny"
    assert (os.environ.get(RUN), os.environ.get(REUSE), os.environ[REMOTE]) == (None, None, "1")
