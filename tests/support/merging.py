"""Tiny random models and adapters of every kind for the tests of the merge, and what PEFT makes of them."""

import json
from pathlib import Path
from typing import Any

import merging
import torch

SIZES = {
    "vocab_size": 96,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 64,
}
MOE = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2, "decoder_sparse_step": 1}
GPT2 = {"vocab_size": 96, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}
LINEARS = ["q_proj", "v_proj", "o_proj", "down_proj"]


def write_base(folder: Path, kind: str = "Qwen2", dtype: str = "bfloat16", **changed: Any) -> Path:
    """A random transformers model, no tokenizer (`kind`: class less Config and ForCausalLM); the folder."""
    import transformers

    sizes = {
        "GPT2": GPT2,
        "Qwen2Moe": SIZES | MOE | {"shared_expert_intermediate_size": 64},
        "Qwen3Moe": SIZES | MOE,
        "Mixtral": SIZES | MOE,
    }.get(kind, SIZES)
    config = getattr(transformers, f"{kind}Config")(**(sizes | {"tie_word_embeddings": False} | changed))
    model = getattr(transformers, "GPT2LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM")(config)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(1)
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.05 + (1.0 if parameter.dim() == 1 else 0.0))
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    return folder


def write_adapter(base: Path, folder: Path, *, resize: int = 0, **settings: Any) -> Path:
    """A random PEFT adapter of `settings` for `base`, on embeddings of `resize` rows if not 0; the folder."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(2)
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        if resize:
            model.resize_token_embeddings(resize)
        tuned = get_peft_model(
            model, LoraConfig(**({"task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8} | settings))
        )
        for name, parameter in tuned.named_parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * (0.02 if "magnitude" in name else 0.1))
    tuned.save_pretrained(folder)
    return folder


def add_run(adapter: Path, **settings: Any) -> None:
    """Put training's record beside the adapter, as far as a merge reads it."""
    output = {
        "quantization": "nf4",
        "bnb_4bit_compute_dtype": "bfloat16",
    } | settings
    (adapter / "run.json").write_text(json.dumps({"settings": output}))


def merge_in(
    folder: Path,
    dtype: Any = "float16",
    merge_base: Any = "16-bit",
    base: str | Path = "base",
    merged: str = "merged",
) -> dict[str, Any]:
    """Merge the base and the adapter below `folder` by `merge`, and return its record."""
    from pipeline.stages.merge.stage import merge

    places = {"base": folder / base, "adapter": folder / "adapter", "merged": folder / merged}
    return merge(**places, dtype=dtype, merge_base=merge_base)


def peft_model(base: Path, adapter: Path, resize: int = 0) -> Any:
    """Base with adapter in float32, as PEFT runs it."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    if resize:
        model.resize_token_embeddings(resize)
    return PeftModel.from_pretrained(model, adapter).eval()


def logits(model: Any) -> Any:
    """Logits of one short prompt."""

    with torch.no_grad():
        return model(torch.arange(2, 26).view(1, -1), use_cache=False).logits


BASES: dict[str, dict[str, Any]] = {
    "qwen2": {"kind": "Qwen2"},
    "tied": {"kind": "Qwen2", "tie_word_embeddings": True},
    "llama": {"kind": "Llama", "dtype": "float16"},
    "qwen2_moe": {"kind": "Qwen2Moe"},
    "qwen3_moe": {"kind": "Qwen3Moe"},
    "gpt2": {"kind": "GPT2", "tie_word_embeddings": True},
}
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
# what is merged: base, settings of the adapter, tensors that the adapter changes
KINDS: dict[str, tuple[str, dict[str, Any], int]] = {
    "lora": ("qwen2", {"target_modules": merging.LINEARS}, 8),
    "rslora": ("llama", {"target_modules": merging.LINEARS, "use_rslora": True}, 8),
    "patterns": (
        "qwen2",
        {
            "target_modules": merging.LINEARS,
            "rank_pattern": {"layers.1.self_attn.q_proj": 2, "v_proj": 6},
            "alpha_pattern": {r".*\.0\..*o_proj": 3, "down_proj": 1},
        },
        8,
    ),
    "dora": ("qwen2", {"target_modules": merging.LINEARS, "use_dora": True}, 8),
    "bias of B": ("qwen2", {"target_modules": ["q_proj", "v_proj"], "lora_bias": True}, 8),
    "trained biases": ("qwen2", {"target_modules": merging.LINEARS, "bias": "all"}, 8),
    "head saved": ("qwen2", {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}, 2),
    "norms saved": ("tied", {"target_modules": ["q_proj"], "modules_to_save": ["input_layernorm"]}, 2),
    "embeddings saved, tied": (
        "tied",
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
        2,
    ),
    "head saved, tied": ("tied", {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}, 2),
    "embeddings": ("qwen2", {"target_modules": ["embed_tokens", "q_proj"]}, 3),
    "embeddings, tied": ("tied", {"target_modules": ["embed_tokens", "q_proj"]}, 3),
    "head, tied": ("tied", {"target_modules": ["lm_head", "q_proj"]}, 3),
    "dora on embeddings": ("qwen2", {"target_modules": ["embed_tokens", "q_proj"], "use_dora": True}, 3),
    "experts": ("qwen2_moe", {"target_modules": ["q_proj"], "target_parameters": EXPERTS}, 2 + 2 * 4 * 3),
    "one expert parameter": (
        "qwen3_moe",
        {"target_modules": [], "target_parameters": EXPERTS[:1]},
        2 * 4 * 2,
    ),
    "experts by their old names": (
        "qwen3_moe",
        {"target_modules": ["q_proj", "gate_proj", "up_proj", "down_proj"]},
        2 + 2 * 4 * 3,
    ),
    "router": (
        "qwen3_moe",
        {
            "target_modules": ["q_proj"],
            "target_parameters": ["mlp.gate.weight"],
            "alpha_pattern": {"gate.weight": 2},
        },
        4,
    ),
    "stored in by out": ("gpt2", {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True}, 6),
    "stored in by out, dora": (
        "gpt2",
        {"target_modules": ["c_attn"], "fan_in_fan_out": True, "use_dora": True},
        2,
    ),
}


def is_nearest(rounded: Any, exact: Any, slack: Any = 0.0) -> bool:
    """Return True if no neighbor of the rounded numbers is nearer to the exact ones by more than `slack`."""
    off, ends = (rounded.double() - exact).abs(), (float("inf"), float("-inf"))
    neighbors = (torch.nextafter(rounded, torch.full_like(rounded, end)).double() for end in ends)
    return all(bool((off <= (neighbor - exact).abs() + slack).all()) for neighbor in neighbors)
