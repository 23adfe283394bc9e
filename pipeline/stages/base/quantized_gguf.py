"""A GGUF file as the base, unchanged: the file itself, and beside it what transformers needs to know of it.

Nothing is dequantized: weights stay in `model.gguf`. Configuration, tokenizer and template come from the
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
from pipeline.gguf.families import TRAINED_ON, family_in
from pipeline.gguf.file import check_gguf
from pipeline.gguf.header import Header
from pipeline.gguf.rope import published_settings
from pipeline.gguf.tuned_file import rewrite_header
from pipeline.llamacpp.converters import NO_TYPES, Quantizing, quantize_gguf
from pipeline.llamacpp.tools import Llama, Toolchain, run_tool
from pipeline.models.base_header import CHAT_TEMPLATE, checked_header, stated_config
from pipeline.models.header_config import header_config
from pipeline.stages.base.chats import EARLY_BYTES, ChatSettings
from pipeline.stages.base.file_choice import gguf_parts
from pipeline.stages.base.gguf_import import from_gguf, load_tokenizer_of, same_ids_as_llama_cpp
from pipeline.stages.base.hf_folder import TEMPLATE_FILE, special_ids
from pipeline.stages.base.template_files import settle_in_gguf

# facts that say that the template was changed
TEMPLATE_CHANGES = {"prompt_ended_in", "template_begun", "template_end_kept"}
IN_HEADER = {"named_end", *TEMPLATE_CHANGES}  # facts on what a GGUF says too
ARRIVED = ".arrived.gguf"  # a download, in the folder that it belongs in


def joined(file: Path, folder: Path, tools: Toolchain) -> Path:
    """`file`, or where it is the first of several parts the whole, made in `folder`; parts that lie in
    `folder` are removed.

    Raises `DataError` if a part is missing, `ToolError` if llama-gguf-split fails, `MachineError` if the disk
    is too small.
    """
    parts = [file.with_name(name) for name in gguf_parts(file.name)]
    if len(parts) == 1:
        return file
    if missing := [part.name for part in parts if not part.is_file()]:
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
    """Put `file` into `folder` as `model.gguf`, at `level` with `tensor_types` if one is named (then the
    original stays beside it), with config, tokenizer and what is chosen for chats; the header of
    `model.gguf`, and whether its chat template asks for today's date.

    A file that has arrived in `folder` is moved, one of the user's is copied. Raises `DataError` if the file
    is not whole, can't be trained on, has no template, or its tokenizer differs from llama.cpp's; `ToolError`
    if llama-quantize fails, `MachineError` where the disk is too small.
    """
    import torch

    from pipeline.models.quantized_model import load_gguf

    header = checked_header(file)
    need_trained_family(header, file)
    if file.stat().st_size >= EARLY_BYTES:
        load_tokenizer_of(file, header)
    model, original = folder / MODEL_FILE, folder / (SOURCE_FILE if level else MODEL_FILE)
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
    # every tensor fills exactly one weight, or this raises; the file is mapped, so it reads little more than
    # the header, and better here than after the data was curated
    load_gguf(folder, compute_dtype=torch.float32, device="cpu")
    return header, is_dated


def settle_headers(folder: Path, facts: Mapping[str, Any]) -> Header:
    """Put the end of turn and the chat template of `folder` into the metadata of the GGUFs there, which
    llama-server goes by, if `facts` say that they were changed; return the header of `model.gguf`.
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
    """Copy by the kernel: on a file system that can share blocks (Btrfs, XFS) neither time nor disk is taken.

    A copy and not a hard link: two names of one file share its bytes, so whatever writes to one would change
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
    """Raise `DataError` if nothing can be trained on files of this architecture. The header says so before
    the file is copied, or quantized.
    """
    architecture = header.fields.get("general.architecture")
    if architecture not in TRAINED_ON:
        raise DataError(
            "Q-MODELS-028",
            f"{file} is of architecture {architecture}, and adapters are trained on the GGUFs of "
            f"{', '.join(TRAINED_ON)}: set base.quantization to nf4, with the model's Hugging Face folder",
        )


def need_dequantizers(header: Header, file: Path) -> None:
    """Raise `DataError` if a matrix of the file has a type that training has no dequantizer for."""
    from pipeline.gguf.dequantize import layout

    for name, (_, kind) in header.tensors.items():
        try:
            layout(kind)
        except DataError as error:
            raise DataError("Q-GGUF-001", f"{name} of {file}: {error.sentence}") from None


def write_config(model: Path, header: Header, folder: Path, special: dict[str, int | None]) -> None:
    """`config.json` and `generation_config.json` as transformers reads them. Raises `DataError`."""
    from transformers import AutoConfig, GenerationConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    architecture = header.fields["general.architecture"]
    family = family_in(header.fields)
    config = (
        header_config(header, family, model)
        if family and family.model_type
        else from_gguf(AutoConfig, model, header)
    )
    stated = stated_config(header)
    kind = stated.pop("model_type", config.model_type)
    if kind != config.model_type:  # of a Mixtral it says Llama
        same = {key: value for key, value in config.to_dict().items() if key != "model_type"}
        config = AutoConfig.for_model(kind, **same)
    settings: dict[str, Any] = {"architectures": [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]]}
    if width := header.fields.get(f"{architecture}.attention.key_length"):
        settings["head_dim"] = width  # which transformers 5.23 doesn't read for Qwen3, and takes for 128
    if f"{architecture}.attention.sliding_window" not in header.fields and hasattr(config, "sliding_window"):
        # llama.cpp has none then, and transformers would take Mistral's 4,096
        settings["sliding_window"] = None
    rope = published_settings(header, model)
    if rope:
        settings["rope_parameters"] = rope
    config.update(settings | stated | special)
    config.save_pretrained(folder)
    GenerationConfig(**special).save_pretrained(folder)
