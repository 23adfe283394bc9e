"""A GGUF's scales trained by chance and the file that is made of them, without the stages that do it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gguf_edit import change_fields, change_rows
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from pipeline.config.tuners import SCALES_FILE
from pipeline.core.hashing import file_hash, json_hash
from pipeline.gguf.base_files import MODEL_FILE
from pipeline.gguf.provenance import ADAPTER, BASE_FILE
from pipeline.gguf.tensors import Bytes, gguf_tensors
from pipeline.models.quantized_model import load_gguf, tensor_names
from pipeline.models.tuners.scaled_linear import put_scales

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj")


def write_config(folder: Path) -> Path:
    """The config.json of `tiny.tiny_gguf`; the folder."""
    sizes = {"vocab_size": 261, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 256}
    tied = {"rms_norm_eps": 1e-5, "tie_word_embeddings": True, "architectures": ["LlamaForCausalLM"]}
    AutoConfig.for_model("llama", **sizes, **heads, **tied).save_pretrained(folder)
    return folder


def train_by_chance(base: Path, adapter: Path, size: float = 0.05, **settings: Any) -> None:
    """Put scales that are changed by about `size`, and the record of their run, into the folder `adapter`."""
    linears = put_scales(load_gguf(base, compute_dtype=torch.float32, device="cpu"), trains)
    torch.manual_seed(0)
    adapter.mkdir(exist_ok=True)
    save_file(
        {path: torch.randn_like(one.change) * size for path, one in linears.items()}, adapter / SCALES_FILE
    )
    record = {
        "settings": {"quantization": "gguf", "tuner": "scales", "bnb_4bit_compute_dtype": "float32"}
        | settings,
        "base": {"weights_sha256": json_hash({MODEL_FILE: file_hash(base / MODEL_FILE)})},
    }
    (adapter / "run.json").write_text(json.dumps(record))


def tune_by_hand(base: Path, adapter: Path, target: Path) -> None:
    """Write the tuned file: the base's bytes, with each trained linear's as the model computes with them."""
    shutil.copy(base / MODEL_FILE, target)
    model = load_gguf(base, compute_dtype=torch.float32, device="cpu")
    names = tensor_names(model.config, gguf_tensors(target)[0], target)
    linears, changes = put_scales(model, trains), load_file(adapter / SCALES_FILE)
    for path, linear in linears.items():
        linear.change.data.copy_(changes[path])
        tuned, parameter = linear.tuned().weight, f"{path}.weight"
        in_file = names.in_file_order(parameter, tuned)
        change_rows(target, names.of(parameter), replaced_by(in_file.numpy()))
    change_fields(
        target, {ADAPTER: file_hash(adapter / SCALES_FILE), BASE_FILE: file_hash(base / MODEL_FILE)}
    )


def trains(path: str) -> bool:
    return path.endswith(TARGETS)


def replaced_by(rows: Bytes) -> Callable[[Bytes], Bytes]:
    """For `change_rows`: `rows`, whatever is there."""
    return lambda _: rows
