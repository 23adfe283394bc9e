"""A random Qwen2 as a Hugging Face folder, and full training rows for it: what a training benchmark needs,
without a hub.

The weights are stored in 16 bit, one shard a layer, so that every side loads and quantizes them the way it
would a real base; 7B takes 15.2 GB of disk and the memory of one layer. All layers are the same random layer:
neither speed nor memory depends on the values.
"""

import json
from pathlib import Path
from typing import Any

ROW_COUNT = 64
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| "
    r"?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)  # Qwen2's
ADDED = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")  # after 256 bytes and two merges
SPECIAL_IDS = {"bos_token_id": 258, "eos_token_id": 260, "pad_token_id": 258}
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads"),
)
SHAPES: dict[str, dict[str, int]] = {
    name: dict(zip(SIZES, sizes, strict=True))
    for name, sizes in {
        "7b": (152_064, 3_584, 18_944, 28, 28, 4),
        "0.5b": (151_936, 896, 4_864, 24, 14, 2),
        "tiny": (1_024, 128, 256, 2, 4, 2),
        "7b-2-layers": (152_064, 3_584, 18_944, 2, 28, 4),  # as wide as 7b, with its whole vocabulary
        "wide": (4_096, 3_584, 18_944, 2, 28, 4),
        "blocks": (512, 256, 512, 2, 4, 2),  # the smallest whose rows are K-quants' blocks of 256
    }.items()
}


def write_config(folder: Path, shape: str) -> Any:
    """Write config.json of a shape in SHAPES, its head untied, and the tokenizer; the config."""
    from transformers import Qwen2Config

    folder.mkdir(parents=True)
    config = Qwen2Config(
        **SHAPES[shape],
        max_position_embeddings=32_768,
        rope_theta=1_000_000.0,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
        **SPECIAL_IDS,
        dtype="bfloat16",
        architectures=["Qwen2ForCausalLM"],
    )
    config.save_pretrained(folder)
    write_tokenizer(folder)
    return config


def write_base(folder: Path, shape: str) -> Path:
    """Write config, tokenizer and random bfloat16 weights of a shape in SHAPES; the folder."""
    import torch
    from safetensors.torch import save_file
    from transformers import Qwen2ForCausalLM

    config = write_config(folder, shape)
    with torch.device("meta"):
        empty = Qwen2ForCausalLM(config).state_dict()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    layer: dict[str, Any] = {}
    index, total = {}, 0
    for shard in ("head", *range(config.num_hidden_layers)):
        names = [name for name in empty if _shard(name) == str(shard)]
        tensors = {}
        for name in names:
            part = name.partition(f".layers.{shard}.")[2] or name
            if part not in layer:
                layer[part] = _random(empty[name].shape, "norm" in name, device)
            tensors[name] = layer[part] if shard != "head" else layer.pop(part)
        file = f"model-{shard}.safetensors"
        save_file(tensors, folder / file, metadata={"format": "pt"})
        index |= dict.fromkeys(names, file)
        total += sum(tensor.numel() * 2 for tensor in tensors.values())
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": index})
    )
    return folder


def _shard(name: str) -> str:
    return name.partition(".layers.")[2].partition(".")[0] or "head"


def _random(shape: Any, ones: bool, device: str) -> Any:
    import torch

    values = torch.ones(shape) if ones else torch.randn(shape, device=device, dtype=torch.bfloat16) * 0.02
    return values.to(torch.bfloat16).cpu()


def write_tokenizer(folder: Path) -> None:
    """A byte vocabulary with Qwen2's pre-tokenizer, ChatML's tokens and two merges, which llama.cpp needs."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    merges = [("h", "e"), ("l", "l")]
    spelled = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(merge) for merge in merges)]
    words = {word: number for number, word in enumerate(spelled)}
    tokenizer = Tokenizer(models.BPE(words, merges, continuing_subword_prefix="", end_of_word_suffix=""))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(word, special=True, normalized=False) for word in ADDED])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "Qwen2Tokenizer",
        "add_prefix_space": False,
        "bos_token": None,
        "eos_token": ADDED[2],
        "pad_token": ADDED[0],
        "unk_token": None,
        "model_max_length": 131_072,
        "clean_up_tokenization_spaces": False,
        "errors": "replace",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(TEMPLATE)


def write_rows(folder: Path, base: Path, tokens: int, method: str = "sft") -> Path:
    """Write what preprocess does for `base` and a training method: train.parquet with ROW_COUNT rows of
    `tokens` tokens, val.parquet with one, the manifest; the folder.
    """
    import numpy as np
    import pyarrow
    from pyarrow import parquet

    from pipeline.chat.manifest import NAME, manifest
    from pipeline.chat.tokens import load_tokenizer
    from pipeline.core.publish import write_json
    from pipeline.stages.preprocess.tables import PACKED

    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    ids = [random.integers(0, 256, tokens).tolist() for _ in range(ROW_COUNT)]
    halves = [[tokens // 2, tokens - tokens // 2]] * ROW_COUNT  # two conversations a row
    rows = {
        "input_ids": ids,
        "labels": ids,
        "seq_lengths": halves,
        "row_ids": [[f"{number}-a", f"{number}-b"] for number in range(ROW_COUNT)],
        "roles": [[1, -1]] * ROW_COUNT,  # a pair, to methods that compare answers
        "weights": [[1.0, 1.0]] * ROW_COUNT,
    }
    for split, some in (("train", rows), ("val", {key: values[:1] for key, values in rows.items()})):
        parquet.write_table(pyarrow.table(some, schema=PACKED), folder / f"{split}.parquet")
    counts = {
        split: dict.fromkeys(("rows_read", "rows", "sequences"), 2 * n)
        | {"packed_rows": n}
        | dict.fromkeys(("tokens", "trained_tokens"), n * tokens)
        for split, n in (("train", ROW_COUNT), ("val", 1))
    }
    stats = {"method": method, "max_length": tokens, "packing": True, "splits": counts}
    write_json(folder / NAME, manifest(folder, [], base, load_tokenizer(base), stats))
    return folder
