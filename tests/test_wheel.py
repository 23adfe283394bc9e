"""The wheel, installed in an environment of its own, and projects without code: two at once, and an upgrade
that changes one stage.

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
from user_project import nothing_to_do

from pipeline.core.hashing import tree_hash
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
    assert block.endswith("\nsnakemake\n")  # which is the demo: planned here
    said = run(programs, tmp_path, "bash", "-ec", block.rstrip() + " -n\nquench upgrade\n")
    assert re.search(r"^train +1$", said, re.MULTILINE) and "\nNothing would" in said
    assert (tmp_path / "my-assistant/data/raw/pydoc.jsonl").is_file()


def test_projects_without_code(programs: Path, tiny_qwen2: Path, tmp_path: Path) -> None:
    assert str(programs.parent) in run(
        programs, tmp_path, "python", "-c", "import pipeline; print(pipeline.__file__)"
    )
    for name in ("one", "two"):
        run(programs, tmp_path, "quench", "new", name)
        params = tiny.tiny_params(tiny_qwen2)
        params["quantize"]["levels"], params["evaluate"]["models"] = ["Q4_K_M"], ["F16", "Q4_K_M"]
        tiny.write_project(tmp_path / name, params)
    one, two = tmp_path / "one", tmp_path / "two"
    run(programs, two, "quench", "run", "preprocess", "train.r=8")

    # both at once: one is run to the end, the other is trained
    training = start(programs, two, "snakemake", "train")
    run(programs, one, "dvc", "add", "--quiet", "data/raw")
    run(programs, one, "snakemake")
    assert (one / "reports/index.html").is_file()
    assert training.wait() == 0, training.communicate()[0][-4000:]
    for root, rank in ((one, 4), (two, 8)):
        assert json.loads((root / "models/adapter/adapter_config.json").read_text())["r"] == rank
    assert nothing_to_do(run(programs, one, "snakemake", "-n"))
    assert "up to date" in run(programs, one, "dvc", "status")
    assert "didn't change" in run(programs, one, "dvc", "repro")
    assert not [path for path in one.rglob("*.py") if ".dvc" not in path.parts]
    gguf = (one / "models/gguf/tiny-Q4_K_M.gguf").read_bytes()
    adapter = tree_hash(one / "models/adapter")

    # another version, in which one stage is another: nothing runs before the upgrade
    package = next(programs.parent.rglob("pipeline/stages/quantize"))
    with (package / "stage.py").open("a") as file:
        file.write("\nANOTHER_VERSION = True\n")
    for words in (("snakemake", "-n"), ("python", "-m", "pipeline", "report"), ("quench", "run")):
        assert "Q-WORKFLOW-023" in run(programs, one, *words, code=2)
    said = run(programs, one, "quench", "doctor", "upgrade")
    assert [line.split()[0] for line in said.partition("Would run again:\n")[2].splitlines()][:2] == [
        "quantize",
        "parity",
    ]
    run(programs, one, "quench", "doctor", "upgrade", "--yes")
    before = recorded(one)
    run(programs, one, "snakemake")
    after = recorded(one)
    assert [stage for stage in before if after[stage] != before[stage]] == ["quantize@Q4_K_M"]
    assert (one / "models/gguf/tiny-Q4_K_M.gguf").read_bytes() == gguf
    assert tree_hash(one / "models/adapter") == adapter
    assert "up to date" in run(programs, one, "dvc", "status")
    shutil.rmtree(tmp_path, ignore_errors=True)
