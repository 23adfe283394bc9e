"""Detection of the GPU. nvidia-smi and rocminfo are small scripts on a PATH of their own."""

from pathlib import Path

import pytest
from make import script

from pipeline.core.errors import ToolError
from pipeline.core.hardware import Accelerator, Card, accelerator, first_gpu, main_memory

RTX = "NVIDIA GeForce RTX 4060, 8188, 580.95, 8.9"
ROCMINFO = """ROCk module is loaded
==========
HSA Agents
==========
*******
Agent 1
*******
  Name:                    AMD Ryzen 9 7950X
  Marketing Name:          AMD Ryzen 9 7950X
  Device Type:             CPU
  Pool Info:
    Pool 1
      Segment:                 GLOBAL; FLAGS: FINE GRAINED
      Size:                    65536000(0x3e80000) KB
*******
Agent 2
*******
  Name:                    gfx1100
  Marketing Name:          AMD Radeon RX 7900 XTX
  Device Type:             GPU
  Pool Info:
    Pool 1
      Segment:                 GLOBAL; FLAGS: COARSE GRAINED
      Size:                    25149440(0x17fc000) KB
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH, with /bin's cat."""
    monkeypatch.setenv("PATH", f"{tmp_path}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


def says(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.txt").write_text(text)
    script(folder / name, 'exec /bin/cat "$0.txt"')


def test_a_machine_without_a_gpu(path: Path) -> None:
    assert accelerator() is None and first_gpu() is None


def test_an_nvidia_card_with_its_driver_and_compute_capability(path: Path) -> None:
    says(path, "nvidia-smi", f"{RTX}\n")
    assert accelerator() == Accelerator("cuda", "NVIDIA GeForce RTX 4060", 8188 << 20, "580.95", "8.9")
    assert first_gpu() == Card(RTX.partition(",")[0], 8188 << 20, "cuda")


def test_a_card_that_shares_the_machines_memory_says_no_size(path: Path) -> None:
    says(path, "nvidia-smi", "NVIDIA GB10, [N/A], 580.2, 12.1\n")
    assert accelerator() == Accelerator("cuda", "NVIDIA GB10", None, "580.2", "12.1")
    assert first_gpu() == Card("NVIDIA GB10", main_memory().memory, "cuda")


def test_an_old_driver_that_does_not_know_the_compute_capability_is_asked_without_it(path: Path) -> None:
    script(
        path / "nvidia-smi",
        'case "$*" in *compute_cap*) echo Field "compute_cap" is not valid; exit 2;; esac\n'
        'echo "Tesla T4, 15360, 470.82"',
    )
    assert accelerator() == Accelerator("cuda", "Tesla T4", 15360 << 20, "470.82", None)


@pytest.mark.parametrize(
    ("visible", "asked"), [("2,0", "--id=2"), ("", None), ("-1", None), ("NoDevFiles", None)]
)
def test_the_card_is_the_first_that_is_visible(
    path: Path, monkeypatch: pytest.MonkeyPatch, visible: str, asked: str | None
) -> None:
    script(path / "nvidia-smi", f'echo "$@" > "$0.asked"; echo "{RTX}"')
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert (accelerator() is None) == (asked is None)
    if asked:
        assert asked in (path / "nvidia-smi.asked").read_text().split()


def test_a_driver_that_fails_is_not_a_machine_without_a_gpu(path: Path) -> None:
    script(path / "nvidia-smi", "echo NVIDIA-SMI has failed; exit 9")
    with pytest.raises(ToolError, match="Q-PLANNING-003"):
        accelerator()


def test_an_amd_card_is_not_the_cpu_that_rocminfo_lists_too(path: Path) -> None:
    says(path, "rocminfo", ROCMINFO)
    assert accelerator() == Accelerator(
        "rocm", "AMD Radeon RX 7900 XTX", 25149440 << 10, capability="gfx1100"
    )
    script(path / "rocminfo", "exit 1")
    assert accelerator() is None
