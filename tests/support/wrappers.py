"""Makers of tiny random models with a vision tower, as their makers publish them."""

import json
from pathlib import Path
from typing import Any

TEXT: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
}
SIGLIP = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
QWEN = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64}
POSITIONS = {"rope_type": "default", "rope_theta": 1e6}
WRAPPERS: dict[str, dict[str, Any]] = {
    "gemma3": {
        # llama.cpp takes every sixth layer for one without a window, and the scale from the width of a head,
        # whatever config.json says
        "text_config": {
            "head_dim": 16,
            "query_pre_attn_scalar": 16,
            "num_hidden_layers": 6,
            "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
        },
        "vision_config": SIGLIP,
        "mm_tokens_per_image": 4,
    },
    "gemma4": {
        "text_config": {
            "head_dim": 16,
            "global_head_dim": 32,
            "num_hidden_layers": 4,
            "num_kv_shared_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "hidden_size_per_layer_input": 16,
            "vocab_size_per_layer_input": 300,
        },
        "vision_config": SIGLIP | {"num_key_value_heads": 2, "head_dim": 16},
    },
    "qwen3_5": {
        "text_config": {
            "head_dim": 16,
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "tie_word_embeddings": True,
        },
        "tie_word_embeddings": True,
        "vision_config": QWEN | {"num_position_embeddings": 16},
    },
    "qwen2_5_vl": {
        "text_config": {"rope_parameters": POSITIONS | {"mrope_section": [2, 3, 3]}},
        "vision_config": QWEN | {"fullatt_block_indexes": [0]},
    },
    "qwen2_vl": {
        "text_config": {"rope_parameters": POSITIONS | {"mrope_section": [2, 3, 3]}},
        "vision_config": {"depth": 1, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 1},
    },
    "qwen3_vl": {
        "text_config": {
            "head_dim": 16,
            "rope_parameters": POSITIONS | {"mrope_section": [3, 3, 2], "mrope_interleaved": True},
        },
        "vision_config": QWEN | {"num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
    },
    "mistral3": {
        "text_config": {"model_type": "mistral", "head_dim": 16, "tie_word_embeddings": False},
        "tie_word_embeddings": False,
        "vision_config": SIGLIP | {"model_type": "pixtral", "head_dim": 16},
    },
}


def wrapper(kind: str, folder: Path, ends: dict[str, int], *, shards: str = "50GB", **sizes: Any) -> Any:
    """Write a random model of one of `WRAPPERS` into `folder`, without a tokenizer; return it.

    `sizes` are for its text part.
    """
    from transformers import AutoConfig, AutoModelForImageTextToText

    settings = WRAPPERS[kind]
    text = TEXT | settings["text_config"] | ends | sizes
    config = AutoConfig.for_model(kind, **settings | {"text_config": text} | ends)
    model = random_model(AutoModelForImageTextToText, config)
    model.save_pretrained(folder, max_shard_size=shards)
    return model


def text_model(kind: str, folder: Path, ends: dict[str, int], **sizes: Any) -> Any:
    """Write a random text model as it is in a wrapper of `kind` into `folder`; return it."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(f"{kind}_text", **TEXT | WRAPPERS[kind]["text_config"] | ends | sizes)
    model = random_model(AutoModelForCausalLM, config)
    model.save_pretrained(folder)
    return model


def random_model(kind: Any, config: Any) -> Any:
    """Return a model of this kind whose norms and factors are not those at the beginning of a training."""
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = kind.from_config(config).eval()
        with torch.no_grad():
            for tensor in model.parameters():
                if tensor.dim() == 1:
                    tensor.add_(torch.randn_like(tensor) * 0.1)
                elif tensor.shape[-1] < 256:
                    tensor.copy_(torch.randn_like(tensor) * 0.1)  # small ones would compute almost nothing
    return model.to(getattr(torch, str(config.dtype or "float32").removeprefix("torch.")))


def with_drafts(folder: Path) -> dict[str, Any]:
    """Give a Qwen3.5 its layer for drafting: tensors shaped as those of the last layer; return them."""
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    tensors = load_file(file)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    settings = config.get("text_config", config)
    inside = "model.language_model." if "text_config" in config else "model."
    last = f"{inside}layers.{settings['num_hidden_layers'] - 1}."
    drafts = {
        f"mtp.layers.0.{name.removeprefix(last)}": value.flip(0).contiguous()
        for name, value in tensors.items()
        if name.startswith(last)
    }
    norm = tensors[f"{inside}norm.weight"]
    drafts |= {
        f"mtp.{name}.weight": norm + 0.1 for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")
    }
    drafts["mtp.fc.weight"] = drafts["mtp.layers.0.mlp.down_proj.weight"][:, : len(norm)].repeat(1, 2)
    save_file(tensors | drafts, file, {"format": "pt"})
    settings["mtp_num_hidden_layers"] = 1
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return drafts


def as_published(folder: Path, end_of_text: int, end_of_turn: int) -> None:
    """Name ends as Qwen3.5 is published: config.json only that of a text, in its text part, and
    generation_config.json both.
    """
    file = folder / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        config.pop(key, None)
        config["text_config"].pop(key, None)
    config["text_config"]["eos_token_id"] = end_of_text
    file.write_text(json.dumps(config), encoding="utf-8")
    settings = {
        "bos_token_id": end_of_text,
        "eos_token_id": [end_of_turn, end_of_text],
        "pad_token_id": end_of_text,
    }
    (folder / "generation_config.json").write_text(json.dumps(settings), encoding="utf-8")


def renamed(folder: Path, old: str, new: str) -> None:
    """Give the tensors of a folder's only weights file that begin as `old` another beginning."""
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    tensors = {
        name.replace(old, new, 1) if name.startswith(old) else name: value
        for name, value in load_file(file).items()
    }
    save_file(tensors, file, {"format": "pt"})


def flat(folder: Path) -> None:
    """Write config.json as Qwen2.5-VL's is published: the text's settings beside the vision tower's."""
    file = folder / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    text = {key: value for key, value in config.pop("text_config").items() if key != "model_type"}
    file.write_text(json.dumps(text | config), encoding="utf-8")
