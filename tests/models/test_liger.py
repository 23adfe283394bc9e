"""liger: its parts are in the model after loading, its loss is plain cross entropy's, and it is refused where
it can't be.
"""

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from make import ended

from pipeline.core.errors import ToolError
from pipeline.core.places import PROJECT
from pipeline.models.liger_loss import apply_liger, check_liger, choose_loss

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
    """What a script prints, in a process of its own; with TRITON_INTERPRET its kernels run on the CPU."""
    if environment:
        script = f"import triton_interpreter\n{script}"
    command = [sys.executable, "-c", script, *arguments]
    paths = {"PYTHONPATH": os.pathsep.join(map(str, (PROJECT, PROJECT / "tests")))}
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


@pytest.mark.slow
def test_the_loaded_models_are_made_of_ligers_parts(tmp_path: Path) -> None:
    folders = [
        write_config(tmp_path / model_type, model_type)
        for model_type in ("qwen2", "qwen3", "llama", "mistral")
    ]
    assert (
        run(APPLY, *map(str, folders)).splitlines()
        == ["LigerRMSNorm LigerRMSNorm LigerSwiGLUMLP LigerRMSNorm"] * 4
    )


def test_a_model_without_ligers_parts_is_refused() -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    shape = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    with pytest.raises(ToolError, match="Q-MODELS-014"):
        check_liger(Qwen2ForCausalLM(Qwen2Config(**shape)))


# unknown to Liger; known, but with another MLP
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


def test_a_mixtures_loss_is_chunked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_loss("auto", mixture=True) == choose_loss("chunked", mixture=True) == "chunked"
