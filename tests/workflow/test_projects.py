"""`quench new` makes a project that holds no code; another version of the code runs nothing there before an
upgrade has said what would run again.
"""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from pipeline.cli import app
from pipeline.commands.upgrade import changes, followers
from pipeline.config.params import read_params
from pipeline.config.text import left_out
from pipeline.core.errors import ConfigError
from pipeline.core.locks import RUN, lock_file, take
from pipeline.workflow import project
from pipeline.workflow.code_keys import FOLDER, key_file
from pipeline.workflow.project import changed_code, is_project, refresh_keys, take_over
from pipeline.workflow.stages import code_of_stages, stages_in


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new project; read only."""
    folder = tmp_path_factory.mktemp("projects") / "my assistant"
    done = CliRunner().invoke(app, ["new", str(folder)])
    assert done.exit_code == 0, done.output
    return folder


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(made, tmp_path / "project"))


def invoke(*words: str) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_a_new_project_has_settings_a_graph_git_and_dvc_and_no_code(made: Path) -> None:
    staged = subprocess.run(
        ["git", "ls-files"], cwd=made, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert {"params.yaml", "dvc.yaml", "Snakefile", ".dvc/config", ".dvcignore", ".gitignore"} <= set(staged)
    assert {key_file(stage) for stage in code_of_stages()} <= set(staged)  # a clone of it has them too
    assert not list(made.rglob("*.py"))
    assert "code" not in yaml.safe_load((made / "dvc.yaml").read_text())["stages"]
    assert is_project(made) and refresh_keys(made) == []
    assert (made / "data/raw").is_dir()
    # every key is in the file, as DVC needs it
    assert not left_out(read_params(made / "params.yaml").values)


def test_a_folder_with_content_is_left_alone(made: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    for folder in (tmp_path, tmp_path / "mine.txt"):
        done = invoke("new", folder)
        assert done.exit_code == 2 and "Q-COMMANDS-035" in done.output
    done = invoke("new", tmp_path / "other", "--recipe", "dem")
    assert done.exit_code == 2 and "Q-COMMANDS-002" in done.output
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_inside_a_repository_no_other_one_is_made(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    assert invoke("new", tmp_path / "models" / "one").exit_code == 0
    assert not (tmp_path / "models/one/.git").exists() and (tmp_path / "models/one/.dvc").is_dir()
    staged = subprocess.run(["git", "ls-files"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert {line.partition("one/")[0] for line in staged.stdout.splitlines()} == {"models/"}
    # in a folder that Git ignores, DVC's reason is the user's, and nothing is left
    (tmp_path / ".gitignore").write_text("ignored/\n")
    done = invoke("new", tmp_path / "ignored" / "one")
    assert done.exit_code == 4 and "ignored" in done.output
    assert not (tmp_path / "ignored" / "one").exists()


def test_without_git_nothing_is_left_of_a_new_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    shown = invoke("new", tmp_path / "mine")
    assert shown.exit_code == 4 and "Q-COMMANDS-036" in shown.stderr
    assert not [*tmp_path.iterdir()]


def test_one_command_at_a_time_works_in_a_project(root: Path) -> None:
    with take(lock_file(RUN, root)):
        shown = invoke("upgrade", "--root", root)
    assert shown.exit_code == 6 and "Q-WORKFLOW-009" in shown.stderr


def test_the_folder_one_is_in_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "Q-COMMANDS-035" in invoke("new", ".").output


def test_other_code_runs_nothing_before_an_upgrade(root: Path) -> None:
    key = root / key_file("merge")
    first, *others = key.read_text().splitlines()
    key.write_text("\n".join([f"0{first[1:]}", *others, ""]))
    with pytest.raises(ConfigError, match="Q-WORKFLOW-023"):
        refresh_keys(root)
    assert list(changed_code(root)) == ["merge"]
    done = invoke("upgrade", "--root", root)
    assert done.exit_code == 0 and "merge" in done.output
    with pytest.raises(ConfigError, match="Q-WORKFLOW-023"):  # it has only been asked
        refresh_keys(root)
    done = invoke("upgrade", "--yes", "--root", root)
    assert done.exit_code == 0, done.output
    assert refresh_keys(root) == []


def test_an_upgrade_names_what_has_run_and_what_follows_it(root: Path) -> None:
    (root / key_file("train")).unlink()
    (root / "dvc.lock").write_text(yaml.safe_dump({"stages": {"train": {}, "merge": {}, "curate": {}}}))
    lines = invoke("upgrade", "--root", root).output.splitlines()
    said = lines[lines.index("Would run again:") + 1 :]
    assert [line.split()[0] for line in said if line.startswith("  ")] == ["train", "merge"]


def test_an_upgrade_sees_new_settings_and_an_edited_graph(root: Path) -> None:
    settings = yaml.safe_load((root / "params.yaml").read_text())
    del settings["merge"]["dtype"], settings["train"]["r"]
    (root / "params.yaml").write_text(yaml.safe_dump(settings))
    graph = yaml.safe_load((root / "dvc.yaml").read_text())
    graph["stages"]["imatrix"]["deps"].pop()
    (root / "dvc.yaml").write_text(yaml.safe_dump(graph))
    found = changes(root, read_params(root / "params.yaml"))
    assert "merge.dtype" in found["merge"] and "train.r" in found["train"]
    assert "dvc.yaml" in found["imatrix"] and "curate" not in found
    assert invoke("upgrade", "--yes", "--root", root).exit_code == 0
    assert "imatrix" not in changes(root, read_params(root / "params.yaml"))


def test_followers_are_found_at_any_distance() -> None:
    from pipeline.config.params import load_params
    from pipeline.core.places import PROJECT

    values = load_params(PROJECT / "recipes/demo.yaml").model_dump(mode="json")
    graph = stages_in("merged")
    found = followers(graph, values, {"quantize"})
    assert {"parity", "evaluate", "report"} <= found.keys() and "convert" not in found
    assert set(followers(graph, values, {"base"})) >= {"curate", "train", "report"}
    assert followers(graph, values, {"report"}) == {}


def test_an_older_quench_doesnt_tell_one_to_remove_newer_settings(root: Path) -> None:
    (root / FOLDER / "version").write_text("9.9\n")
    with (root / "params.yaml").open("a") as file:
        file.write("novelty: {}\n")
    done = invoke("upgrade", "--root", root)
    assert done.exit_code == 2 and "Quench 9.9" in done.output


def test_a_key_that_cannot_be_read_is_named(root: Path) -> None:
    (root / key_file("train")).write_bytes(b"\xff")
    done = invoke("upgrade", "--root", root)
    assert done.exit_code == 3 and "Q-WORKFLOW-024" in done.output


def test_a_checkout_is_not_upgraded_and_needs_no_quench_setup(tmp_path: Path) -> None:
    done = invoke("upgrade", "--root", tmp_path)
    assert done.exit_code == 2 and "Q-WORKFLOW-025" in done.output
    done = invoke("setup")
    assert done.exit_code == 2 and "Q-COMMANDS-037" in done.output


def test_a_damaged_key_of_code_is_not_written_over_in_a_project_but_in_a_checkout(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / key_file("train")).write_text("0 stages/train/stage.py\n")
    monkeypatch.setattr(project, "is_project", lambda root: False)
    assert refresh_keys(root) == ["train"]
    monkeypatch.undo()
    take_over(root)
    assert not changed_code(root) and (root / FOLDER / "version").is_file()
