"""LoRA on a CPU with products in 16 bit, as on a GPU, in less time and memory than PEFT takes.

PEFT casts the input of each adapter to float32, and autograd keeps every cast: three times that of the same
tensor for q, k and v. With dropout it keeps the noise too, in float32. The casts are a third of what a layer
keeps, with dropout half. The input in 16 bit is kept anyway, so here the backward casts it again. Of the
noise, one byte a feature is kept that marks what was dropped.

Temporary values (a float32 sum of an MLP's width takes 20 MB at 1,024 tokens) use the same memory again.
glibc before 2.38 can't give a freed block to an aligned request of its own size, so each one would leave a
hole between what is kept.

For the lengths of the rows of W + B·A, PEFT's DoRA multiplies a unit matrix by the adapter, and autograd
keeps it: 95 MB for the widest linear of a model of 0.5 billion. Nothing flows back through the lengths, so
here B·A is added to the weights, and nothing of it is kept.

Dropout draws other numbers than PyTorch's, whose draw leaves such holes and takes four times as long. It
draws 16 bits for each feature, so shares are rounded to 1/65,536.
"""

from functools import partial
from typing import Any

import torch

from pipeline.config.targets import is_router
from pipeline.models.quantized_linear import QuantizedLinear

_scratch: dict[tuple[str, torch.dtype], torch.Tensor] = {}


def scratch(name: str, like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return memory for a tensor with the shape of `like`. The next call with this name overwrites it."""
    key = name, dtype
    if key not in _scratch or _scratch[key].numel() < like.numel():
        with torch.inference_mode(False):  # Training could not write to a tensor made in inference mode.
            _scratch[key] = torch.empty(like.numel(), dtype=dtype)
    return _scratch[key][: like.numel()].view(like.shape)


def draw_dropped(like: torch.Tensor, share: float) -> torch.Tensor:
    """Return a mask shaped like `like`, true for features that are dropped, with probability `share`."""
    quarters = scratch("drawn", like.flatten()[::4], torch.int64).random_(-(2**63), None)
    drawn = quarters.view(torch.int16)[: like.numel()].view(like.shape)
    return torch.lt(drawn, round(share * 2**16) - 2**15)


class Adapted(torch.autograd.Function):
    """x·Wᵀ + bias + dropout(x)·Aᵀ·Bᵀ · scale with a frozen W, its products in 16 bit.

    The two sums of an adapter, into the output and into the gradient of the input, are made within the
    products. For the backward x, its product with A and a mask of what was dropped are kept.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        base: Any,
        scale: float,
        share: float,
    ) -> torch.Tensor:
        """Return the sum (..., out): x (..., in) in 16 bit; a (r, in), b (out, r) float32; `base` the frozen
        linear; `share` the share of x that is dropped.
        """
        ctx.scale = scale / (1 - share)
        ctx.base = base
        flat = rows(x)
        dropped = draw_dropped(flat, share) if share else None
        low = without(flat, dropped).mm(a.to(x.dtype).t()).mul_(ctx.scale)
        output = product(base, flat)
        output.addmm_(low, b.to(x.dtype).t())
        ctx.save_for_backward(x, low, a, b, dropped)
        return output.view(*x.shape[:-1], output.shape[-1])

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        """Return the gradients of x in 16 bit, and of A and B in float32."""
        x, low, a, b, dropped = ctx.saved_tensors
        high = rows(upstream[0])
        of_b = high.t().mm(low).to(b.dtype)
        of_low = high.mm(b.to(x.dtype)).mul_(ctx.scale)
        of_a = of_low.t().mm(without(rows(x), dropped)).to(a.dtype)
        of_x = None
        if ctx.needs_input_grad[0]:
            gradient = input_gradient(ctx.base, high)
            if dropped is None:
                gradient.addmm_(of_low, a.to(x.dtype))
            else:
                gradient.add_(of_low.mm(a.to(x.dtype)).masked_fill_(dropped, 0))
            of_x = gradient.view(x.shape)
        return of_x, of_a, of_b, None, None, None


def product(base: Any, x: torch.Tensor) -> torch.Tensor:
    """Return x·Wᵀ + bias (T, out) of a frozen linear for x (T, in)."""
    if isinstance(base, QuantizedLinear):
        return base(x)  # type: ignore[no-any-return]
    bias = None if base.bias is None else base.bias.to(x.dtype)
    return torch.nn.functional.linear(x, weight_of(base, x.dtype), bias)


