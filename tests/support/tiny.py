"""Makers of tiny models, files and project folders for tests: small weights, real tokenizer and format."""

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from pipeline.config.params import load_params
from pipeline.core.places import PROJECT
from pipeline.gguf.header import read_header
from pipeline.llamacpp.tools import Toolchain

# Qwen2.5's added tokens in the order of their ids, from 151,643; the last eight are not "special"
QWEN_ADDED = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
)
QWEN_SPECIAL = 14
# what stands for each byte in a vocabulary of GPT-2's kind, sorted
BYTE_LETTERS = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 324))]
QWEN_ROWS = 151_936  # rows of the embedding; the tokenizer has 151,665 tokens
# of a cut vocabulary, enough for short texts to stay short; rows of its embedding, the id of <|im_end|>
WORDS, ROWS, END = 8_000, 8_192, 8_002
# of the published tokenizer.json of Qwen2 and Qwen2.5
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| "
    r"?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MASSIVE = [3, 29]  # the dimensions of massive activations
CHATML = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def look_trained(model: Any, words: int | None = None) -> Any:
    """Give a random model what trained ones have, so that whatever is lost or exchanged changes what it says:
    large biases of q and k, norms other than 1, a few massive activations, tokens that are not all as likely;
    the model. Behind `words` its vocabulary has the added tokens of a Qwen.

    The biases of q and k are N(0, 20), in q at every second rotary pair and in k at the others (the rest is
    N(0, 0.1)). At the same pairs they add N(0, 400) to every attention score, by distance alone: four of five
    positions then see one token whatever the weights say, and a cache in float16 costs 3e-4 nats, not 6e-7.
    """
    import torch

    config, random = model.config, torch.Generator().manual_seed(1)
    heads = config.hidden_size // config.num_attention_heads
    pairs = (config.to_dict().get("head_dim") or heads) // 2
    last_norms = ("model.norm.weight", "model.embedding_norm.weight")  # the second one is LFM2's
    scales = {"q_norm.weight": 1.2, "k_norm.weight": 1.2, **dict.fromkeys(last_norms, 1.5)}

    def normal(values: Any, std: float) -> Any:
        return torch.randn(values.shape, generator=random) * std

    with torch.no_grad():
        for name, values in model.named_parameters():
            if name.endswith(("q_proj.bias", "k_proj.bias")):
                odd = torch.arange(len(values)) % pairs % 2 == name.endswith("k_proj.bias")
                values.copy_(normal(values, 20.0) * torch.where(odd, 1.0, 1 / 200))
            elif name.endswith("bias"):
                values.copy_(normal(values, 0.3))
            elif values.dim() == 1:
                scale = next((scale for end, scale in scales.items() if name.endswith(end)), 1.0)
                factors = normal(values, 0.3).exp() * scale
                if name in last_norms:
                    factors[MASSIVE] *= 1e-3
                # Gemma's norms start at 0: they multiply by one more than they hold
                starts_at_zero = not values.any()
                values.copy_(factors - 1 if starts_at_zero else factors)
            elif name.endswith(("mlp.gate.weight", "shared_expert_gate.weight")):
                values.copy_(normal(values, 0.5))  # else all experts are as likely: near ties change sides
            elif values.dim() == 2 and any(part in name for part in ("gate_proj", "up_proj", "down_proj")):
                values.mul_(1.5)  # the MLP then adds about as much as the attention
        table, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        head.mul_(normal(head[:, :1], 0.7).exp())  # not all tokens are as likely
        if words:
            head[words:].mul_(0.1)  # no answer ends by chance
            table[words + 1, MASSIVE] = 100.0  # begins every turn
        table[1::100, MASSIVE] = 100.0
    return model


