"""`quench doctor clean` on real projects of DVC and Git: what goes, what stays, what is refused."""

import json
import shutil
import subprocess
from collections import deque
from contextlib import chdir
from pathlib import Path

import pytest
from user_project import quench

from pipeline.commands import run
from pipeline.commands.clean import disk_line
from pipeline.core.errors import ConfigError, DataError, ToolError
from pipeline.workflow.keys.stamps import files_below

GRAPH = """
stages:
  train:
    cmd: python -m pipeline train
    deps: [data/raw]
    outs: [models/adapter]
    metrics: [reports/train.json]
"""
BYTES = 40_000  # of an adapter


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a folder as its output, and nothing recorded yet."""
    root = tmp_path / "my #project"
    (root / "data/raw").mkdir(parents=True)
    (root / "data/raw/rows.jsonl").write_text("raw\n")
    (root / "dvc.yaml").write_text(GRAPH)
    git(root, "init", "--quiet")
    dvc(root, "init", "--quiet")
    dvc(root, "add", "--quiet", "data/raw")
    (root / ".gitignore").write_text("/models\n/reports\n/.quench\n/data/raw\n")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "start")
    return root


@pytest.fixture(autouse=True)
def _free(monkeypatch: pytest.MonkeyPatch) -> None:
    # The lock of a project lasts until nobody holds its file.
    monkeypatch.setattr("pipeline.workflow.prepare._held", deque(maxlen=0))


def git(root: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=root, check=True, capture_output=True, text=True).stdout


def dvc(root: Path, *words: str) -> None:
    from dvc.cli import main

    with chdir(root):
        assert main([*words]) == 0


def train(root: Path, name: str, *, commit: bool = True) -> None:
    """Record a run whose files are called and filled by `name`, and commit it."""
    from dvc.repo import Repo

    adapter = root / "models/adapter"
    shutil.rmtree(adapter, ignore_errors=True)
    adapter.mkdir(parents=True)
    (root / "reports").mkdir(exist_ok=True)
    (adapter / f"{name}.bin").write_text(name * (BYTES // len(name)))
    (adapter / "empty").touch()
    (root / "reports/train.json").write_text(json.dumps({"run": name}))
    with chdir(root), Repo(str(root)) as repo:
        repo.commit(force=True)
    if commit:
        git(root, "add", "--all")
        git(root, "commit", "--quiet", "--allow-empty", "--message", name)


def clean(root: Path, *words: str) -> dict[str, object]:
    done = quench(root, "doctor", "clean", "--json", *words)
    assert done.exit_code == 0, done.output
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def restored(root: Path, revision: str) -> str | None:
    """The name of the run that DVC restores at a revision; None if its files are gone."""
    from dvc.cli import main

    git(root, "checkout", "--quiet", revision)
    shutil.rmtree(root / "models/adapter", ignore_errors=True)
    with chdir(root):
        complete = main(["checkout", "--quiet", "--force"]) == 0
    found = list((root / "models/adapter").glob("*.bin"))
    git(root, "checkout", "--quiet", "--force", "-")
    return found[0].stem if complete and found and found[0].stat().st_size > BYTES // 2 else None


def test_the_last_runs_can_be_restored_and_older_ones_are_gone(project: Path) -> None:
    for name in ("one", "two", "three", "four"):
        train(project, name)
    before = clean(project)
    assert before["frees"]["1"] > before["frees"]["2"] > before["frees"]["3"] > BYTES // 2  # type: ignore[index]
    assert before["frees"]["5"] == 0  # type: ignore[index]
    after = clean(project, "--keep", "2")
    assert after["freed"] == before["frees"]["2"]  # type: ignore[index]
    assert clean(project)["bytes"] == before["bytes"] - after["freed"]  # type: ignore[operator]
    assert clean(project, "--keep", "2")["objects"] == 0
    assert [restored(project, f"HEAD~{back}") for back in (0, 1, 2, 3)] == ["four", "three", None, None]
    dvc(project, "checkout", "--force")
    dvc(project, "status")
    assert quench(project, "model", "verify").exit_code == 0


def test_branches_tags_and_stashes_are_kept(project: Path) -> None:
    train(project, "tagged")
    git(project, "tag", "-a", "v1", "-m", "one")
    git(project, "tag", "raw-object", git(project, "rev-parse", "HEAD:dvc.yaml").strip())
    train(project, "branched")
    git(project, "branch", "other")
    train(project, "stashed", commit=False)
    git(project, "stash", "--quiet")
    for name in ("four", "five", "six", "seven"):
        train(project, name)
    clean(project, "--keep", "1")
    assert restored(project, "v1") == "tagged"
    assert restored(project, "other") == "branched"
    assert restored(project, "stash@{0}") == "stashed"
    assert restored(project, "HEAD~1") is None


def test_what_only_the_index_or_a_stash_of_untracked_files_names_is_kept(project: Path) -> None:
    extra = project / "extra.txt"
    extra.write_text("untracked" * 1000)
    dvc(project, "add", "--quiet", "extra.txt")
    git(project, "stash", "--quiet", "--include-untracked")
    extra.unlink(missing_ok=True)
    train(project, "staged", commit=False)
    git(project, "add", "--all")
    for name in ("two", "three"):
        train(project, name, commit=False)
    clean(project, "--keep", "1")
    git(project, "commit", "--quiet", "--message", "staged")
    git(project, "checkout", "--quiet", "dvc.lock")
    assert restored(project, git(project, "rev-parse", "HEAD").strip()) == "staged"
    git(project, "stash", "pop", "--quiet")
    dvc(project, "checkout", "--quiet", "extra.txt.dvc")
    assert extra.read_text().startswith("untracked")


def test_a_tag_from_before_the_project_moved_is_kept(project: Path, tmp_path: Path) -> None:
    inner = tmp_path / "repository" / "project"
    shutil.copytree(project, inner, ignore=shutil.ignore_patterns(".git"))
    dvc(inner, "config", "core.no_scm", "true")
    git(inner.parent, "init", "--quiet")
    train(inner, "tagged")
    git(inner, "tag", "v1")
    moved = inner.rename(inner.with_name("moved"))
    train(moved, "two")
    dvc(moved, "config", "--unset", "core.no_scm")
    cache = files_below(moved / ".dvc/cache/files")
    assert clean(moved, "--keep", "1")["objects"] == 0
    assert files_below(moved / ".dvc/cache/files") == cache


def test_runs_that_were_never_committed_count_too(project: Path) -> None:
    from dvc.repo import Repo

    for name in ("one", "two", "three"):
        (project / "data/raw/rows.jsonl").write_text(name)  # DVC keeps a record of each
        train(project, name, commit=False)
    records = files_below(project / ".dvc/cache/runs")
    clean(project, "--keep", "2")
    assert len(files_below(project / ".dvc/cache/runs")) == len(records) - 1
    (project / "data/raw/rows.jsonl").write_text("two")
    with chdir(project), Repo(str(project)) as repo:
        repo.reproduce("train")  # fails if it has to run, for there is no such program
    assert (project / "models/adapter/two.bin").exists()


def test_what_a_link_points_to_and_a_damaged_record_names_stays(project: Path) -> None:
    dvc(project, "config", "cache.type", "symlink")
    train(project, "linked")
    (project / "models/mine.bin").symlink_to((project / "models/adapter/linked.bin").resolve())
    train(project, "recorded")
    recorded = (project / "models/adapter/recorded.bin").resolve()
    (project / "dvc.lock.broken").write_text((project / "dvc.lock").read_text().partition("reports")[0])
    for name in ("three", "four"):
        train(project, name)
    objects = len(files_below(project / ".dvc/cache/files"))
    clean(project, "--keep", "1")
    assert len(files_below(project / ".dvc/cache/files")) < objects
    assert (project / "models/mine.bin").read_text().startswith("linked")
    assert recorded.read_text().startswith("recorded")


def newest(root: Path, suffix: str) -> Path:
    """The last list of a folder's files in the cache."""
    lists = [file for file in files_below(root / ".dvc/cache/files") if file.suffix == suffix]
    return max(lists, key=lambda file: file.stat().st_mtime_ns)


