"""A project that is finished, pushed, cloned and pulled has nothing to do, whatever its recipe makes: by real
stages in each graph, and with stand-ins for what the stages of every kind of recipe write.
"""

import json
import subprocess
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path

import pytest
from forked import Forked
from make import quench as invoke
from user_project import nothing_to_do, quench, user_project

from pipeline.workflow.state.lockfile import recorded_stages, stages_of

pytestmark = pytest.mark.slow
# empty if nothing is rejected or changed and no row is like another, and without rows that are held out
MAY_BE_EMPTY = (
    *("data/rejects.jsonl", "data/changes.jsonl", "data/clusters.jsonl"),
    *("data/final/val.jsonl", "data/final/test.jsonl"),
)
# each has outputs, or methods of training, that no other has
RECIPES = (
    *("demo", "demo-gguf", "demo-scales", "demo-dpo", "demo-grpo"),
    *("demo-distill", "demo-level-distill", "demo-strategies"),
)


@pytest.fixture(scope="module")
def forked() -> Iterator[Forked]:
    server = Forked()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def _free(monkeypatch: pytest.MonkeyPatch) -> None:
    # the lock of a project lasts until nobody holds its file
    monkeypatch.setattr("pipeline.workflow.prepare._held", deque(maxlen=0))


def git(root: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=root, check=True, capture_output=True)


def pushed(root: Path) -> Path:
    """The project with all that is there recorded, committed and pushed."""
    from dvc.repo import Repo

    with chdir(root), Repo(str(root)) as repo:
        repo.add("data/raw")
        repo.commit(force=True)
        with repo.config.edit() as config:
            config["core"]["remote"] = "store"
            config["remote"]["store"] = {"url": str(root.parent / "store")}
    with chdir(root), Repo(str(root)) as repo:
        repo.push()
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "finished")
    return root


def cloned(root: Path) -> Path:
    """A clone of the project beside it."""
    git(root.parent, "clone", "--quiet", str(root), "clone")
    return root.parent / "clone"


def worktree(root: Path) -> Path:
    """A worktree of the project beside it."""
    git(root, "worktree", "add", "--quiet", str(root.parent / "worktree"))
    return root.parent / "worktree"


def check_pulled(copy: Path, forked: Forked) -> None:
    """Pull what belongs to a copy of a finished project, and see that neither tool has anything to do.

    DVC doesn't keep the base's weights, which no stage needs that has run.
    """
    from dvc.repo import Repo

    assert forked.run("snakemake", "-n", cwd=copy).returncode == 3  # no data yet: no traceback
    with chdir(copy), Repo(str(copy)) as repo:
        repo.pull()
        status = repo.status()
    assert status.pop("base") == [{"changed outs": {"models/base": "deleted"}}]
    assert all(found == [{"changed deps": {"models/base": "deleted"}}] for found in status.values()), status
    planned = forked.run("snakemake", "-n", cwd=copy)
    assert planned.returncode == 0 and nothing_to_do(planned.stdout + planned.stderr), planned.stderr
    checked = quench(copy, "model", "verify")
    assert checked.exit_code == 0 and "none is damaged" in checked.output
    # what is lost comes back from the cache
    lost = [copy / name for name in MAY_BE_EMPTY if (copy / name).exists()]
    for file in lost:
        file.unlink()
    planned = forked.run("snakemake", "-n", cwd=copy)
    assert planned.returncode == 0 and nothing_to_do(planned.stdout + planned.stderr), planned.stderr
    assert all(file.exists() for file in lost)


@pytest.mark.parametrize("made", ["finished", "served", "tuned"])
def test_a_copy_of_what_stages_made_has_nothing_to_do(
    made: str, request: pytest.FixtureRequest, forked: Forked, tmp_path: Path
) -> None:
    root = pushed(user_project(tmp_path / "project", request.getfixturevalue(made)))
    assert any(not (root / name).stat().st_size for name in MAY_BE_EMPTY)
    check_pulled(cloned(root), forked)


@pytest.mark.parametrize(
    ("recipe", "copied"), [*((recipe, cloned) for recipe in RECIPES), ("demo", worktree)]
)
def test_a_copy_of_a_recipe_s_project_has_nothing_to_do(
    recipe: str, copied: Callable[[Path], Path], forked: Forked, tmp_path: Path
) -> None:
    """Of every output there is a stand-in, which is empty if the stage's own may be."""
    root = tmp_path / "project"
    assert invoke("new", root, "--recipe", recipe).exit_code == 0
    (root / "data/raw/chats.jsonl").write_text(json.dumps({"text": "A row."}) + "\n")
    for stage, entry in stages_of(root).items():
        for name in entry.outs if stage != "settings" else ():
            is_folder = not Path(name).suffix
            file = root / name / "part.bin" if is_folder else root / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("" if name in MAY_BE_EMPTY else f"{name} of {stage}")
    copy = copied(pushed(root))
    assert recorded_stages(copy).keys() == stages_of(root).keys()
    check_pulled(copy, forked)
