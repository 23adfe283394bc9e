"""A CPU's bfloat16 arithmetic, and what training uses where the settings leave it to the machine."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.config.params import load_params
from pipeline.core.cpu import Device, multiplies_bfloat16, training_device
from pipeline.core.errors import ToolError
from pipeline.core.places import PROJECT


@pytest.mark.parametrize(
    ("line", "native"),
    [
        ("flags\t\t: fpu avx2 avx512f avx512_bf16 fma", True),
        ("flags\t\t: fpu avx2 amx_tile amx_bf16", True),
        ("Features\t: fp asimd bf16 i8mm", True),
        ("flags\t\t: fpu avx2 fma f16c", False),
        ("flags\t\t: fpu avx2 avx512f avx512bw avx512vl", False),  # torch makes bfloat16 of float32 there
        ("Features\t: fp asimd asimdhp", False),
        ("bugs\t\t: bf16", False),
        ("", False),
    ],
)
def test_a_cpu_says_whether_it_multiplies_bfloat16(tmp_path: Path, line: str, native: bool) -> None:
    (tmp_path / "cpuinfo").write_text(f"CPU\t: 0\nmodel name\t: Some CPU\n{line}\n\n")
    assert multiplies_bfloat16(tmp_path / "cpuinfo") is native
    assert not multiplies_bfloat16(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("allowed", "native"),
    [("AVX2", False), ("avx512_core_vnni", False), ("AVX512_CORE_BF16", True), ("ALL", True)],
)
def test_a_cpu_multiplies_what_onednn_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: str, native: bool
) -> None:
    (tmp_path / "cpuinfo").write_text("flags\t\t: fpu avx512_bf16\n")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", allowed)
    assert multiplies_bfloat16(tmp_path / "cpuinfo") is native


@pytest.mark.parametrize(
    ("device", "optimizer"),
    [
        ("cuda", "paged_adamw_8bit"),
        ("cpu", "adamw_torch"),
    ],
)
def test_auto_is_decided_by_the_device_and_what_is_named_stays(
    monkeypatch: pytest.MonkeyPatch, device: Device, optimizer: str
) -> None:
    monkeypatch.setattr("pipeline.config.params.training_device", lambda wanted: device)
    demo, named = (load_params(PROJECT / f"recipes/{name}.yaml") for name in ("demo", "qwen2.5-7b-8gb"))
    # in the file it stays auto, so another machine runs nothing again
    assert (demo.train.bnb_4bit_compute_dtype, demo.train.optim) == ("auto", "auto")
    for found in (demo.training, demo.training_on(device)):
        assert (found.bnb_4bit_compute_dtype, found.optim) == ("bfloat16", optimizer)
    found = named.training_on(device)
    assert (found.bnb_4bit_compute_dtype, found.optim) == ("bfloat16", "paged_adamw_8bit")


def test_a_device_that_was_named_is_taken_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    there = True
    torch = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: there), __version__="2.13.0+cpu")
    monkeypatch.setitem(sys.modules, "torch", torch)  # type: ignore[arg-type]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert (training_device(), training_device("gpu")) == ("cuda", "cuda")
    assert training_device("cpu") == "cpu"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""  # whoever asks torch later sees none either
    there = False
    assert training_device() == "cpu"
    with pytest.raises(ToolError, match="Q-CORE-010"):
        training_device("gpu")
