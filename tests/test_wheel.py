"""The wheel, installed in an environment of its own, and projects without code: either tool goes on where the
other stopped, an upgrade changes one stage, and two run at once.

The environment gets Quench from the wheel alone; the packages that it needs are those of this environment
(tests/test_installed.py installs them).
"""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest
import tiny
import yaml

from pipeline.core.hashing import file_hash, tree_hash
from pipeline.core.places import PROJECT
from pipeline.llamacpp.tools import DEFAULT_HOME

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment with the wheel."""
    folder = tmp_path_factory.mktemp("installed")
    python = folder / "env/bin/python"
    venv.create(folder / "env", with_pip=False, symlinks=True)
    pip = [sys.executable, "-m", "pip"]
    build = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    subprocess.run([*pip, *build, str(PROJECT)], check=True)
    (wheel,) = folder.glob("quench-*.whl")
    install = ["--python", str(python), "install", "--quiet", "--no-deps", str(wheel)]
    subprocess.run([*pip, *install], check=True)
    # this environment's packages without its .pth files, one of which is this checkout's installation
    (packages,) = folder.glob("env/lib/python*/site-packages")
    (packages / "packages.pth").write_text(sysconfig.get_path("purelib") + "\n")
    for name in ("snakemake", "dvc"):
        program = folder / "env/bin" / name
        program.write_text(f"#!{python}\nimport runpy\nrunpy.run_module('{name}', run_name='__main__')\n")
        program.chmod(0o755)
    return folder / "env/bin"


def run(programs: Path, root: Path, *words: str, code: int = 0) -> str:
    done = start(programs, root, *words)
    said, _ = done.communicate()
    assert done.returncode == code, said[-4000:]
    return said


def start(programs: Path, root: Path, *words: str) -> "subprocess.Popen[str]":
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {
        "PATH": f"{programs}{os.pathsep}/usr/bin{os.pathsep}/bin",
        "LLAMA_CPP_HOME": os.environ.get("LLAMA_CPP_HOME") or str(DEFAULT_HOME),
    }
    return subprocess.Popen(
        words, cwd=root, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def recorded(root: Path) -> dict[str, Any]:
    """dvc.lock's stages."""
    return dict(yaml.safe_load((root / "dvc.lock").read_text())["stages"])


