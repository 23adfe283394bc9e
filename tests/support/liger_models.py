"""Liger's kernels against plain PyTorch, in a process of its own; and configurations of tiny models."""

import json
import os
import sys
from pathlib import Path

from make import ended

from pipeline.core.places import PROJECT

# in Triton's interpreter: its kernels on a CPU
COMPARE = """
import sys
import torch
from types import SimpleNamespace
from pipeline.models.liger_loss import fused_loss

device, softcap, scaling = sys.argv[1], float(sys.argv[2]) or None, float(sys.argv[3])
torch.manual_seed(0)
hidden, vocabulary, tokens = 32, 160, 24
head = torch.nn.Linear(hidden, vocabulary, bias=False).to(device).requires_grad_(False)
states = torch.randn(1, tokens, hidden, device=device, requires_grad=True)
labels = torch.randint(0, vocabulary, (1, tokens), device=device)
labels[0, :7] = -100
config = SimpleNamespace(final_logit_softcapping=softcap, logits_scaling=scaling)
model = SimpleNamespace(model=lambda **inputs: (states,), lm_head=head, config=config)

fused = fused_loss(model, {"input_ids": labels, "labels": labels}, tokens=17)
fused.backward()
gradient, states.grad = states.grad.clone(), None
logits = head(states[:, :-1]).flatten(0, 1) / scaling
logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
plain = torch.nn.functional.cross_entropy(logits, labels[:, 1:].flatten(), ignore_index=-100, reduction="sum") / 17
plain.backward()
assert abs(fused.item() - plain.item()) < 1e-5 * plain.item(), (fused.item(), plain.item())
assert torch.allclose(gradient, states.grad, rtol=1e-5, atol=1e-6), (gradient - states.grad).abs().max()
print("equal", fused.item(), plain.item())
"""  # noqa: E501
# the plain ones first: Liger's patches stay for good
PARTS = """
import sys
import tiny
import torch
from pathlib import Path
from transformers import AutoConfig, AutoModelForCausalLM
from pipeline.models.liger_loss import apply_liger, check_liger

folder, device, near = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
config = AutoConfig.from_pretrained(folder)
tokens, heads = 15 + 25, (config.num_attention_heads, config.num_key_value_heads)
positions = torch.cat([torch.arange(15), torch.arange(25)])[None].to(device)  # of two packed rows

def answers():
    torch.manual_seed(0)
    model = tiny.look_trained(AutoModelForCausalLM.from_config(config)).to(device, torch.float32)
    rotate, layer = sys.modules[type(model).__module__].apply_rotary_pos_emb, model.model.layers[0]
    ids, states = torch.arange(tokens, device=device)[None], torch.randn(1, tokens, config.hidden_size, device=device)
    angles = model.model.rotary_emb(states, positions)
    queries, keys = (torch.randn(1, count, tokens, config.head_dim, device=device) for count in heads)
    parts = {
        "RMSNorm": (layer.input_layernorm, states),
        "SwiGLU": (layer.mlp, states),
        "RoPE": (lambda q, k: rotate(q, k, *angles), queries, keys),
        "model": (lambda: model(ids, position_ids=positions, use_cache=False).logits,),
    }
    if hasattr(layer.self_attn, "q_norm"):
        parts["q_norm"] = (layer.self_attn.q_norm, queries)
    for name, (part, *inputs) in parts.items():
        model.zero_grad(set_to_none=True)
        inputs = [values.clone().requires_grad_() for values in inputs]
        made = part(*inputs)
        made = made if isinstance(made, tuple) else (made,)
        sum((one * torch.linspace(-1, 1, one.numel(), device=device).view_as(one)).sum() for one in made).backward()
        gradients = [*inputs, *model.parameters()]
        yield name, [*made, *(values.grad for values in gradients if values.grad is not None)]
    if type(layer.input_layernorm).__name__.startswith("Liger"):
        check_liger(model)
        print("equal")

plain = dict(answers())
apply_liger(folder)
for name, values in answers():
    assert len(values) == len(plain[name])
    for one, wanted in zip(values, plain[name], strict=True):
        assert (one - wanted).abs().max() <= near * wanted.abs().max(), (name, one.shape, (one - wanted).abs().max())
    print(name, len(values))
"""  # noqa: E501


def run(script: str, *arguments: str, **environment: str) -> str:
    """Run a script as a process and return its output; with TRITON_INTERPRET its kernels run on the CPU."""
    if environment:
        script = f"import triton_interpreter\n{script}"
    command = [sys.executable, "-c", script, *arguments]
    paths = {"PYTHONPATH": os.pathsep.join(map(str, (PROJECT, PROJECT / "tests/support")))}
    done = ended(command, cwd=PROJECT, env=os.environ | paths | environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def write_config(folder: Path, model_type: str) -> Path:
    folder.mkdir(exist_ok=True)
    shape = {
        "model_type": model_type,
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
    }
    (folder / "config.json").write_text(json.dumps(shape))
    return folder
