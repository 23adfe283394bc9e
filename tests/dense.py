"""Linears of a GGUF's blocks with dense weights: what the quantized ones are compared with."""

import torch

from pipeline.models.quantized_linear import QuantizedLinear, dequantize


def dense(linear: QuantizedLinear) -> torch.nn.Linear:
    """The same linear, frozen, with its weight in the compute type."""
    plain = torch.nn.Linear(linear.in_features, linear.out_features, linear.bias is not None, device="meta")
    weight = dequantize(linear.weight, linear.ggml_type, linear.compute_dtype)
    plain.weight, plain.bias = torch.nn.Parameter(weight, requires_grad=False), linear.bias
    return plain
