"""A project that a release recorded is read by this code: settings, DVC's record, checkpoints, reports and
rows, all but weights and pages.

tests/archive/VERSION.tar.xz is written by `pytest --record tests/workflow/test_archived_project.py`, once for
each release. Where one can't be read any more, this code can't take over a project of that release, and it is
the code that is to be mended.
"""

import io
import json
import shutil
import subprocess
import tarfile
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from user_project import quench, user_project

from pipeline.config.params import load_params
from pipeline.core.jsonl import read_rows
from pipeline.core.places import PROJECT
from pipeline.gate.inputs import load_inputs
from pipeline.gate.recommend import advise
from pipeline.stages.train.checkpoints import checkpoints_in, read_notes
from pipeline.stages.train.record import run_id
from pipeline.workflow.project import installed_version

ARCHIVES = PROJECT / "tests/archive"
MOST = 200_000  # bytes
KEPT = (  # a folder that a stage writes is here whole or not at all
    *(
        "params.yaml",
        "params.lock.yaml",
        "dvc.yaml",
        "dvc.lock",
        "Snakefile",
        ".gitignore",
        ".dvcignore",
        ".dvc/config",
    ),
    *(".quench/code/*", "profiles/*/*", "data/raw.dvc", "data/*.jsonl", "data/final/*", "data/tokens/*"),
    *("models/base.json", "models/checkpoints/*.json*", "models/checkpoints/*/complete.json"),
    *("reports/**/*.json*", "reports/*.csv"),
)


@pytest.fixture(autouse=True)
def _free(monkeypatch: pytest.MonkeyPatch) -> None:
    # the lock of a project lasts until nobody holds its file
    monkeypatch.setattr("pipeline.workflow.prepare._held", deque(maxlen=0))


def test_this_release_is_archived(
    pytestconfig: pytest.Config, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    archive = ARCHIVES / f"{installed_version()}.tar.xz"
    if pytestconfig.getoption("--record", False):
        write(archive, Path(request.getfixturevalue("finished")), tmp_path)
    assert archive.is_file() and archive.stat().st_size <= MOST


def write(archive: Path, finished: Path, folder: Path) -> None:
    """The archive of a finished project, in which no name of this machine's folders is."""
    source = json.loads((finished / "models/base.json").read_text(encoding="utf-8"))["model"]
    neutral = Path(shutil.copytree(finished, folder / "finished"))
    for path in neutral.rglob("*"):
        if path.is_file() and source.encode() in (content := path.read_bytes()):
            path.write_bytes(content.replace(source.encode(), b"/srv/qwen2"))
    root = user_project(folder / "project", neutral)
    with tarfile.open(archive, "w:xz") as tar:
        for path in sorted({path for pattern in KEPT for path in root.glob(pattern)}):
            if path.is_file():
                entry = tarfile.TarInfo(path.relative_to(root).as_posix())
                entry.size = path.stat().st_size
                tar.addfile(entry, io.BytesIO(path.read_bytes()))


@pytest.fixture(scope="module", params=sorted(ARCHIVES.glob("*.tar.xz")), ids=lambda path: path.name)
def project(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archived project, in Git. Read only."""
    root = tmp_path_factory.mktemp("archived")
    with tarfile.open(request.param) as tar:
        tar.extractall(root, filter="data")
    for words in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "archived"]):
        subprocess.run(["git", *words], cwd=root, check=True)
    done = quench(root, "config", "upgrade")  # a newer release may know fewer settings
    assert done.exit_code == 0, done.output
    return root


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def test_it_names_no_folder_of_its_maker(project: Path) -> None:
    found = [path for path in project.rglob("*") if path.is_file() and ".git" not in path.parts]
    assert not [path for path in found if tempfile.gettempdir().encode() in path.read_bytes()]


def test_its_settings_are_taken(project: Path) -> None:
    done = quench(project, "config", "show", "train.max_steps", "--json")
    assert done.exit_code == 0 and json.loads(done.stdout)["train.max_steps"]["value"] == 2


def test_an_upgrade_says_what_would_run_again(project: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(project, tmp_path / "project"))
    done = quench(root, "doctor", "upgrade")
    assert done.exit_code == 0 and "made this project" in done.stdout, done.output
    assert quench(root, "doctor", "upgrade", "--yes").exit_code == 0
    assert "Nothing would" in quench(root, "doctor", "upgrade").stdout


def test_its_record_is_read_and_what_is_here_is_undamaged(project: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(project, tmp_path / "project"))
    assert quench(root, "doctor", "upgrade", "--yes").exit_code == 0
    done = quench(root, "model", "verify")
    assert done.exit_code == 0 and "none is damaged" in done.stdout, done.output
    changed = quench(root, "data", "diff", "HEAD")
    assert "Q-COMMANDS-022" in changed.stderr  # recorded, but its cache is not in the archive


def test_its_checkpoints_are_known(project: Path) -> None:
    run = read(project / "models/checkpoints/run.json")
    found = checkpoints_in(project / "models/checkpoints")
    assert run["finished"] and found
    assert {read_notes(one)["run"] for one in found} == {run_id(run["record"])}


def test_its_reports_are_judged(project: Path) -> None:
    params = load_params(project / "params.yaml")
    parity = quench(project, "model", "parity", "--json")
    assert parity.exit_code == 0 and json.loads(parity.stdout)["verdict"] == "pass"
    inputs = load_inputs(project, params.evaluate.models)
    _, verdicts = advise(inputs, params.report, params.serving)
    before = read(project / "reports/quants.json")
    assert verdicts.keys() == {*params.quantize.files, params.convert.type}
    assert before.keys() >= verdicts.keys()


def test_its_rows_are_exported(project: Path, tmp_path: Path) -> None:
    done = quench(project, "data", "export", str(tmp_path / "rows.jsonl"), "--to", "messages")
    assert done.exit_code == 0, done.output
    rows = len([*read_rows(project / "data/final/train.jsonl")])
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == rows > 0
