"""pipeline.stages.train.run and hardware: a whole record that names neither the machine nor its user."""

import getpass
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.hardware import cpu_name, hardware, machine, usable_cores
from pipeline.stages.train.run import run_record

SMI = """#!/bin/sh
test "$1" = "--query-gpu=name,memory.total,driver_version,compute_cap" || exit 9
printf 'NVIDIA H200, 143771, 570.1, 9.0\\nNVIDIA GB10, [N/A], 580.2, 12.1\\n'
"""


def git(root: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(root), *arguments], check=True, capture_output=True)


def recorded(root: Path, part: str, argv: Sequence[str] = ()) -> Any:
    """A part of the record."""
    return run_record(root, argv=argv or ["train"], seeds={}, hashes={})[part]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init")
    for name in ("params.yaml", "dvc.lock"):
        (tmp_path / name).write_text("1")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    return tmp_path


def test_the_record_is_json_and_names_nobody(repository: Path) -> None:
    argv = ["/home/me/x/pipeline/__main__.py", "train", "--root", str(repository)]
    record = run_record(repository, argv=argv, seeds={"train": 42}, hashes={"data/tokens": "ab" * 32})
    text = json.dumps(record, allow_nan=False)
    assert set(record) == {"hardware", "os", "python", "versions", "seeds", "command", "git", "hashes"}
    assert record["command"] == ["python", "-m", "pipeline", "train", "--root", f"…/{repository.name}"]
    assert record["python"] == platform.python_version()
    assert record["seeds"] == {"train": 42}
    assert record["hashes"] == {"data/tokens": "ab" * 32}
    for secret in (
        f'"{platform.node()}"',
        f"/{getpass.getuser()}/",
        str(repository),
        str(Path.home()),
        sys.executable,
    ):
        assert secret not in text


def test_versions_are_those_of_everything_that_is_pinned(tmp_path: Path) -> None:
    found = recorded(tmp_path, "versions")
    assert {
        "torch",
        "transformers",
        "bitsandbytes",
        "liger-kernel",
        "tensorboard",
        "dvc",
        "orjson",
        "quench",
    } <= set(found)
    assert "pytest" not in found  # of the extras
    assert found["peft"] == "0.21.2"
    assert None not in found.values()


COMMANDS = [
    (["/usr/bin/quench", "config", "use", "demo"], ["quench", "config", "use", "demo"]),
    (["x/__main__.py", "evaluate@Q4_K_M"], ["python", "-m", "pipeline", "evaluate@Q4_K_M"]),
    (["q", "--root=/home/me/p q/r", "a=b/c", "/r"], ["q", "--root=…/r", "a=b/c", "…/r"]),
    (["q", "data/raw", "../other"], ["q", "data/raw", "../other"]),
]


@pytest.mark.parametrize(("argv", "words"), COMMANDS)
def test_the_command_without_absolute_paths(tmp_path: Path, argv: list[str], words: list[str]) -> None:
    assert recorded(tmp_path, "command", argv) == words


def test_the_commit_and_whether_files_differ(repository: Path) -> None:
    clean = recorded(repository, "git")
    assert clean is not None
    assert len(clean["commit"]) == 40
    assert clean["dirty"] is False
    (repository / "new.txt").write_text("untracked")
    (repository / "dvc.lock").write_text("2")  # stages write it
    assert recorded(repository, "git") == clean
    (repository / "params.yaml").write_text("2")
    assert recorded(repository, "git") == clean | {"dirty": True}


def test_no_repository_and_no_commit_are_none_and_no_git_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert recorded(tmp_path, "git") is None
    git(tmp_path, "init")
    assert recorded(tmp_path, "git") is None  # no commit yet
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "not on PATH" in recorded(tmp_path, "git")["failed"]


def test_the_hardware_of_this_machine() -> None:
    found = hardware()
    assert found["cpu"]
    assert 1 <= found["cores"] <= found["cores_of_the_machine"] == os.cpu_count()
    assert found["memory_bytes"] > 1 << 28


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("CPU\t: 0\nmodel name\t: AMD EPYC 9B14\n", "AMD EPYC 9B14"),
        ("Model\t\t: Raspberry Pi 5\n", "Raspberry Pi 5"),
    ],
)
def test_the_cpu_is_named_by_itself(tmp_path: Path, text: str, name: str) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    assert cpu_name(tmp_path / "cpuinfo") == name


@pytest.mark.parametrize(
    ("flags", "named"),
    [("sse2 avx2 fma", "avx2"), ("avx2 avx512f avx512_bf16 fma", "avx512_bf16"), ("sse2", None)],
)
def test_machines_of_one_name_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, named: str | None
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "cpuinfo").write_text(f"model name\t: AMD EPYC\nflags\t\t: {flags}\n")
    assert machine(tmp_path / "cpuinfo").split(", ") == [
        "AMD EPYC",
        *([named] if named else []),
        f"{usable_cores()} cores",
    ]
    (tmp_path / "nvidia-smi").write_text(SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert machine(tmp_path / "cpuinfo").split(", ")[-2:] == ["NVIDIA H200", "NVIDIA GB10"]


def test_gpus_as_the_driver_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert hardware()["gpus"] == []
    tool.write_text(SMI)
    tool.chmod(0o755)
    assert hardware()["gpus"] == [
        {"name": "NVIDIA H200", "memory_bytes": 143771 << 20, "driver": "570.1"},
        {"name": "NVIDIA GB10", "memory_bytes": None, "driver": "580.2"},
    ]
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert hardware()["gpus"] is None  # not "none": it could not be found out
