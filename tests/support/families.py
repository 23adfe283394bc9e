"""Makers of tiny models of several families that look trained, with real tokenizers, of adapters for them,
and of a byte-level tokenizer.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import qwen2_variants
import tiny
import tokenizer_folders
from merging import write_adapter
from safetensors.torch import load_file, save_file

from pipeline.chat.tokens import load_tokenizer, save_tokenizer
from pipeline.config.sections import Training
from pipeline.llamacpp.tools import Toolchain
from pipeline.models.own_targets import default_targets
from pipeline.models.text_config import SAME_FOR_CONVERTER, WANTED_BY_CONVERTER
from pipeline.stages.base.hf_folder import examine
from pipeline.stages.base.runs_of_spaces import settle_runs_of_spaces

# Llama 3.2's rotary positions, for `family`
STRETCHED: dict[str, Any] = {
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
}
# hidden and intermediate are multiples of 256, the block of K-quants
SIZES: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
}
WINDOWED = {
    "head_dim": 64,
    "query_pre_attn_scalar": 64,
    "sliding_window": 24,
}
GRANITE = {
    "embedding_multiplier": 12.0,
    "attention_multiplier": 0.1,
    "residual_multiplier": 0.5,
    "logits_scaling": 4.0,
}
GEMMA_4 = {
    "initializer_range": 0.012,
    "head_dim": 64,
    "global_head_dim": 128,
    "sliding_window": 24,
    "layer_types": ["sliding_attention", "full_attention"],
    "final_logit_softcapping": 30.0,
}
NEMOTRON: dict[str, Any] = {
    "layers_block_type": ["mamba", "mlp", "attention", "mlp"],
    "head_dim": 64,
    "ssm_state_size": 64,
    "mamba_num_heads": 8,
    "mamba_head_dim": 64,
    "n_groups": 2,
}


@dataclass(frozen=True)
class Row:
    """A family as the tests know it, by the model type of its text part."""

    # published models, for docs/bases.md; empty if those of another row are meant
    models: str
    # settings of its small model besides `SIZES`
    settings: dict[str, Any] = field(default_factory=dict)
    # "smollm", "gemma" or "qwen"
    tokenizer: str = "smollm"
    # An adapter and scales are trained on its GGUF, so what a header says of it is tried too.
    on_gguf: bool = False
    # Its small model is merged, converted and served. Those of the others have tests of their own.
    entire_way: bool = True
    # if it is not the row's name
    model_type: str = ""


# in the order of the table in docs/bases.md
ROWS = {
    "llama": Row("Llama 3, 3.1, 3.2, 3.3, SmolLM2, R1 distills, MiniCPM5", on_gguf=True),
    # as Mistral Nemo
    "mistral": Row(
        "Mistral Nemo, the text part of Mistral Small 3.2, Magistral, Devstral",
        settings={"head_dim": 128, "sliding_window": None, "tie_word_embeddings": False},
        on_gguf=True,
    ),
    "ministral3": Row(
        "Ministral 3, its text part",
        settings={
            "initializer_range": 0.014,
            "head_dim": 128,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1_000_000.0,
                "factor": 16.0,
                "original_max_position_embeddings": 128,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.1,
            },
        },
        on_gguf=True,
    ),
    "qwen2": Row("Qwen2, Qwen2.5", settings={"tie_word_embeddings": False}, tokenizer="qwen", on_gguf=True),
    "qwen3": Row(
        "Qwen3, the text part of Qwen3-VL", settings={"head_dim": 64}, tokenizer="qwen", on_gguf=True
    ),
    "qwen2_moe": Row(
        "Qwen1.5-MoE, Qwen2-MoE",
        settings={
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 256,
            "shared_expert_intermediate_size": 256,
            "tie_word_embeddings": False,  # llama.cpp loads no tied head of this family
        },
        tokenizer="qwen",
    ),
    "qwen3_moe": Row("Qwen3-30B-A3B and larger", entire_way=False),
    "mixtral": Row("Mixtral", entire_way=False),
    # Every second layer of a Gemma 2, and five of six of a Gemma 3, look no further back than the window.
    # With smaller weights attention is so even that a lost q_proj changes little.
    "gemma2": Row(
        "Gemma 2", settings=WINDOWED | {"initializer_range": 0.03}, tokenizer="gemma", on_gguf=True
    ),
    "gemma3_text": Row(
        "Gemma 3, FunctionGemma",
        settings=WINDOWED | {"initializer_range": 0.019, "num_hidden_layers": 6},
        tokenizer="gemma",
        on_gguf=True,
    ),
    "gemma3n_text": Row("Gemma 3n, its text part", entire_way=False),
    "gemma4_text": Row(
        "Gemma 4 E2B, E4B and 31B, their text part",
        settings=GEMMA_4
        | {
            "num_hidden_layers": 4,
            "num_kv_shared_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "hidden_size_per_layer_input": 256,
            "vocab_size_per_layer_input": tokenizer_folders.GEMMA_WORDS,
            "use_double_wide_mlp": True,
        },
        tokenizer="gemma",
    ),
    "gemma4_unified_text": Row("Gemma 4 12B, its text part", settings=GEMMA_4, tokenizer="gemma"),
    "granite": Row("Granite 3, 4.1", settings=GRANITE, on_gguf=True),
    "granitemoehybrid": Row(
        "Granite 4, dense and hybrid",
        settings=GRANITE
        | {
            "layer_types": ["mamba", "attention"],
            "mamba_n_heads": 8,
            "mamba_d_head": 64,
            "mamba_d_state": 64,
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "shared_intermediate_size": 256,
        },
    ),
    "granite4_dense": Row(
        "",
        settings=GRANITE
        | {
            "layer_types": ["attention", "attention"],
            "position_embedding_type": "rope",
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "shared_intermediate_size": 256,
        },
        model_type="granitemoehybrid",
    ),
    "phi3": Row(
        "Phi-3, Phi-3.5-mini, Phi-4, Phi-4-mini",
        settings={  # as Phi-4-mini: a part of each head turns, by listed factors
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 2048,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10_000.0,
                "partial_rotary_factor": 0.75,
                "short_factor": [1.0 + number / 10 for number in range(24)],
                "long_factor": [1.0 + number for number in range(24)],
                "original_max_position_embeddings": 2048,
            },
        },
        on_gguf=True,
    ),
    # Every fourth layer has no rotary embedding.
    "smollm3": Row("SmolLM3", settings={"num_hidden_layers": 4}, on_gguf=True),
    "olmo2": Row("OLMo 2", settings={"tie_word_embeddings": False}, on_gguf=True),
    "olmo3": Row(
        "OLMo 3",
        settings={
            "initializer_range": 0.013,  # with larger logits the level costs more than it may
            # most layers look no further back than the window; the others' positions are stretched
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": 24,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 500_000.0},
                "full_attention": {
                    "rope_type": "yarn",
                    "rope_theta": 500_000.0,
                    "factor": 2.0,
                    "original_max_position_embeddings": 1024,
                    "beta_fast": 32.0,
                    "beta_slow": 1.0,
                },
            },
            "tie_word_embeddings": False,
        },
        on_gguf=True,
    ),
    "glm4": Row(
        "GLM-4, with a template that ends answers",
        settings={"head_dim": 64, "partial_rotary_factor": 0.5, "tie_word_embeddings": False},
    ),
    "lfm2": Row(
        "LFM2",
        settings={
            "layer_types": ["conv", "full_attention"],
            "rms_norm_eps": None,
            "norm_eps": 1e-6,
            "block_auto_adjust_ff_dim": False,
        },
        on_gguf=True,
    ),
    "falcon_h1": Row(
        "Falcon-H1",
        settings={
            "head_dim": 64,
            "mamba_d_ssm": 512,
            "mamba_n_heads": 8,
            "mamba_d_head": 64,
            "mamba_d_state": 64,
            "tie_word_embeddings": False,
            "attention_in_multiplier": 1.1,
            "attention_out_multiplier": 0.9,
            "key_multiplier": 0.8,
            "embedding_multiplier": 5.6,
            "lm_head_multiplier": 0.4,
            "mlp_multipliers": [0.9, 0.7],
            "ssm_in_multiplier": 1.25,
            "ssm_out_multiplier": 0.4,
            "ssm_multipliers": [0.7, 0.8, 0.9, 0.6, 1.1],
        },
    ),
    # as a Qwen3.5 of 4B or more: several value heads for each key head
    "qwen3_5_text": Row(
        "Qwen3.5, dense",
        settings={
            "head_dim": 64,
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention", "linear_attention", "full_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
        },
        tokenizer="qwen",
        on_gguf=True,
        entire_way=False,
    ),
    "nemotron_h": Row(
        "Nemotron Nano 9B v2, Nemotron-H, without experts",
        settings=NEMOTRON | {"rms_norm_eps": None, "tie_word_embeddings": False},
    ),
    "seed_oss": Row("Seed-OSS", settings={"head_dim": 64, "tie_word_embeddings": False}),
    "exaone4": Row(
        "EXAONE 4 (with windows: of 64 layers)",
        settings=STRETCHED
        | {"head_dim": 64, "sliding_window": None, "layer_types": ["full_attention", "full_attention"]},
    ),
    "hunyuan_v1_dense": Row(
        "Hunyuan 0.5B to 7B",
        settings={
            "initializer_range": 0.014,
            "head_dim": 64,
            "max_position_embeddings": 32_768,  # what its converter asks for
            "eod_token_id": 0,  # which its converter takes for the end of an answer
            "rope_parameters": {
                "rope_type": "dynamic",
                "rope_theta": 10_000.0,
                "factor": 1.0,
                "alpha": 1000.0,
            },
        },
    ),
    "cohere2": Row("Command R7B", settings={"sliding_window": 24, "rotary_pct": 1.0, "num_hidden_layers": 4}),
    "cohere": Row("Aya Expanse"),
    "stablelm": Row("StableLM 2", entire_way=False),
    "apertus": Row("Apertus (plain text by its template)", entire_way=False),
    "ernie4_5": Row(
        "ERNIE 4.5 0.3B (plain text by its own template)", settings={"head_dim": 64}, tokenizer="gemma"
    ),
    "arcee": Row(
        "AFM-4.5B",
        settings={
            "tie_word_embeddings": False,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10_000.0,
                "factor": 20.0,
                "original_max_position_embeddings": 128,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
            },
        },
    ),
    "glm": Row("GLM-4-9B", entire_way=False),
    "gemma": Row("Gemma 1", settings={"head_dim": 64}, tokenizer="gemma"),
    "gpt_neox": Row("Pythia, GPT-NeoX", entire_way=False),
}
NAMES = tuple(name for name, row in ROWS.items() if row.entire_way)
ON_GGUF = tuple(name for name, row in ROWS.items() if row.on_gguf)
GEMMA = ("gemma2", "gemma3_text")
GEMMA4 = ("gemma4_text", "gemma4_unified_text")
# families that have Gemma's, and SmolLM2's, tokenizer here
PIECES = tuple(name for name, row in ROWS.items() if row.tokenizer == "gemma")
SMOLLM = tuple(name for name, row in ROWS.items() if row.tokenizer == "smollm")
MODEL_TYPES = {name: row.model_type for name, row in ROWS.items() if row.model_type}
GLM_TURNS = ("<|user|>", "<|assistant|>", "<|system|>")
GLM_USER = 3  # id of `<|user|>`
GLM_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>\n' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
QWEN_FOLDERS = {"qwen3": tokenizer_folders.qwen3_folder, "qwen3_5_text": tokenizer_folders.qwen35_folder}
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")
FUSED = ("qkv_proj", "o_proj")  # of a Phi-3
# model types with other layers than attention, whose own linears train
HYBRIDS = ("lfm2", "falcon_h1", "granitemoehybrid", "nemotron_h")


def family(name: str, folder: Path, tools: Toolchain, **settings: Any) -> Path:
    """Write a small model of one of `NAMES` that looks trained, with two ends and its tokenizer, as a Hugging
    Face folder; return the folder. `settings` are of its config.json.

    The Qwens have their tokenizer with a cut vocabulary and more rows of embeddings than tokens, as the
    published ones, and so have the older Gemmas, whose folders are as stage base leaves them; the others have
    SmolLM2's.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    ends = write_tokenizer(name, folder, tools)
    rows, words = rows_and_words(name)
    sizes = SIZES | ROWS[name].settings | ends | {"vocab_size": rows} | settings
    config = AutoConfig.for_model(MODEL_TYPES.get(name, name), **sizes)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = tiny.look_trained(AutoModelForCausalLM.from_config(config), words).to(torch.bfloat16)
    end = ends["eos_token_id"]
    turns = {**dict.fromkeys(PIECES, tokenizer_folders.GEMMA_END), "glm4": GLM_USER}
    model.generation_config = GenerationConfig(**ends | {"eos_token_id": [end, turns.get(name, end - 2)]})
    model.save_pretrained(folder)
    if getattr(config, "num_kv_shared_layers", 0):
        add_unused_keys(folder, config)
    converted = SAME_FOR_CONVERTER.get(type(model).__name__)
    if converted:  # as stage base writes it
        file = folder / "config.json"
        stated = json.loads(file.read_text(encoding="utf-8"))
        stated |= {"architectures": [converted], WANTED_BY_CONVERTER: None}
        file.write_text(json.dumps(stated), encoding="utf-8")
    if name in PIECES:
        examine(folder)  # finds the end of turn, which no published Gemma names
    return folder


