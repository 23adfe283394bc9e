"""Build a model from the weights of a GGUF of a known family, for files that transformers can't read."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from pipeline.gguf.delta_heads import from_file
from pipeline.gguf.dequantize import dequantize
from pipeline.models.loading import class_for
from pipeline.models.quantized_linear import QuantizedEmbedding, QuantizedLinear
from pipeline.models.quantized_model import load_gguf


def unpacked_model(file: Path, config: Any, dtype: torch.dtype) -> Any:
    """Return transformers' model of `config` with the weights of `file`, each computed in float32 and rounded
    once to `dtype`.

    Raises `DataError` if the tensors of the file and the weights of the model are not one to one.
    """
    with TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        # An absolute path as `name` replaces the folder.
        quantized = load_gguf(
            Path(folder), compute_dtype=torch.float32, device="cpu", name=str(file.absolute())
        )
    with torch.device("meta"):
        model = class_for(config)._from_config(config, dtype=dtype)
    model.load_state_dict(stored_weights(quantized, dtype), assign=True)
    model.tie_weights()
    return model.requires_grad_(False).eval()


def stored_weights(model: Any, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return the values of a model of `load_gguf` by the parameters' names. A tied head and its embeddings
    have one tensor.
    """
    weights: dict[str, torch.Tensor] = {}
    matrices: dict[int, torch.Tensor] = {}  # {id of the parameter with the stored bytes: values}
    for path, module in model.named_modules():
        for leaf, parameter in module.named_parameters(recurse=False):
            if leaf == "weight" and isinstance(module, QuantizedLinear | QuantizedEmbedding):
                if id(parameter) not in matrices:
                    matrices[id(parameter)] = dense(module, dtype)
                weights[f"{path}.{leaf}"] = matrices[id(parameter)]
            else:
                weights[f"{path}.{leaf}"] = parameter.data.to(dtype)
    return weights


def dense(module: QuantizedLinear | QuantizedEmbedding, dtype: torch.dtype) -> torch.Tensor:
    """Return the weight (rows, columns) of a quantized module in the model's order."""
    weight = dequantize(module.weight.data, module.ggml_type, dtype)
    if isinstance(module, QuantizedLinear) and module.grid:
        weight = from_file(weight, module.grid)
    return weight