def input_gradient(base: Any, upstream: torch.Tensor) -> torch.Tensor:
    """Return upstream·W (T, in) of a frozen linear for upstream (T, out)."""
    if isinstance(base, QuantizedLinear):
        return base.input_gradient(upstream)
    return upstream.mm(weight_of(base, upstream.dtype))


def weight_of(base: Any, dtype: torch.dtype) -> torch.Tensor:
    """Return the weight (out, in) of a linear in 16 bit or NF4."""
    # If the base is sharded (`pipeline.models.sharded`), only the linear has the weight's state.
    state = getattr(base, "quant_state", None) or getattr(base.weight, "quant_state", None)
    if state is None:
        return base.weight.data.to(dtype)  # type: ignore[no-any-return]
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(base.weight.data, state).to(dtype)  # type: ignore[no-any-return]


def at_lengths(
    output: torch.Tensor, magnitude: torch.Tensor, lengths: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Return DoRA's output (..., out) for `output`, that of a plain adapter: the rows of W + B·A have the
    trained `magnitude` (out,) instead of their own `lengths` (Liu et al., arXiv:2402.09353, formula 5).
    """
    factor = magnitude / lengths
    scaled = output * factor  # in float32, of which autograd keeps only the vector
    if bias is not None:
        scaled = scaled + (1 - factor) * bias  # The bias is not scaled.
    return scaled.to(output.dtype)


@torch.no_grad()
def row_lengths(base: Any, a: torch.Tensor, b: torch.Tensor, scale: float) -> torch.Tensor:
    """Return the lengths (out,) of the rows of W + B·A · scale in float32, with the weight W (out, in) of a
    frozen linear in 16 bit or NF4.
    """
    lengths: torch.Tensor = torch.addmm(weight_of(base, torch.float32), b, a, alpha=scale).norm(dim=1)
    return lengths


def without(values: torch.Tensor, dropped: torch.Tensor | None) -> torch.Tensor:
    """Return `values` (T, width) with zeros where something was dropped, valid until the next call."""
    if dropped is None:
        return values
    return scratch("in", values, values.dtype).copy_(values).masked_fill_(dropped, 0)


def rows(values: torch.Tensor) -> torch.Tensor:
    """Return (..., width) as (T, width)."""
    return values.reshape(-1, values.shape[-1])


def lighten(model: Any) -> None:
    """Let the LoRA layers of `model` compute as above: those on linears in NF4, in a GGUF's blocks or in 16
    bit. Layers with biases, and variants other than DoRA, do more and keep PEFT's forward. So do routers.
    """
    from peft.tuners.lora import Linear, Linear4bit
    from peft.tuners.lora.variants import DoraLinearVariant

    for name, layer in model.named_modules():
        if not isinstance(layer, (Linear, Linear4bit)) or is_router(name) or any(layer.lora_bias.values()):
            continue
        if all(isinstance(variant, DoraLinearVariant) for variant in layer.lora_variant.values()):
            layer.forward = partial(_forward, layer)


def _forward(layer: Any, x: torch.Tensor, *arguments: Any, **more: Any) -> torch.Tensor:
    """Return the output of `layer.forward`.

    Calls PEFT's own unless the layer only adds its one adapter in 16 bit on a CPU.
    """
    (name,) = layer.active_adapters if len(layer.active_adapters) == 1 else ("",)
    others = arguments or more or layer.disable_adapters or layer.merged or name not in layer.lora_A
    # Gradients in float16 would need a scaled loss.
    if others or x.dtype != torch.bfloat16 or x.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
        return type(layer).forward(layer, x, *arguments, **more)  # type: ignore[no-any-return]
    weights = layer.lora_A[name].weight, layer.lora_B[name].weight
    dropout = layer.lora_dropout[name]  # an identity if dropout is 0
    share = getattr(dropout, "p", 0.0) if dropout.training else 0.0
    is_dora = name in layer.lora_variant
    if is_dora and share:  # PEFT's DoRA multiplies W by what was not dropped, too.
        return type(layer).forward(layer, x)  # type: ignore[no-any-return]
    base = layer.base_layer
    scale = layer.scaling[name]
    output: torch.Tensor = Adapted.apply(x, *weights, base, scale, share)  # type: ignore[no-untyped-call]
    if not is_dora:
        return output
    magnitude = layer.lora_magnitude_vector[name].weight
    return at_lengths(output, magnitude, row_lengths(base, *weights, scale), base.bias)