def add_unused_keys(folder: Path, config: Any) -> None:
    """Give layers that use another layer's keys and values some of their own, as published files do."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    first = config.num_hidden_layers - config.num_kv_shared_layers
    for layer in range(first, config.num_hidden_layers):
        alike = config.layer_types.index(config.layer_types[layer])
        for part in ("k_proj", "v_proj", "k_norm"):
            name = "model.layers.{}.self_attn." + part + ".weight"
            tensors[name.format(layer)] = tensors[name.format(alike)] * 0.9
    save_file(tensors, file, {"format": "pt"})


def rows_and_words(name: str) -> tuple[int, int | None]:
    """Return how many rows the embeddings of a family have, and how many of these are words, if not all."""
    if name in SMOLLM:
        return 49_152, None
    if name in GEMMA4:
        return tokenizer_folders.GEMMA_WORDS, None  # llama.cpp loads no more rows than tokens
    if name in PIECES:
        return tokenizer_folders.GEMMA_WORDS + 256, tokenizer_folders.GEMMA_WORDS
    return qwen2_variants.ROWS, qwen2_variants.KEPT


def write_tokenizer(name: str, folder: Path, tools: Toolchain) -> dict[str, int]:
    """The family's tokenizer and chat template into `folder`; the ids that a config names."""
    if name in SMOLLM:
        tokenizer_folders.smollm_folder(folder)
        if name == "phi3":
            name_phi_tokenizer(folder)
        if name == "glm4":
            glm_tokens(folder)
            return {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
        return {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    if name in PIECES:
        tokenizer_folders.gemma_folder(folder)
        settle_runs_of_spaces(folder)  # as stage base does
        if name in GEMMA4:
            gemma4_tokens(folder)
        if name == "ernie4_5":
            add_settings(folder, {"add_prefix_space": False})  # its converter asks for it
        return {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0}
    make = QWEN_FOLDERS.get(name, tokenizer_folders.qwen_folder)
    tiny.cut_vocabulary(make(folder, tools) / "tokenizer.json", qwen2_variants.KEPT)
    return {
        "bos_token_id": qwen2_variants.KEPT,
        "eos_token_id": qwen2_variants.KEPT + 2,
        "pad_token_id": qwen2_variants.KEPT,
    }


def add_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Change these keys of the tokenizer's settings."""
    file = folder / "tokenizer_config.json"
    stated = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(stated | settings), encoding="utf-8")


def gemma4_tokens(folder: Path) -> None:
    """Make Gemma's tokenizer one as Gemma 4's: tokenizer.json alone, in which runs of spaces and lines are
    merged and no added tokens, and settings that name every control token, as its converter asks.
    """
    (folder / "tokenizer.model").unlink()
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    tokenizer["added_tokens"] = [token for token in tokenizer["added_tokens"] if token["special"]]
    tokenizer["model"]["merges"].insert(0, ["\n", "\n"])
    file.write_text(json.dumps(tokenizer), encoding="utf-8")
    control = [token["content"] for token in tokenizer["added_tokens"]]
    stated = {str(token.pop("id")): token for token in tokenizer["added_tokens"]}
    add_settings(folder, {"added_tokens_decoder": stated, "extra_special_tokens": control})


def name_phi_tokenizer(folder: Path) -> None:
    """Name the tokenizer's class as Phi-4-mini does, and its converter asks for it."""
    add_settings(folder, {"tokenizer_class": "GPT2Tokenizer"})


def glm_tokens(folder: Path) -> None:
    """Give SmolLM2's tokenizer the tokens that begin turns of a GLM-4, and a template that ends an answer in
    `<|endoftext|>`, which GLM-4's own does not.
    """
    file = folder / "tokenizer.json"
    text = file.read_text(encoding="utf-8")
    for old, new in zip(("<repo_name>", "<reponame>", "<file_sep>"), GLM_TURNS, strict=True):
        text = text.replace(json.dumps(old), json.dumps(new))
    file.write_text(text, encoding="utf-8")
    add_settings(folder, dict.fromkeys(("bos_token", "eos_token", "pad_token"), "<|endoftext|>"))
    (folder / "chat_template.jinja").write_text(GLM_TEMPLATE, encoding="utf-8")


def family_adapter(folder: Path, base: Path, settings: Training) -> Path:
    """A random LoRA adapter on the attention of `base`, with tokenizer and record as stage train leaves them;
    the folder.

    `settings` are what it was trained with.
    """
    kind = json.loads((base / "config.json").read_text(encoding="utf-8"))["model_type"]
    targets = list(FUSED if kind == "phi3" else TARGETS)
    if kind in HYBRIDS:
        targets = default_targets(base)
    write_adapter(base, folder, target_modules=targets, lora_alpha=2)  # half as large as the base
    save_tokenizer(load_tokenizer(base), folder)
    output = settings.model_dump(mode="json") | {"target_modules": targets, "r": 4, "lora_alpha": 2}
    record = {"settings": output, "tokens_sha256": "ab" * 32}
    (folder / "run.json").write_text(json.dumps(record), encoding="utf-8")
    return folder


def byte_folder(folder: Path, template: str = tiny.CHATML) -> Path:
    """The tokenizer of `tiny.tiny_gguf` (bytes, "he", "ll" and ChatML's tokens) with config and generation
    config; the folder.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    words = [*tiny.BYTE_LETTERS, "he", "ll"]
    tokenizer = Tokenizer(
        models.BPE({word: number for number, word in enumerate(words)}, [("h", "e"), ("l", "l")])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(word, special=True, normalized=False)
            for word in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
        ]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    ends = {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
    }
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **ends}), encoding="utf-8"
    )
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    numbers = {"bos_token_id": 259, "eos_token_id": 260, "pad_token_id": 260}
    (folder / "config.json").write_text(
        json.dumps({"model_type": "llama", "vocab_size": 261, **numbers}), encoding="utf-8"
    )
    (folder / "generation_config.json").write_text(json.dumps(numbers), encoding="utf-8")
    return folder