def refused(root: Path, id: str, code: int) -> None:
    before = sorted(files_below(root / ".dvc/cache"))
    done = quench(root, "doctor", "clean", "--keep", "1")
    assert (done.exit_code, done.stdout) == (code, "") and f"{id}: " in done.stderr
    assert sorted(files_below(root / ".dvc/cache")) == before


def test_nothing_is_deleted_if_it_is_unknown_what_is_needed(
    project: Path,
) -> None:
    train(project, "one")
    train(project, "two")
    listed = newest(project, ".dir")
    whole = listed.read_bytes()
    listed.chmod(0o644)
    listed.write_bytes(whole.replace(b"relpath", b"relpati"))
    refused(project, "Q-DOCTOR-004", DataError.exit_code)
    listed.write_bytes(whole)
    tree = git(project, "rev-parse", "HEAD^{tree}").strip()
    (project / ".git/objects" / tree[:2] / tree[2:]).unlink()
    refused(project, "Q-DOCTOR-005", ToolError.exit_code)


def test_a_cache_that_others_may_use_is_left_alone(project: Path, tmp_path: Path) -> None:
    dvc(project, "config", "cache.dir", str(tmp_path / "shared"))
    train(project, "one")
    train(project, "two")
    before = len(files_below(tmp_path / "shared"))
    refused(project, "Q-DOCTOR-002", ConfigError.exit_code)
    assert len(files_below(tmp_path / "shared")) == before


def test_a_folder_without_dvc_is_refused(tmp_path: Path) -> None:
    done = quench(tmp_path, "doctor", "clean")
    assert done.exit_code == ConfigError.exit_code and "Q-COMMANDS-015" in done.stderr


def test_the_line_on_the_disk_counts_a_linked_file_once(project: Path) -> None:
    train(project, "copied")
    assert "reports take 40.1 kB, DVC's cache of all runs 40." in disk_line(project)
    dvc(project, "config", "cache.type", "hardlink")
    train(project, "linked")
    assert "reports take 40.1 kB, DVC's cache of all runs 41." in disk_line(project)


def test_a_run_ends_with_the_line_on_the_disk(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train(project, "one")
    monkeypatch.setattr("pipeline.commands.run.subprocess.Popen", lambda *given, **named: None)
    for code, words, ends in ((0, ["train"], True), (0, ["-n"], False), (1, ["train"], False)):
        monkeypatch.setattr("pipeline.commands.run.wait", lambda *given, code=code: code)
        capsys.readouterr()
        assert run.main(project, words) == code
        output = capsys.readouterr()
        assert ("Disk: data, models" in output.err) == ends and not output.out
