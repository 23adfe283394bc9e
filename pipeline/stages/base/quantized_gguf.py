"""A GGUF file as the base, unchanged, with the files that transformers needs next to it.

Nothing is dequantized: the weights stay in `model.gguf`. Configuration, tokenizer and template come from the
file's own metadata.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.chat.tokens import save_tokenizer
from pipeline.core.errors import DataError
from pipeline.core.publish import need_disk
from pipeline.gguf.base_files import MODEL_FILE, SOURCE_FILE
from pipeline.gguf.families.registry import TRAINED_ON, family_in
from pipeline.gguf.file import check_gguf
from pipeline.gguf.header import Header
from pipeline.gguf.rope import published_settings
from pipeline.gguf.tuned_file import rewrite_header
from pipeline.llamacpp.converters import NO_TYPES, Quantizing, quantize_gguf
from pipeline.llamacpp.tools import Llama, Toolchain, run_tool
from pipeline.models.base_header import (
    CHAT_TEMPLATE,
    need_known_positions,
    stated_config,
    whole_header,
)
from pipeline.models.header_config import header_config
from pipeline.stages.base.chats import EARLY_BYTES, TEMPLATE_FILE, ChatSettings
from pipeline.stages.base.file_choice import gguf_parts, need_files
from pipeline.stages.base.gguf_import import from_gguf, load_tokenizer_of, same_ids_as_llama_cpp
from pipeline.stages.base.hf_folder import special_ids
from pipeline.stages.base.template_files import settle_in_gguf

# facts that report a changed template
TEMPLATE_CHANGES = {"prompt_ended_in", "template_begun", "template_end_kept"}
IN_HEADER = {"named_end", *TEMPLATE_CHANGES}  # facts on settings that a GGUF's header contains too
ARRIVED = ".arrived.gguf"  # name of a download in its target folder


def joined(file: Path, folder: Path, tools: Toolchain) -> Path:
    """Return `file`, or the joined file in `folder` if `file` is the first part of a split GGUF. Parts that
    are in `folder` are removed.

    Raises `DataError` if a part is missing or a pointer of Git LFS, `ToolError` if llama-gguf-split fails,
    `MachineError` if the disk is too small.
    """
    parts = [file.with_name(name) for name in gguf_parts(file.name)]
    need_files(file.parent, [part.name for part in parts if part.is_file()])
    if len(parts) == 1:
        return file
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        raise DataError(
            "Q-BASE-023",
            f"{file} is the first of {len(parts)} parts, and {', '.join(missing)} is not beside it: fetch "
            "all parts",
        )
    need_disk(folder, sum(part.stat().st_size for part in parts))
    run_tool([tools.tool("llama-gguf-split"), "--merge", file, folder / ARRIVED])
    for part in parts:
        if part.parent == folder:
            part.unlink()
    return folder / ARRIVED


def keep_gguf(
    file: Path,
    folder: Path,
    level: str | None,
    tools: Toolchain,
    chats: ChatSettings,
    tensor_types: Mapping[str, str] = NO_TYPES,
) -> tuple[Header, bool]:
    """Put `file` into `folder` as `model.gguf`, with config, tokenizer and the chat settings. Return the
    header of `model.gguf`, and whether its chat template calls for today's date.

    If `level` is given, the file is quantized to it with `tensor_types`, and the original stays next to it. A
    file that has arrived in `folder` is moved; a user's file is copied. Raises `DataError` if the file is
    incomplete, can't be trained on, has no template, or its tokenizer differs from llama.cpp's; `ToolError`
    if llama-quantize fails, `MachineError` if the disk is too small.
    """
    import torch

    from pipeline.models.quantized_model import load_gguf

    header = whole_header(file)
    need_trained_family(header, file)
    need_known_positions(header, file)
    if file.stat().st_size >= EARLY_BYTES:
        load_tokenizer_of(file, header)
    model = folder / MODEL_FILE
    original = folder / (SOURCE_FILE if level else MODEL_FILE)
    if file.parent == folder:
        file.rename(original)
    else:
        need_disk(folder.parent, file.stat().st_size)
        copy_file(file, original)
    is_dated = settle_in_gguf(original, header, chats)
    if level:
        print(f"base: quantizing {file.name} to {level}", flush=True)
        options = Quantizing(tensor_types=tensor_types, requantize=True)
        quantize_gguf(Llama(tools, os.cpu_count() or 1), original, model, level, options)
    header = check_gguf(model)
    need_dequantizers(header, file)
    tokenizer = load_tokenizer_of(model, header)
    save_tokenizer(tokenizer, folder)
    write_config(model, header, folder, special_ids(tokenizer))
    same_ids_as_llama_cpp(model, folder, tools, tokenizer.eos_token)
    # Loading raises unless every tensor fills exactly one weight. The file is memory-mapped, so little more
    # than the header is read, and an error here is better than one after the data was curated.
    load_gguf(folder, compute_dtype=torch.float32, device="cpu")
    return header, is_dated


def settle_headers(folder: Path, facts: Mapping[str, Any]) -> Header:
    """Write the end of turn and the chat template of `folder` into the metadata of the GGUFs there if `facts`
    report that they were changed, because llama-server reads them there. Return the header of `model.gguf`.
    """
    for name in (SOURCE_FILE, MODEL_FILE):
        file = folder / name
        if file.is_file():
            header = check_gguf(file)
            fields: dict[str, str | int] = {}
            if "named_end" in facts:
                number = header.fields["tokenizer.ggml.tokens"].index(facts["eos_token"])
                fields["tokenizer.ggml.eos_token_id"] = number
            if facts.keys() & TEMPLATE_CHANGES:
                fields[CHAT_TEMPLATE] = (folder / TEMPLATE_FILE).read_text(encoding="utf-8")
            rewrite_header(file, header, fields)
    return check_gguf(folder / MODEL_FILE)


def copy_file(source: Path, target: Path) -> None:
    """Copy a file with the kernel's copy. On file systems that can share blocks (Btrfs, XFS) it takes neither
    time nor space.

    It is a copy and not a hard link: two names of one file share its bytes, so a write to one would change
    the user's own file.
    """
    with source.open("rb") as stream, target.open("wb") as copy:
        try:
            while os.copy_file_range(stream.fileno(), copy.fileno(), 1 << 30):
                pass
        except (AttributeError, OSError):  # another system, or two file systems
            stream.seek(0)
            copy.seek(0)
            shutil.copyfileobj(stream, copy, 1 << 20)


def need_trained_family(header: Header, file: Path) -> None:
    """Raise `DataError` if nothing can be trained on files of this architecture. The header tells so before
    the file is copied or quantized.
    """
    architecture = header.fields.get("general.architecture")
    if architecture not in TRAINED_ON:
        raise DataError(
            "Q-MODELS-028",
            f"{file} is of architecture {architecture}, and adapters are trained on the GGUFs of "
            f"{', '.join(TRAINED_ON)}: set base.quantization to nf4, with the model's Hugging Face folder",
        )


def need_dequantizers(header: Header, file: Path) -> None:
    """Raise `DataError` if a matrix of the file has a type without a dequantizer for training."""
    from pipeline.gguf.dequantize import layout

    for name, (_, kind) in header.tensors.items():
        try:
            layout(kind)
        except DataError as error:
            raise DataError("Q-GGUF-001", f"{name} of {file}: {error.sentence}") from None


def write_config(model: Path, header: Header, folder: Path, special: dict[str, int | None]) -> None:
    """Write `config.json` and `generation_config.json` as transformers reads them. Raises `DataError` if the
    header can't be read as a configuration.
    """
    from transformers import AutoConfig, GenerationConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    architecture = header.fields["general.architecture"]
    family = family_in(header.fields)
    if family and family.model_type:
        config = header_config(header, family, model)
    else:
        config = from_gguf(AutoConfig, model, header)
    stated = stated_config(header)
    kind = stated.pop("model_type", config.model_type)
    if kind != config.model_type:  # transformers reads a Mixtral's GGUF as a Llama
        same = {key: value for key, value in config.to_dict().items() if key != "model_type"}
        config = AutoConfig.for_model(kind, **same)
    settings: dict[str, Any] = {"architectures": [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]]}
    width = header.fields.get(f"{architecture}.attention.key_length")
    if width:
        settings["head_dim"] = width  # transformers 5.23 does not read it for Qwen3 and assumes 128
    if f"{architecture}.attention.sliding_window" not in header.fields and hasattr(config, "sliding_window"):
        # llama.cpp then uses no window, and transformers would use Mistral's 4,096.
        settings["sliding_window"] = None
    rope = published_settings(header, model)
    if rope:
        settings["rope_parameters"] = rope
    config.update(settings | stated | special)
    config.save_pretrained(folder)
    GenerationConfig(**special).save_pretrained(folder)
