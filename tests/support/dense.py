"""Linears and models of a GGUF's blocks with dense weights: what the quantized ones are compared with."""

from typing import Any

import torch

from pipeline.gguf.delta_heads import from_file
from pipeline.models.quantized_linear import QuantizedEmbedding, QuantizedLinear, dequantize


def dense(linear: QuantizedLinear) -> torch.nn.Linear:
    """The same linear, frozen, with its weight in the compute type."""
    plain = torch.nn.Linear(linear.in_features, linear.out_features, linear.bias is not None, device="meta")
    weight = dequantize(linear.weight, linear.ggml_type, linear.compute_dtype)
    weight = from_file(weight, linear.grid) if linear.grid else weight
    plain.weight, plain.bias = torch.nn.Parameter(weight, requires_grad=False), linear.bias
    return plain


def dense_model(model: Any) -> Any:
    """The same model, its linears, embeddings and head dense."""
    tied = model.config.tie_word_embeddings
    for path, module in list(model.named_modules()):
        if isinstance(module, QuantizedLinear) and not (tied and path == "lm_head"):
            model.set_submodule(path, dense(module))
        elif isinstance(module, QuantizedEmbedding):
            table = dequantize(module.weight, module.ggml_type, module.compute_dtype)
            plain = torch.nn.Embedding(*table.shape, module.padding_idx, _weight=table)
            if module.embed_scale is not None:
                factor = module.embed_scale.to(module.compute_dtype)
                plain.register_forward_hook(lambda _, ids, rows, factor=factor: rows * factor)
            model.set_submodule(path, plain)
            model.get_input_embeddings().requires_grad_(False)
    if tied:
        head = torch.nn.Linear(1, 1, bias=False, device="meta")
        head.weight = model.get_input_embeddings().weight
        model.lm_head = head
    return model
