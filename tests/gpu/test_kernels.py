"""On a GPU, real kernels: Liger's loss is plain cross entropy; with its parts, the model answers the same."""

from pathlib import Path

import liger_models as cpu
import pytest

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("softcap", "scaling"), [("0", "1"), ("5", "1"), ("0", "0.25")])
def test_the_fused_loss_is_cross_entropy(softcap: str, scaling: str) -> None:
    assert cpu.run(cpu.COMPARE, "cuda", softcap, scaling).startswith("equal")


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3", "llama", "mistral"])
def test_rmsnorm_rope_and_swiglu_answer_as_the_plain_model(model_type: str, tmp_path: Path) -> None:
    folder = cpu.write_config(tmp_path, model_type)
    assert cpu.run(cpu.PARTS, str(folder), "cuda", "1e-2").splitlines()[-1] == "equal"
