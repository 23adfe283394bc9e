"""An extra comes and goes with its folder: without it the rest works, and what asks for it is told so."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from make import change_params, ended, full_params, ran
from user_project import BIN, copy_tracked

from pipeline.core.extras import extras

# what asks for each extra: words for `quench`, or settings
VERBS = {
    "judge": "judge a.gguf b.gguf",
    "manual": "doctor docs",
    "pairs": "data pairs data/raw/own.jsonl F16",
    "publish": "ship Q4_K_M --push me/model",
    "remote": "remote status host",
    "runs": "status --compare HEAD .",
    "signing": "ship Q4_K_M --sign quench.key",
    "sweep": "run sweep space.yaml",
    "watch": "watch",
}
SETTINGS: dict[str, Mapping[str, Any]] = {
    "compare": {"compare": {"seeds": [42, 43]}},
    "distill": {"quantize": {"distill": ["Q4_K_M"]}},
    "harness": {"evaluate": {"harness": ["own_task"]}},
    "trackers": {"train": {"report_to": ["wandb"]}},
}
FAST = "compare"  # the one that most of the core meets: a stage, settings, a strategy of the report
EACH = [pytest.param(name, marks=[] if name == FAST else pytest.mark.slow) for name in extras()]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this repository, with rows and a params.yaml of all keys."""
    root = copy_tracked(tmp_path_factory.mktemp("tree"))
    (root / "data/raw").mkdir(parents=True, exist_ok=True)
    (root / "data/raw/a.jsonl").write_text('{"text": "A row."}\n')
    (root / "params.yaml").write_text(full_params(), encoding="utf-8")
    ran(["git", "init", "--quiet"], cwd=root)
    return root


@pytest.fixture
def without(tree: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """The copy without one extra."""
    folder = tree / "pipeline/extras" / request.param
    shutil.move(folder, tmp_path)
    yield tree
    shutil.rmtree(folder, ignore_errors=True)
    shutil.move(tmp_path / folder.name, folder)


def run(tree: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """A command of this environment with the copy's code, or `quench`."""
    programs = {"quench": (sys.executable, "-m", "pipeline.cli")}
    program = programs.get(words[0], (str(BIN / words[0]),))
    return ended((*program, *words[1:]), cwd=tree, env=os.environ | {"PYTHONPATH": str(tree)})


@pytest.mark.parametrize("without", EACH, indirect=True)
def test_without_an_extra_the_rest_works(without: Path) -> None:
    shown = run(without, "quench", "--help")
    assert shown.returncode == 0 and "Traceback" not in shown.stderr, shown.stderr
    assert run(without, "quench", "config", "show").returncode == 0
    planned = run(without, "snakemake", "-n")
    assert planned.returncode == 0, planned.stdout + planned.stderr
    assert re.search(r"^train +1\b", planned.stdout, re.MULTILINE)
    checked = run(without, "lint-imports", "--no-cache")
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("without", EACH, indirect=True)
def test_what_asks_for_an_extra_that_is_not_there_is_told_so(
    without: Path, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.params["without"]
    if name in SETTINGS:
        before = (without / "params.yaml").read_text(encoding="utf-8")
        change_params(without, **SETTINGS[name])
        asked = run(without, "quench", "config", "show")
        (without / "params.yaml").write_text(before, encoding="utf-8")
    else:
        asked = run(without, "quench", *VERBS[name].split())
    assert asked.returncode == 2 and asked.stderr.startswith("quench: Q-CORE-017: "), asked.stderr
    assert asked.stderr.count("\n") == 1


def test_an_extra_that_comes_is_found(tree: Path) -> None:
    folder = tree / "pipeline/extras/greeting"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from pipeline.core.extras import Extra\n\nEXTRA = Extra(page='', verbs='verb')\n"
    )
    (folder / "verb.py").write_text(
        "from pipeline.commands.topics.options import topic\n\n"
        "app = topic()\n\n\n"
        "@app.command()\n"
        "def greet() -> None:\n"
        '    """Greet whoever asks."""\n'
        "    print('good day')\n"
    )
    try:
        assert "Greet whoever asks." in run(tree, "quench", "--help").stdout
        assert run(tree, "quench", "greet").stdout == "good day\n"
    finally:
        shutil.rmtree(folder)


def test_each_extra_is_asked_for_above() -> None:
    assert sorted([*VERBS, *SETTINGS]) == [*extras()]
