"""GGUFs of Llama 3.1, 3.2 and 3.3, whose rotary positions are stretched: the base has the published settings
whose factors are the file's, and a file with others is refused.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from pipeline.config.sections import Base
from pipeline.core.errors import DataError
from pipeline.models.quantized_model import load_gguf
from pipeline.stages.base.stage import base

BASE = 500_000.0
HEAD = 8  # dimensions of a head of `tiny_gguf`


def factors(factor: float) -> Any:
    """The factors as the paper's code has them: none for short waves, all for long ones, and between."""
    waves = 2 * np.pi * BASE ** (np.arange(0, HEAD, 2) / HEAD)
    share = ((8192 / waves - 1.0) / (4.0 - 1.0)).clip(0, 1)
    return (1 / ((1 - share) / factor + share)).astype(np.float32)


def bring(folder: Path, stored: Any, quantization: str) -> Path:
    """Run stage base on a tiny Llama with these factors; the base's folder."""
    file = tiny.tiny_gguf(
        folder / "model.gguf", tensors={"rope_freqs.weight": stored}, llama__rope__freq_base=BASE
    )
    chosen = Base(model=str(file), quantization=quantization)
    base(chosen, target=folder / "models/base", record=folder / "models/base.json")
    return folder / "models/base"


@pytest.mark.parametrize("quantization", ["gguf", "nf4"])
@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_the_base_has_the_published_settings(factor: float, quantization: str, tmp_path: Path) -> None:
    folder = bring(tmp_path, factors(factor), quantization)
    assert json.loads((folder / "config.json").read_text())["rope_parameters"] == {
        "rope_type": "llama3",
        "rope_theta": BASE,
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    if quantization == "gguf":
        model = load_gguf(folder, compute_dtype=torch.float32, device="cpu")
        wanted = BASE ** (-np.arange(0, HEAD, 2) / HEAD) / factors(factor)
        assert model.model.rotary_emb.inv_freq.numpy() == pytest.approx(wanted, rel=1e-5)


@pytest.mark.base_refused("A GGUF with other rotary factors than those of Llama 3", "Q-MODELS-005")
@pytest.mark.parametrize("quantization", ["gguf", "nf4"])
@pytest.mark.parametrize(
    "stored", [factors(16.0), np.ones(4, np.float32), factors(8.0)[:3]], ids=["16", "ones", "short"]
)
def test_other_factors_are_refused(stored: Any, quantization: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Q-MODELS-005"):
        bring(tmp_path, stored, quantization)


def test_a_config_with_other_positions_than_the_file_is_refused(tmp_path: Path) -> None:
    folder = bring(tmp_path, factors(8.0), "gguf")
    config = json.loads((folder / "config.json").read_text())
    for changed in ({"factor": 32.0}, {"rope_type": "default"}):
        config["rope_parameters"] |= changed
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(DataError, match="Q-MODELS-005"):
            load_gguf(folder, compute_dtype=torch.float32, device="cpu")
