"""What a run skipped for want of a program is counted at its end, and can be run once it is installed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("workers", ["0", "1"])
def test_skips_are_counted_and_run_later(tmp_path: Path, workers: str) -> None:
    file, programs = tmp_path / "test_some.py", tmp_path / "bin"
    file.write_text(TESTS)
    programs.mkdir()
    environment = os.environ | {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(Path(__file__).parent),
    }

    def run(*options: str) -> str:
        plain = ["-p", "needed", "-p", "no:hydra_pytest", "-c", os.devnull, f"--rootdir={tmp_path}"]
        plain += ["--numprocesses", workers, "-o", f"cache_dir={tmp_path / 'cache'}"]
        return subprocess.run(
            [sys.executable, "-m", "pytest", *plain, *options],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env=environment,
        ).stdout

    output = run("test_some.py", "--begin-within", "0")
    assert re.search(r"\b4 skipped", output) and re.search(r" 4 +need more time", output), output
    output = run("test_some.py")
    assert re.search(r"\b3 skipped", output) and re.search(r" 2 +need quench-tool", output), output
    (programs / "quench-tool").write_text("#!/bin/sh\n")
    (programs / "quench-tool").chmod(0o755)
    output = run("--unmeasured")
    assert "2 passed" in output and "need" not in output, output
