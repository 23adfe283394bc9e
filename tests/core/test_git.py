"""A Git that fails is told from a Git that says no."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from make import quench

from pipeline.core.errors import ToolError
from pipeline.core.git import ask_git
from pipeline.stages.train.run import git_state
from pipeline.workflow.state.dvc_project import open_project


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit."""
    (tmp_path / "dvc.lock").write_text("stages: {}\n")
    for words in ("init --quiet", "add --all", "commit --quiet --message one"):
        subprocess.run(["git", *words.split()], cwd=tmp_path, check=True)
    return tmp_path


@pytest.fixture
def of_another_user(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The repository as Git sees one of another user."""
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", "/dev/null")
    return repository


def test_what_is_not_there_is_none(tmp_path: Path, repository: Path) -> None:
    assert ask_git(Path("/"), "rev-parse", "--show-toplevel") is None
    for words in (["rev-parse", "--verify", "--quiet", "two"], ["show", "HEAD:./x"], ["show", "two:./x"]):
        assert ask_git(repository, *words) is None
    assert ask_git(repository, "show", "HEAD:./dvc.lock") == b"stages: {}\n"


def _damage_index(repository: Path) -> list[str]:
    (repository / ".git/index").write_bytes(b"DIRC")
    return ["status"]


def _lose_worktree(repository: Path) -> list[str]:
    (repository / ".git").rename(repository / "elsewhere")
    (repository / ".git").write_text("gitdir: /nowhere\n")
    return ["rev-parse", "--verify", "--quiet", "HEAD"]


@pytest.mark.parametrize("spoil", [_damage_index, _lose_worktree])
def test_a_damaged_repository_is_no_missing_one(repository: Path, spoil: Callable[[Path], list[str]]) -> None:
    words = spoil(repository)
    with pytest.raises(ToolError, match=r"^Q-CORE-016"):
        ask_git(repository, *words)


def test_in_a_repository_of_another_user_no_other_one_is_made(of_another_user: Path) -> None:
    done = quench("new", of_another_user / "sub" / "tide")
    assert done.exit_code == 4 and "Q-CORE-016" in done.stderr and "safe.directory" in done.stderr
    assert not (of_another_user / "sub" / "tide").exists()


@pytest.mark.parametrize("words", [["status", "--history"], ["data", "diff", "HEAD"]])
def test_what_git_does_not_say_is_not_taken_for_empty(of_another_user: Path, words: list[str]) -> None:
    done = quench(*words, "--root", of_another_user)
    assert done.exit_code == 4 and "Q-CORE-016" in done.stderr


def test_a_broken_configuration_of_git_is_said_in_git_s_words(repository: Path) -> None:
    (repository / ".dvc").mkdir()
    (repository / ".dvc/config").touch()
    (repository / ".git/config").write_text("[user\nname = x\n")
    with pytest.raises(ToolError, match=r"^Q-CORE-016: .* bad config"), open_project(repository):
        pass


def test_a_training_s_record_says_that_git_failed(of_another_user: Path) -> None:
    state = git_state(of_another_user)
    assert state and "dubious ownership" in state["failed"]
