"""Load a causal language model whose weights are the bytes of a GGUF: the model that LoRA trains on and that
llama-server then serves.

A GGUF stores norms and biases in float32. They are rounded to the compute type, as transformers does when it
loads a model in that type.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from pipeline.config.targets import layer_of
from pipeline.core.errors import DataError
from pipeline.gguf.base_files import MODEL_FILE
from pipeline.gguf.families.registry import BY_CLASS
from pipeline.gguf.header import Header
from pipeline.gguf.rope import TENSORS, factors_of, same_factors, stored_factors
from pipeline.gguf.sources import name_map, reordered_heads
from pipeline.gguf.tensors import GgufTensor, gguf_tensors
from pipeline.models.gguf_names import Names, is_matrix, prove_complete, values_at
from pipeline.models.loading import class_for, read_config
from pipeline.models.quantized_linear import QuantizedEmbedding, QuantizedLinear

FLOATS = ("F32", "F16", "BF16")


def load_gguf(
    folder: Path,
    *,
    compute_dtype: torch.dtype,
    device: str,
    name: str = MODEL_FILE,
    in_main_memory: int = 0,
) -> Any:
    """Return the model of `folder` (config.json and the GGUF `name`), frozen, in evaluation mode, with
    quantized linears, embedding and head.

    The file is mapped: on a CPU the quantized weights are views of it. A GPU gets them tensor by tensor,
    except for the quantized linears of the first `in_main_memory` layers, which stay in main memory
    (`pipeline.models.offload`). Raises `DataError` if the architecture is not one that can be trained on, or
    unless every tensor of the file fills exactly one parameter (for a mixture, one expert each of a layer)
    and every parameter is filled.
    """
    file = folder / name
    header, tensors = gguf_tensors(file)
    config = read_config(folder)
    names = tensor_names(config, header, file)
    check_rope(config, header, file)
    for factors in TENSORS:
        # These factors belong to no parameter; they are computed from config.json.
        tensors.pop(factors, None)
    if header.drafting:
        tensors = {name: values for name, values in tensors.items() if not name.startswith(header.drafting)}
    model = empty_model(folder, config, compute_dtype, device)
    fill(model, tensors, names, compute_dtype, device, in_main_memory)
    prove_complete(model, tensors, names)
    model.config.use_cache = False  # As for NF4: with a cache, packed rows leak into each other.
    return model.requires_grad_(False).eval()


def tensor_names(config: Any, header: Header, file: Path) -> Names:
    """Return the names for this model's architecture. Raises `DataError` if it is not one that can be trained
    quantized, or not the file's.
    """
    class_name = (getattr(config, "architectures", None) or ["model without architectures"])[0]
    family = BY_CLASS.get(class_name)
    if family is None or not family.trained_on:
        can = ", ".join(name for name, known in BY_CLASS.items() if known.trained_on)
        raise DataError(
            "Q-MODELS-028",
            f"{file.parent} is a {class_name}, and only {can} can be trained on a GGUF's weights: set "
            "base.quantization to nf4",
        )
    stated = header.fields.get("general.architecture")
    if stated != family.name:
        raise DataError(
            "Q-MODELS-029",
            f"{file} is of architecture {stated} and config.json beside it of {family.name}: run `snakemake "
            "--force base`",
        )
    settings = config.to_dict()
    return Names(
        file,
        name_map(family, config.num_hidden_layers),
        reordered_heads(family, settings),
        family,
        family.delta_heads(settings),
    )


def check_rope(config: Any, header: Header, file: Path) -> None:
    """Raise `DataError` unless the rotary factors in the file are those that the model computes with."""
    stored = stored_factors(header, file)
    computed = factors_of(config)
    for name in sorted(stored.keys() | computed.keys()):
        if name in stored and name in computed and same_factors(stored[name], computed[name]):
            continue
        raise DataError(
            "Q-MODELS-005",
            f"{file} has other rotary positions ({name}) than config.json beside it, so training would not "
            "compute what llama.cpp does: run `snakemake --force base`",
        )


def empty_model(folder: Path, config: Any, dtype: torch.dtype, device: str) -> Any:
    """Return the model without weights: parameters on the meta device, its rotary table on `device`."""
    from transformers import GenerationConfig

    with torch.device("meta"):
        model = class_for(config)._from_config(config, dtype=dtype)
    # Its table is not a parameter and in no file.
    model.model.rotary_emb = type(model.model.rotary_emb)(config=config).to(device)
    if (folder / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder, local_files_only=True)
    return model


def fill(
    model: Any,
    tensors: dict[str, GgufTensor],
    names: Names,
    dtype: torch.dtype,
    device: str,
    in_main_memory: int,
) -> None:
    """Give every module of `model` its weights; linears of the first `in_main_memory` layers stay there.

    Raises `DataError` if the file lacks one or it has another shape.
    """
    mapped = torch.from_file(str(names.file), shared=False, size=names.file.stat().st_size, dtype=torch.uint8)
    for path, module in list(model.named_modules()):
        for leaf, parameter in list(module.named_parameters(recurse=False)):
            if leaf == "weight" and is_matrix(path, module):
                continue  # It is filled below.
            name = f"{path}.{leaf}"
            values = vector(find(tensors, names, name, parameter), names, name, dtype)
            values = values.reshape(parameter.shape)
            setattr(module, leaf, torch.nn.Parameter(values.to(device), requires_grad=False))
    tied = model.config.tie_word_embeddings
    for path, module in list(model.named_modules()):
        if not is_matrix(path, module) or (tied and path == "lm_head"):
            continue
        tensor = find(tensors, names, f"{path}.weight", module.weight)
        layer = layer_of(path)
        place = "cpu" if layer is not None and layer < in_main_memory else device
        quantized = quantized_rows(tensor, mapped, names, f"{path}.weight").to(place)
        matrix = (
            QuantizedLinear(
                quantized,
                tensor.ggml_type,
                module.bias,
                compute_dtype=dtype,
                grid=names.grid(f"{path}.weight"),
            )
            if isinstance(module, torch.nn.Linear)
            else QuantizedEmbedding(
                quantized,
                tensor.ggml_type,
                module.padding_idx,
                compute_dtype=dtype,
                # Gemma's scale. Its buffer embed_scale is on the meta device, as the table is.
                scale=getattr(module, "scalar_embed_scale", None),
            )
        )
        model.set_submodule(path, matrix)
    if tied:
        embeddings = model.get_input_embeddings()  # The head has this very weight.
        model.lm_head = QuantizedLinear(embeddings.weight, embeddings.ggml_type, compute_dtype=dtype)


def find(tensors: dict[str, GgufTensor], names: Names, parameter: str, like: torch.Tensor) -> GgufTensor:
    """Return the tensor of a parameter, with its shape. Raises `DataError` if there is none."""
    place = names.place(parameter)
    tensor = values_at(tensors, place)
    if tensor is None:
        raise DataError(
            "Q-MODELS-029",
            f"{names.file} has no {place.tensor}, which config.json asks for ({parameter}): run `snakemake "
            "--force base`",
        )
    # llama.cpp's tools leave out a dimension of 1: a shared expert's gate has one output, a filter one input.
    if without_ones(tensor.shape) != without_ones(like.shape):
        raise DataError(
            "Q-MODELS-029",
            f"{names.file}: {place.tensor} is {tensor.shape} and config.json asks for {tuple(like.shape)}: "
            "run `snakemake --force base`",
        )
    return tensor


def without_ones(shape: Iterable[int]) -> list[int]:
    """Return the sizes of a shape that are not 1."""
    return [size for size in shape if size != 1]


def vector(tensor: GgufTensor, names: Names, parameter: str, dtype: torch.dtype) -> torch.Tensor:
    """Return a norm, bias, filter or router as in transformers' model, in the compute type. Raises
    `DataError` if that type can't represent one of its values, or if it is stored in blocks, as no file of
    llama.cpp's tools has it.
    """
    if tensor.type not in FLOATS:
        raise DataError(
            "Q-MODELS-030",
            f"{tensor.file}: {tensor.name} is a vector, filter or router in {tensor.type}, not in floats: "
            "take another file of this model",
        )
    stored = names.in_model(parameter, torch.from_numpy(tensor.values(0, tensor.rows).copy()))
    if tensor.rows == 1:
        stored = stored.reshape(-1, 1)
    values = names.in_order(parameter, stored).to(dtype)
    if not bool(values.isfinite().all()):
        raise DataError(
            "Q-MODELS-031",
            f"{tensor.file}: {tensor.name} has values that {dtype} can't hold: set "
            "train.bnb_4bit_compute_dtype to bfloat16",
        )
    return values


def quantized_rows(tensor: GgufTensor, mapped: torch.Tensor, names: Names, parameter: str) -> torch.Tensor:
    """Return a matrix's quantized rows (rows, row_bytes) in transformers' order: a view of the mapped file if
    that is the file's own.
    """
    if names.row_places(parameter, tensor.rows) is not None:
        # The rows are read without the map, so that they are in memory once.
        return names.in_order(parameter, torch.from_numpy(tensor.stored(0, tensor.rows)))
    return mapped[tensor.start : tensor.start + tensor.rows * tensor.row_bytes].view(
        tensor.rows, tensor.row_bytes
    )
