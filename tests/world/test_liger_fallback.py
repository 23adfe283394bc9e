"""Architectures that Liger does not know, or knows in part: with `train.loss: auto` the loss is chunked and
the run says why; with `liger` it is one sentence. Every model here is empty, so no GPU is needed.
"""

from pathlib import Path

import pytest
import torch
from liger_models import run, write_config
from train_runs import settings

from pipeline.core.errors import ToolError
from pipeline.stages.train.assembly import prepare_loss

# in a process of its own, for what Liger swaps stays for good
TRIED = """
import sys
from pathlib import Path
from pipeline.models.liger_loss import check_liger, try_liger
from pipeline.models.small_model import empty
from pipeline.models.text_config import read_text_config

def empty_model(folder):
    return empty(read_text_config(folder))

def names(model):
    return {type(part).__name__ for part in model.modules()}

for folder in map(Path, sys.argv[1:]):
    before = names(empty_model(folder))
    lacking = try_liger(folder)
    model = empty_model(folder)
    if lacking:
        assert names(model) == before, names(model) ^ before
    else:
        check_liger(model)
    print(lacking)
"""
# names that were renamed under Liger: nothing would be swapped, in silence
RENAMED = """
import transformers.models.llama.modeling_llama as code
code.Renamed = code.LlamaMLP
source = code.LlamaDecoderLayer.__init__
def init(self, config, layer_idx):
    source(self, config, layer_idx)
    self.mlp = code.Renamed(config)
code.LlamaDecoderLayer.__init__ = init
"""
FAMILIES = (
    "olmo2",
    "glm4",
    "falcon_h1",
    "qwen3_5_text",
    "gemma2",
    "gemma3_text",
    "lfm2",
    "granitemoehybrid",
    "gpt_neox",
)


def config_of(folder: Path, family: str) -> Path:
    """Write the config.json that transformers has for a family by default; return the folder."""
    from transformers import AutoConfig

    AutoConfig.for_model(family).save_pretrained(folder)
    return folder


@pytest.mark.base_cells("Liger", families=FAMILIES, says="chunked")
def test_what_liger_lacks_is_said_and_nothing_is_swapped(tmp_path: Path) -> None:
    folders = [config_of(tmp_path / family, family) for family in FAMILIES]
    llama = write_config(tmp_path / "llama", "llama")
    *lacking, of_llama = run(TRIED, *map(str, [*folders, llama])).splitlines()
    for family, sentence in zip(FAMILIES, lacking, strict=True):
        assert family in sentence
    assert of_llama == ""


def test_a_swap_that_reaches_only_a_part_is_taken_back(tmp_path: Path) -> None:
    """As if transformers had renamed a class: RMSNorm and RoPE were Liger's, the MLP was not."""
    lacking = run(RENAMED + TRIED, str(write_config(tmp_path, "llama"))).strip()
    assert "llama" in lacking and "mlp" in lacking


@pytest.mark.parametrize("family", ["gemma3_text", "olmo2", "glm4"])
def test_auto_is_chunked_and_says_why_and_liger_is_refused(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("pipeline.models.liger_loss.find_spec", lambda name: True)
    loss = prepare_loss(config_of(tmp_path, family), settings(loss="auto"), mixture=False)
    assert loss.name == "chunked" and family in loss.reason
    assert loss.reason in capsys.readouterr().out
    with pytest.raises(ToolError, match=f"Q-MODELS-014: .*{family}.*train.loss"):
        prepare_loss(tmp_path, settings(loss="liger"), mixture=False)
