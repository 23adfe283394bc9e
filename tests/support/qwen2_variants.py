"""Small Qwen2 models with tokenizers unknown to llama.cpp: a cut vocabulary, and one with an added token."""

import json
from pathlib import Path
from typing import Any

import tiny
from kept import kept
from tokenizers import AddedToken, Tokenizer

from pipeline.llamacpp.converters import HeaderFields, to_gguf
from pipeline.llamacpp.tools import Toolchain

KEPT = 2000  # tokens of the vocabulary, the shortest merges first
ROWS = 2048  # of the embedding


def add_token(tokenizer_file: Path, token: str) -> None:
    """Add one token that is not special."""
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False)])
    tokenizer.save(str(tokenizer_file))


def change_json(file: Path, *, keep_none: bool = False, **changed: Any) -> None:
    """Replace top keys of a JSON file; None takes a key out, or is written (`keep_none`)."""
    content = json.loads(file.read_text(encoding="utf-8")) | changed
    gone = () if keep_none else {key for key, value in changed.items() if value is None}
    content = {key: value for key, value in content.items() if key not in gone}
    file.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def cut_qwen2(folder: Path, tools: Toolchain, **config: Any) -> Path:
    """A random two-layer Qwen2 of hidden 256 with the cut vocabulary; the folder."""
    import torch
    from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM

    folder.mkdir(parents=True)
    tiny.write_qwen2_tokenizer(folder, tools)
    tiny.cut_vocabulary(folder / "tokenizer.json", KEPT)
    end, pad = KEPT + 2, KEPT
    shape: dict[str, Any] = {
        "vocab_size": ROWS,
        "hidden_size": 256,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
        "bos_token_id": pad,
        "eos_token_id": end,
    }
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Qwen2ForCausalLM(Qwen2Config(**shape | config)).to(torch.bfloat16)
    model.generation_config = GenerationConfig(bos_token_id=pad, eos_token_id=end, pad_token_id=pad)
    model.save_pretrained(folder)
    return folder


def cut_models(tools: Toolchain) -> Path:
    """A folder with the model as `hf/` and as `tiny-F16.gguf`, made once per session. Read only."""

    def make(folder: Path) -> Path:
        to_gguf(
            tools,
            cut_qwen2(folder / "hf", tools),
            folder / "tiny-F16.gguf",
            "F16",
            HeaderFields("tiny", "qwen2"),
        )
        return folder

    return kept("cut-qwen2", make)


def random_adapter(folder: Path) -> Path:
    """A random rank-4 LoRA of `cut_qwen2`'s query and down projections with training's record; the folder."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    random = torch.Generator().manual_seed(1)
    tensors = {}
    for layer in range(2):
        for module in ("self_attn.q_proj", "mlp.down_proj"):
            stem = f"base_model.model.model.layers.{layer}.{module}"
            tensors[f"{stem}.lora_A.weight"] = torch.randn(4, 256, generator=random) * 0.1
            tensors[f"{stem}.lora_B.weight"] = torch.randn(256, 4, generator=random) * 0.1
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["q_proj", "down_proj"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "run.json").write_text(
        json.dumps({"tokens_sha256": "ab" * 32, "settings": {"r": 4}}), encoding="utf-8"
    )
    return folder


def lineage_of(file: Path, **changed: Any) -> Path:
    """A models/base.json; the file."""
    record = {
        "source": "path",
        "model": "/home/someone/tiny",
        "revision": None,
        "license": "mit",
        "files": {"model.safetensors": "cd" * 32},
    }
    file.write_text(json.dumps(record | changed), encoding="utf-8")
    return file