def tiny_qwen2(
    folder: Path,
    tools: Toolchain,
    *,
    seed: int = 0,
    layers: int = 2,
    intermediate: int = 256,
    words: int | None = None,
    trained: bool = False,
) -> Path:
    """A random Qwen2 of `layers` layers, hidden 256, tied embeddings, with Qwen2.5's tokenizer and chat
    template; the folder.

    `words` cuts the vocabulary to so many, before the added tokens. A `trained` model looks so
    (`look_trained`) and has a head of its own.
    """
    import torch
    from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    write_qwen2_tokenizer(folder, tools)
    if words:
        cut_vocabulary(folder / "tokenizer.json", words)
    end = (words or 151_643) + 2
    rows = -(-(words + len(QWEN_ADDED)) // 256) * 256 if words else QWEN_ROWS
    config = Qwen2Config(
        vocab_size=rows,
        hidden_size=256,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        rope_theta=1_000_000.0,
        rms_norm_eps=1e-6,
        tie_word_embeddings=not trained,
        bos_token_id=end - 2,
        eos_token_id=end,
        dtype="bfloat16",
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config)
        model = (look_trained(model, end - 2) if trained else model).to(torch.bfloat16)
    # as Qwen2.5-Instruct publishes it: two ends, and a pad that isn't the end of turn
    model.generation_config = GenerationConfig(
        bos_token_id=end - 2, eos_token_id=[end, end - 2], pad_token_id=end - 2
    )
    model.save_pretrained(folder)
    return folder


def tiny_moe(folder: Path, tools: Toolchain, kind: str) -> Path:
    """A mixture that looks trained, of two layers of four experts, two of them for a token, `kind` Qwen2Moe
    (which has a shared expert too), Qwen3Moe or Mixtral; hidden 256, untied, with the cut tokenizer; the
    folder.
    """
    import torch
    import transformers

    folder.mkdir(parents=True, exist_ok=True)
    write_qwen2_tokenizer(folder, tools)
    cut_vocabulary(folder / "tokenizer.json", WORDS)
    own = {
        "Qwen2Moe": {"shared_expert_intermediate_size": 256, "moe_intermediate_size": 256},
        "Qwen3Moe": {"head_dim": 64, "moe_intermediate_size": 256, "norm_topk_prob": True},
        "Mixtral": {"intermediate_size": 256},
    }
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=ROWS,
        hidden_size=256,
        num_experts=4,
        num_experts_per_tok=2,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        bos_token_id=WORDS,
        eos_token_id=END,
        dtype="bfloat16",
        **own[kind],
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = getattr(transformers, f"{kind}ForCausalLM")(config)
        model = look_trained(model, WORDS).to(torch.bfloat16)
    model.generation_config = transformers.GenerationConfig(
        bos_token_id=WORDS, eos_token_id=[END, WORDS], pad_token_id=WORDS
    )
    model.save_pretrained(folder)
    return folder


def cut_vocabulary(tokenizer_file: Path, kept: int) -> None:
    """Keep the first `kept` tokens and the merges that make them, and number the added tokens behind them."""
    tokenizer_file.write_text(_cut(tokenizer_file.read_text(encoding="utf-8"), kept), encoding="utf-8")


@functools.lru_cache(maxsize=4)
def _cut(text: str, kept: int) -> str:
    content = json.loads(text)
    model = content["model"]
    vocabulary = {token: number for token, number in model["vocab"].items() if number < kept}
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
    model["vocab"] = vocabulary
    model["merges"] = [
        pair for pair in pairs if "".join(pair) in vocabulary and all(part in vocabulary for part in pair)
    ]
    content["added_tokens"] = [
        token | {"id": kept + place} for place, token in enumerate(content["added_tokens"])
    ]
    return json.dumps(content, ensure_ascii=False)


def untied_qwen2(folder: Path, layers: int = 2) -> Path:
    """A random Qwen2 of 512 tokens whose head is a table of its own, without a tokenizer; the folder."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


def write_qwen2_tokenizer(folder: Path, tools: Toolchain) -> None:
    """Qwen2.5's tokenizer.json, tokenizer_config.json and chat_template.jinja, from the vocabulary and
    template that llama.cpp carries.
    """
    (folder / "tokenizer.json").write_text(_qwen2_tokenizer(tools.source), encoding="utf-8")
    settings = {
        "tokenizer_class": "Qwen2Tokenizer",
        "add_prefix_space": False,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "model_max_length": 131_072,
        "clean_up_tokenization_spaces": False,
        "errors": "replace",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    template = (tools.source / "models" / "templates" / "Qwen-Qwen2.5-7B-Instruct.jinja").read_text(
        encoding="utf-8"
    )
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


@functools.cache
def _qwen2_tokenizer(source: Path) -> str:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    fields = read_header(source / "models" / "ggml-vocab-qwen2.gguf").fields
    words, merges = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.merges"]
    first_added = words.index(QWEN_ADDED[0])
    vocabulary = {word: number for number, word in enumerate(words[:first_added])}
    tokenizer = Tokenizer(
        models.BPE(
            vocabulary,
            [tuple(merge.split(" ")) for merge in merges],
            continuing_subword_prefix="",
            end_of_word_suffix="",
        )
    )
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(
        [
            AddedToken(word, special=place < QWEN_SPECIAL, normalized=False)
            for place, word in enumerate(QWEN_ADDED)
        ]
    )
    return str(tokenizer.to_str(pretty=True))


def tiny_gguf(file: Path, *, tensors: dict[str, Any] | None = None, **changed: Any) -> Path:
    """A random one-layer Llama with a byte vocabulary, two merges and ChatML's tokens as a GGUF file; the
    file.

    `changed` replaces metadata fields ("." written as "__"; None leaves a field out), `tensors` adds or
    replaces tensors by name (None leaves one out).
    """
    import gguf
    import numpy as np

    words = [*BYTE_LETTERS, "he", "ll", "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    hidden, inner = 32, 64
    fields: dict[str, Any] = {
        "general.name": "tiny",
        "general.license": "apache-2.0",
        "llama.block_count": 1,
        "llama.context_length": 256,
        "llama.embedding_length": hidden,
        "llama.feed_forward_length": inner,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 4,
        "llama.rope.dimension_count": hidden // 4,
        "llama.vocab_size": len(words),
        "llama.rope.freq_base": 10_000.0,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.token_type": [1] * 258 + [3] * 3,
        "tokenizer.ggml.merges": ["h e", "l l"],
        "tokenizer.ggml.unknown_token_id": 258,
        "tokenizer.ggml.bos_token_id": 259,
        "tokenizer.ggml.eos_token_id": 260,
        "tokenizer.ggml.padding_token_id": 260,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHATML,
    }
    fields |= {key.replace("__", "."): value for key, value in changed.items()}
    writer = gguf.GGUFWriter(file, "llama")
    add = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    for key, value in fields.items():
        if value is not None:
            add[type(value)](key, value)
    random = np.random.default_rng(0)
    shapes = {f"blk.0.attn_{part}.weight": (hidden, hidden) for part in ("q", "k", "v", "output")}
    shapes |= {
        "token_embd.weight": (len(words), hidden),
        "blk.0.ffn_gate.weight": (inner, hidden),
        "blk.0.ffn_up.weight": (inner, hidden),
    }
    shapes |= {"blk.0.ffn_down.weight": (hidden, inner)}
    weights: dict[str, Any] = {
        name: random.normal(0, 0.1, shape).astype(np.float16) for name, shape in shapes.items()
    }
    weights |= {
        name: np.ones(hidden, np.float32)
        for name in ("output_norm.weight", "blk.0.attn_norm.weight", "blk.0.ffn_norm.weight")
    }
    write_tensors(writer, weights | (tensors or {}))
    return file


def write_tensors(writer: Any, tensors: Mapping[str, Any]) -> None:
    """Write the file of a `gguf.GGUFWriter` with these tensors, but for those that are None, and close it."""
    for name, values in tensors.items():
        if values is not None:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


FOUR_STEPS = {
    "bnb_4bit_compute_dtype": "float32",
    "max_steps": 4,
    "learning_rate": 1.0e-2,
    "gradient_accumulation_steps": 1,
    "eval_steps": 2,
    "save_steps": 2,
    "sample_rows": 0,
}  # of `train`, for bases that are random and train in seconds


def tiny_params(base: Path) -> dict[str, Any]:
    """The demo recipe cut to a one-minute run on the Hugging Face folder `base`; a fresh dict each time."""
    params: dict[str, Any] = load_params(PROJECT / "recipes" / "demo.yaml").model_dump(mode="json")
    small: dict[str, dict[str, Any]] = {
        "base": {
            "model": str(base),
            "revision": None,
            "file": None,
            "sha256": None,
            "places": [],
        },
        "curate": {"val_fraction": 0.1, "test_fraction": 0.2},
        "preprocess": {"max_length": 160},
        "train": {
            "max_steps": 2,
            "r": 4,
            "lora_alpha": 8,
            "gradient_accumulation_steps": 1,
            "save_steps": 1,
            "learning_rate": 1.0e-3,
            "sample_rows": 1,
        },
        "convert": {"name": "tiny"},
        "merge": {"base": "16-bit"},
        "machine": {"threads": 1},
        "parity": {"conversations": 4, "rows": 2, "depth": "standard"},
        "quantize": {"levels": ["Q4_K_M", "Q5_K_M"]},
        "evaluate": {
            "models": ["base-F16", "F16", "Q4_K_M", "Q5_K_M"],
            "perplexity_rows": 4,
            "task_rows": 2,
            "max_new_tokens": 8,
            "parallel": 1,
            "scorers": ["exact_match"],
            "general": "none",
        },
    }
    for section, values in small.items():
        params[section] |= values
    return params


def gguf_params(gguf: Path) -> dict[str, Any]:
    """`tiny_params` for the GGUF base `gguf`, trained on and served as is (Q4_K_M); a new dict each time."""
    params = tiny_params(gguf)
    params["base"] |= {"quantization": "gguf", "level": "Q4_K_M"}
    params["evaluate"] |= {"models": ["source", "base", "adapter"]}
    return params


def write_project(root: Path, params: dict[str, Any], rows: int = 40) -> Path:
    """A project folder: params.yaml and `rows` short conversations in data/raw/chats.jsonl; the folder."""
    raw = root / "data" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    (root / "params.yaml").write_text(
        yaml.safe_dump(params, sort_keys=False, allow_unicode=True), encoding="utf-8"
    )
    with (raw / "chats.jsonl").open("w", encoding="utf-8", newline="\n") as file:
        for number in range(rows):
            question, answer = (
                f"What is {number} plus {number + 3}? – Antwort, s'il vous plaît",
                f"{2 * number + 3} 🙂",
            )
            messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
            file.write(json.dumps({"messages": messages}, ensure_ascii=False) + "\n")
    return root
