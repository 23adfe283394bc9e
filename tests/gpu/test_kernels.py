"""On a GPU, with the real kernels: Liger's loss is plain cross entropy, and the model with its parts answers
as the plain one.
"""

from pathlib import Path

import pytest
import test_liger as cpu

pytestmark = pytest.mark.gpu

# plain first: Liger's patches stay for good
SAME_ANSWERS = """
import sys
import torch
from pathlib import Path
from transformers import AutoConfig, AutoModelForCausalLM
from pipeline.models.liger_loss import apply_liger, check_liger

folder, found = Path(sys.argv[1]), []
ids = torch.arange(40, device="cuda")[None]
positions = torch.cat([torch.arange(15), torch.arange(25)])[None].cuda()
for patched in (False, True):
    if patched:
        apply_liger(folder)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).to("cuda", torch.float32)
    if patched:
        check_liger(model)
    logits = model(ids, position_ids=positions, use_cache=False).logits
    logits.square().sum().backward()
    found.append((logits.detach(), model.model.layers[0].mlp.up_proj.weight.grad.clone()))
(logits, gradient), (theirs, their_gradient) = found
assert torch.allclose(logits, theirs, rtol=1e-3, atol=1e-4), (logits - theirs).abs().max()
assert torch.allclose(gradient, their_gradient, rtol=1e-2, atol=1e-3 * gradient.abs().max()), (gradient - their_gradient).abs().max()
print("equal")
"""  # noqa: E501


@pytest.mark.parametrize(("softcap", "scaling"), [("0", "1"), ("5", "1"), ("0", "0.25")])
def test_the_fused_loss_is_cross_entropy(softcap: str, scaling: str) -> None:
    assert cpu.run(cpu.COMPARE, "cuda", softcap, scaling).startswith("equal")


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3", "llama", "mistral"])
def test_rmsnorm_rope_and_swiglu_answer_as_the_plain_model(model_type: str, tmp_path: Path) -> None:
    assert cpu.run(SAME_ANSWERS, str(cpu.write_config(tmp_path, model_type))).startswith("equal")
