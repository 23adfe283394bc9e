"""An adapter's GGUF has the scale that was trained, or is refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from qwen2_variants import random_adapter

from pipeline.core.errors import DataError
from pipeline.gguf.header import read_header
from pipeline.llamacpp.converters import lora_to_gguf
from pipeline.llamacpp.tools import Toolchain
from pipeline.stages.parity.served_files import lora_weights


def changed(folder: Path, **settings: Any) -> Path:
    """A random adapter whose settings say something else."""
    random_adapter(folder)
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    return folder


def test_rank_stabilized_lora_is_served_at_its_own_scale(
    tiny_qwen2: Path, tools: Toolchain, tmp_path: Path
) -> None:
    plain, stable = changed(tmp_path / "plain"), changed(tmp_path / "stable", use_rslora=True)
    for adapter in (plain, stable):
        lora_to_gguf(tools, adapter, tiny_qwen2, tmp_path / f"{adapter.name}.gguf", "F16")
        assert lora_weights(tiny_qwen2, adapter, tmp_path / f"{adapter.name}.gguf").verdict == "pass"
    known = json.loads((stable / "adapter_config.json").read_text())
    alphas = [
        read_header(tmp_path / f"{name}.gguf").fields["adapter.lora.alpha"] for name in ("plain", "stable")
    ]
    # llama.cpp divides by r; α ÷ √r is what was trained
    assert alphas == [known["lora_alpha"], pytest.approx(known["lora_alpha"] * known["r"] ** 0.5)]
    shutil.copy(tmp_path / "plain.gguf", tmp_path / "stable.gguf")
    assert lora_weights(tiny_qwen2, stable, tmp_path / "stable.gguf").verdict == "fail"


@pytest.mark.parametrize(
    "settings",
    [
        {"use_dora": True},
        {"alpha_pattern": {"q_proj": 3}},
        {"use_rslora": True, "rank_pattern": {"q_proj": 2}},
    ],
)
def test_what_such_a_file_can_not_hold_is_refused(
    settings: dict[str, Any], tiny_qwen2: Path, tools: Toolchain, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="Q-LLAMACPP-021"):
        lora_to_gguf(tools, changed(tmp_path / "one", **settings), tiny_qwen2, tmp_path / "one.gguf", "F16")
    assert not (tmp_path / "one.gguf").exists()
