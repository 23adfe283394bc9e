"""liger: its parts are in the loaded model, its loss is plain cross entropy; refused if impossible."""

from pathlib import Path

import pytest
import torch
from heads import tiny
from liger_models import COMPARE, PARTS, run, write_config

from pipeline.core.errors import ToolError
from pipeline.models.liger_loss import apply_liger, check_liger, choose_loss

LIGER = ("qwen2", "qwen3", "llama", "mistral", "granite")
# in a process of its own: Liger's patches stay for good
APPLY = """
import sys
from pathlib import Path
from transformers import AutoConfig, AutoModelForCausalLM
from pipeline.models.liger_loss import apply_liger, check_liger

for folder in map(Path, sys.argv[1:]):
    apply_liger(folder)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    check_liger(model)
    layer = model.model.layers[0]
    print(*(type(part).__name__ for part in (layer.input_layernorm, layer.post_attention_layernorm, layer.mlp, model.model.norm)))
"""  # noqa: E501


@pytest.mark.slow
@pytest.mark.base_cells("Liger", families=LIGER)
def test_the_loaded_models_are_made_of_ligers_parts(tmp_path: Path) -> None:
    folders = [str(write_config(tmp_path / kind, kind)) for kind in LIGER]
    parts = ["LigerRMSNorm LigerRMSNorm LigerSwiGLUMLP LigerRMSNorm"] * len(LIGER)
    assert run(APPLY, *folders).splitlines() == parts


def test_a_model_without_ligers_parts_is_refused() -> None:
    with pytest.raises(ToolError, match="Q-MODELS-014"):
        check_liger(tiny("qwen2"))


# unknown to Liger; known, but with another MLP
@pytest.mark.base_cells("Liger", families="model_type", says="chunked")
@pytest.mark.parametrize("model_type", ["gpt_neox", "gemma2"])
def test_an_architecture_without_all_kernels_is_refused(model_type: str, tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="Q-MODELS-014"):
        apply_liger(write_config(tmp_path, model_type))


@pytest.mark.parametrize(
    ("gpu", "triton", "wanted", "chosen"),
    [
        (True, True, "auto", "liger"),
        (True, True, "liger", "liger"),
        (True, True, "chunked", "chunked"),
        (True, False, "auto", "chunked"),
        (False, True, "auto", "chunked"),
        (False, True, "liger", "need a GPU"),
        (True, False, "liger", "need Triton"),
    ],
)
def test_the_loss_is_what_the_machine_can_do(
    gpu: bool, triton: bool, wanted: str, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr("pipeline.models.liger_loss.find_spec", lambda name: triton or None)
    if chosen.startswith("need"):
        with pytest.raises(ToolError, match=f"Q-MODELS-013.*{chosen}"):
            choose_loss(wanted)
    else:
        assert choose_loss(wanted) == chosen


@pytest.mark.slow
@pytest.mark.parametrize(("softcap", "scaling"), [("0", "1"), ("5", "1"), ("0", "0.25")])
def test_the_fused_loss_is_cross_entropy_in_tritons_interpreter(softcap: str, scaling: str) -> None:
    assert run(COMPARE, "cpu", softcap, scaling, TRITON_INTERPRET="1").startswith("equal")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_type", "parts"),
    [("qwen2", "RMSNorm SwiGLU RoPE model"), ("qwen3", "RMSNorm SwiGLU RoPE model q_norm")],
)
def test_the_kernels_are_the_plain_model_in_tritons_interpreter(
    model_type: str, parts: str, tmp_path: Path
) -> None:
    """Forward and backward, each alone and the entire model."""
    folder = write_config(tmp_path, model_type)
    *compared, last = run(PARTS, str(folder), "cpu", "1e-5", TRITON_INTERPRET="1").splitlines()
    assert ([line.split()[0] for line in compared], last) == (parts.split(), "equal")


@pytest.mark.base_cells("Liger", families=("qwen2_moe", "qwen3_moe", "mixtral"), says="chunked")
def test_a_mixtures_loss_is_chunked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_loss("auto", mixture=True) == choose_loss("chunked", mixture=True) == "chunked"
