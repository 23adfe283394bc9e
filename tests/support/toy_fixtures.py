"""The toy project (`tests/toy`): fresh, built, copied, cloned."""

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
from forked import SERVER
from toy_project import Toy, forked, git, write_toy
from user_project import BIN


@pytest.fixture(scope="module")
def toy_tools() -> Iterable[None]:
    """Programs of this environment, and stages that start as forks of one process."""
    patch = pytest.MonkeyPatch()
    patch.setenv("PATH", f"{BIN}{os.pathsep}{os.environ['PATH']}")
    patch.setenv(SERVER, forked().socket)
    yield
    patch.undo()


@pytest.fixture(scope="module")
def fresh_toy(toy_tools: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy in git and DVC with its raw data tracked and a remote, nothing built. Read only."""
    from dvc.repo import Repo

    root = write_toy(tmp_path_factory.mktemp("toy") / "toy")
    with Repo(str(root)) as repo:
        repo.add(str(root / "data/raw"))
        with repo.config.edit() as config:
            config["core"] |= {"remote": "store", "analytics": False}
            config["remote"]["store"] = {"url": str(root.parent / "store")}
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "toy")
    return root


@pytest.fixture(scope="module")
def built_toy(fresh_toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy built by `snakemake` on two cores, recorded, committed and pushed. Read only.

    Its levels wait for each other, so it is only built where they run side by side.
    """
    root = tmp_path_factory.mktemp("built") / "toy"
    shutil.copytree(fresh_toy, root)
    (root / "together").touch()
    done = Toy(root).snakemake("-c2")
    assert done.returncode == 0, done.stderr
    (root / "together").unlink()
    git(root, "add", "dvc.lock")
    git(root, "commit", "--quiet", "--message", "built")
    Toy(root)._repo(lambda repo: repo.push())
    return root


@pytest.fixture
def toy(built_toy: Path, tmp_path: Path) -> Toy:
    """A copy of the built toy, dates kept."""
    shutil.copytree(built_toy, tmp_path / "toy")
    return Toy(tmp_path / "toy")


@pytest.fixture
def clone(built_toy: Path, tmp_path: Path) -> Toy:
    """A clone of the built toy without any artifact."""
    subprocess.run(["git", "clone", "--quiet", built_toy, tmp_path / "clone"], check=True)
    return Toy(tmp_path / "clone")
