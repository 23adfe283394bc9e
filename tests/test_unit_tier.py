"""`pytest --unit`: whatever imports PyTorch or DVC or starts a process is left out at that moment, however it
does it; the rest runs.
"""

import re
import sys
from pathlib import Path

from make import ended

CONFTEST = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import unit_tier
unit_tier.begin()
"""
TESTS = """
import multiprocessing, os, subprocess, sys
from importlib.util import find_spec

def test_plain():
    assert find_spec("torch") is not None

def test_torch():
    try:
        import torch
    except Exception:
        pass

def test_part_of_torch():
    from torch.nn import functional

def test_transformers():
    from transformers import AutoTokenizer

def test_dvc():
    from dvc.repo import Repo

def test_process():
    subprocess.run(["true"])

def test_fork():
    if os.fork() == 0:
        os._exit(0)

def test_pool():
    multiprocessing.get_context("spawn").Process(target=print).start()
"""


def test_torch_and_processes_leave_the_unit_tier(tmp_path: Path) -> None:
    for name, text in {
        "conftest.py": CONFTEST,
        "test_some.py": TESTS,
        "test_file.py": "import torch\n\ndef test_any():\n    pass\n",
    }.items():
        (tmp_path / name).write_text(text)
    options = ["-rs", "-v", "-p", "no:cacheprovider", "-p", "no:hydra_pytest", "-c", "/dev/null"]
    command = [sys.executable, "-m", "pytest", *options, f"--rootdir={tmp_path}", str(tmp_path)]
    done = ended(command, cwd=tmp_path)
    assert re.findall(r"::(\w+) PASSED", done.stdout) == ["test_plain"], done.stdout
    assert "imports torch" in done.stdout and "os.fork" in done.stdout
