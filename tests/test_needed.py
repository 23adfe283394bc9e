"""What a run skipped for want of a program is counted at its end, and can be run once it is installed."""

import os
import re
import sys
from pathlib import Path

import pytest
from make import ended, script

TESTS = """
import needed, pytest

@needed.programs("quench-tool")
def test_one():
    pass

@pytest.fixture
def server():
    if reason := needed.absent("sh", "quench-tool"):
        pytest.skip(reason)

def test_other(server):
    pass

@pytest.mark.skip(reason="for another reason")
def test_third():
    pass

def test_plain():
    pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "1"])
def test_skips_are_counted_and_run_later(tmp_path: Path, workers: str) -> None:
    programs = tmp_path / "bin"
    (tmp_path / "test_some.py").write_text(TESTS)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(Path(__file__).parent)}

    def run(*options: str) -> str:
        plain = ["-p", "needed", "-p", "no:hydra_pytest", "-c", os.devnull, f"--rootdir={tmp_path}"]
        plain += ["--numprocesses", workers, "-o", f"cache_dir={tmp_path / 'cache'}"]
        command = [sys.executable, "-m", "pytest", *plain, *options]
        return ended(command, cwd=tmp_path, env=environment).stdout

    output = run("test_some.py", "--begin-within", "0")
    assert re.search(r"\b4 skipped", output) and re.search(r" 4 +need more time", output), output
    output = run("test_some.py")
    assert re.search(r"\b3 skipped", output) and re.search(r" 2 +need quench-tool", output), output
    script(programs / "quench-tool", "")
    output = run("--unmeasured")
    assert "2 passed" in output and "need" not in output, output