def test_what_the_page_says_makes_a_project(programs: Path, tmp_path: Path) -> None:
    page = (PROJECT / "docs/projects.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^## Make a project\n\n```sh\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert block.endswith("\nquench run\n")  # which is the demo: planned here
    said = run(programs, tmp_path, "bash", "-ec", block.rstrip() + " -n\nquench doctor upgrade\n")
    assert re.search(r"^train +1\b", said, re.MULTILINE) and "Nothing would run again." in said
    assert (tmp_path / "my-assistant/data/raw/pydoc.jsonl").is_file()


def new_project(programs: Path, folder: Path, name: str, base: Path) -> Path:
    """Make a project by `quench new`, with the tiny model's settings and chats."""
    run(programs, folder, "quench", "new", name)
    params = tiny.tiny_params(base)
    params["quantize"]["levels"], params["evaluate"]["models"] = ["Q4_K_M"], ["F16", "Q4_K_M"]
    return tiny.write_project(folder / name, params)


def test_a_project_without_code(programs: Path, tiny_qwen2: Path, tmp_path: Path) -> None:
    words = ("python", "-c", "import pipeline; print(pipeline.__file__)")
    assert str(programs.parent) in run(programs, tmp_path, *words)
    root = new_project(programs, tmp_path, "one", tiny_qwen2)
    run_in_turns(programs, root)
    assert "didn't change" in run(programs, root, "dvc", "repro")
    assert not [path for path in root.rglob("*.py") if ".dvc" not in path.parts]
    upgrade_one_stage(programs, root)
    shutil.rmtree(tmp_path, ignore_errors=True)


@pytest.mark.exhaustive
def test_two_projects_at_once_and_other_chats(programs: Path, tiny_qwen2: Path, tmp_path: Path) -> None:
    one, two = (new_project(programs, tmp_path, name, tiny_qwen2) for name in ("one", "two"))
    run(programs, two, "quench", "run", "preprocess", "train.r=8")
    training = start(programs, two, "snakemake", "train")
    run_in_turns(programs, one)
    assert training.wait() == 0, training.communicate()[0][-4000:]
    for root, rank in ((one, 4), (two, 8)):
        assert json.loads((root / "models/adapter/adapter_config.json").read_text())["r"] == rank
    change_the_chats(programs, one)
    shutil.rmtree(tmp_path, ignore_errors=True)


def run_in_turns(programs: Path, root: Path) -> None:
    """Run a project to its report, each tool going on where the other stopped."""
    run(programs, root, "git", "init", "--quiet")
    run(programs, root, "dvc", "add", "--quiet", "data/raw")
    run(programs, root, "git", "add", "--all")
    run(programs, root, "git", "commit", "--quiet", "--message", "start")
    log = run(programs, root, "dvc", "repro", "preprocess")
    assert all(f"Running stage '{stage}'" in log for stage in ("base", "curate", "preprocess"))
    log = run(programs, root, "snakemake", "train")
    assert "1 of 1 jobs" in log and not (root / "models/merged").exists()
    trained = tree_hash(root / "models/adapter")
    log = run(programs, root, "dvc", "repro")
    assert "Running stage 'merge'" in log and "Running stage 'train'" not in log
    assert "Nothing to be done" in run(programs, root, "snakemake", "-n")
    assert "up to date" in run(programs, root, "dvc", "status")
    assert (root / "reports/index.html").is_file()
    changed = {line[3:] for line in run(programs, root, "git", "status", "--porcelain").splitlines()}
    assert changed <= {"dvc.lock", "data/raw.dvc", "params.lock.yaml"}  # params.yaml was edited above
    run(programs, root, "dvc", "repro", "--force", "--single-item", "train")
    assert tree_hash(root / "models/adapter") == trained  # by either tool


def upgrade_one_stage(programs: Path, root: Path) -> None:
    """Another version, in which one stage is another: nothing runs before the upgrade, then that stage."""
    gguf, adapter = file_hash(root / "models/gguf/tiny-Q4_K_M.gguf"), tree_hash(root / "models/adapter")
    package = next(programs.parent.rglob("pipeline/stages/quantize"))
    with (package / "stage.py").open("a") as file:
        file.write("\nANOTHER_VERSION = True\n")
    for words in (("snakemake", "-n"), ("python", "-m", "pipeline", "report"), ("quench", "run")):
        assert "Q-WORKFLOW-023" in run(programs, root, *words, code=2)
    said = run(programs, root, "quench", "doctor", "upgrade")
    assert [line.split()[0] for line in said.partition("Would run again:\n")[2].splitlines()][:2] == [
        "quantize",
        "parity",
    ]
    run(programs, root, "quench", "doctor", "upgrade", "--yes")
    before = recorded(root)
    run(programs, root, "snakemake")
    after = recorded(root)
    assert [stage for stage in before if after[stage] != before[stage]] == ["quantize@Q4_K_M"]
    assert file_hash(root / "models/gguf/tiny-Q4_K_M.gguf") == gguf
    assert tree_hash(root / "models/adapter") == adapter
    assert "up to date" in run(programs, root, "dvc", "status")


def change_the_chats(programs: Path, root: Path) -> None:
    """A new raw file without a new training row runs curation and report alone; with new rows it trains."""
    trained = tree_hash(root / "models/adapter")
    chats = (root / "data/raw/chats.jsonl").read_text(encoding="utf-8")
    (root / "data/raw/more.jsonl").write_text(chats, encoding="utf-8")
    log = run(programs, root, "snakemake")
    assert "80 rows read, 40 kept" in log
    for stage in ("preprocess", "train", "merge", "convert", "parity"):
        restored = f"{stage}: nothing it depends on has changed: its outputs are back from DVC's cache"
        assert restored in log
    assert "up to date" in run(programs, root, "dvc", "status")
    assert tree_hash(root / "models/adapter") == trained

    rows = chats.replace("plus", "and then also").replace("Antwort", "réponse")
    (root / "data/raw/more.jsonl").write_text(rows, encoding="utf-8")
    log = run(programs, root, "snakemake", "train")
    assert "80 rows read, 80 kept" in log
    assert "train: nothing it depends on" not in log
    assert tree_hash(root / "models/adapter") != trained
