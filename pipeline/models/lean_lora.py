"""LoRA on a CPU as PEFT computes it, to the bit, in less memory.

PEFT casts the input of each adapter to float32, and autograd keeps every cast: of the same tensor three times
for q, k and v, and with dropout the noise as well, in float32. They are a third of what a layer keeps, with
dropout half; the input in 16 bit is there anyway, so here the backward casts it again, and of the noise a
byte is kept that says what was dropped. And what comes and goes (a float32 sum of an MLP's width takes 20 MB
at 1,024 tokens) lies in memory that is used again: glibc before 2.38 can't give a freed block to an aligned
request of its own size, so that between what is kept each one would leave a hole.
"""

from functools import partial
from typing import Any

import torch

_scratch: dict[tuple[str, torch.dtype], torch.Tensor] = {}


def scratch(name: str, like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Memory for a tensor of the shape of `like`, which the next one of this name overwrites."""
    key = name, dtype
    if key not in _scratch or _scratch[key].numel() < like.numel():
        with torch.inference_mode(False):  # a tensor made in it could not be written to by training
            _scratch[key] = torch.empty(like.numel(), dtype=dtype)
    return _scratch[key][: like.numel()].view(like.shape)


def float32(name: str, values: torch.Tensor) -> torch.Tensor:
    """A cast of `values` (T, width) that lasts until the next of this name."""
    return scratch(name, values, torch.float32).copy_(values)


class Added(torch.autograd.Function):
    """base + (dropout(x)·Aᵀ·Bᵀ · scale, rounded to 16 bit); of x is kept what came in, of base nothing."""

    @staticmethod
    def forward(
        ctx: Any,
        base: torch.Tensor,
        x: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        factors: tuple[float, float],
    ) -> torch.Tensor:
        """base (..., out) and x (..., in) of 16 bit; a (r, in), b (out, r) float32; `factors` are the scale
        and the share that is dropped.
        """
        scale, ctx.dropped = factors
        given, stays = float32("in", rows(x)), None
        if ctx.dropped:
            # the numbers that PyTorch's dropout draws on a CPU
            noise = scratch("noise", given, torch.float32).bernoulli_(1 - ctx.dropped)
            stays = noise.to(torch.bool)
            given.mul_(noise.div_(1 - ctx.dropped))
        low = given.mm(a.t())
        high = scratch("out", rows(base), torch.float32)
        torch.mm(low, b.t(), out=high).mul_(scale)
        ctx.save_for_backward(x, low, a, b, stays)
        ctx.scale = scale
        return base + scratch("rounded", base, base.dtype).copy_(high.view(base.shape))

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        """The products that autograd makes for PEFT's two linears, in its order."""
        x, low, a, b, stays = ctx.saved_tensors
        high = float32("out", rows(upstream[0])).mul_(ctx.scale)
        of_b, of_low = high.t().mm(low), high.mm(b)
        given, noise = float32("in", rows(x)), None
        if stays is not None:
            noise = float32("noise", stays).div_(1 - ctx.dropped)
            given.mul_(noise)
        of_a, of_x = of_low.t().mm(given), None
        if ctx.needs_input_grad[1]:
            whole = torch.mm(of_low, a, out=scratch("in", rows(x), torch.float32))
            of_x = (whole if noise is None else whole.mul_(noise)).to(x.dtype).view(x.shape)
        return upstream[0], of_x, of_a, of_b, None


def rows(values: torch.Tensor) -> torch.Tensor:
    """(T, width) of (..., width)."""
    return values.reshape(-1, values.shape[-1])


def lighten(model: Any) -> None:
    """Have the LoRA layers of `model` on NF4 linears compute as above. Those with DoRA or biases, which do
    more, stay PEFT's.
    """
    from peft.tuners.lora import Linear4bit

    for layer in (one for one in model.modules() if isinstance(one, Linear4bit)):
        if not (layer.lora_variant or any(layer.lora_bias.values())):
            layer.forward = partial(_forward, layer)


def _forward(layer: Any, x: torch.Tensor, *arguments: Any, **more: Any) -> torch.Tensor:
    """`layer.forward`, PEFT's own where it does something else than add its one adapter in 16 bit on a
    CPU.
    """
    (name,) = layer.active_adapters if len(layer.active_adapters) == 1 else ("",)
    others = arguments or more or layer.disable_adapters or layer.merged or name not in layer.lora_A
    if others or x.element_size() != 2 or x.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
        return type(layer).forward(layer, x, *arguments, **more)  # type: ignore[no-any-return]
    weights = layer.lora_A[name].weight, layer.lora_B[name].weight
    dropout = layer.lora_dropout[name]  # an identity where there is none
    factors = layer.scaling[name], getattr(dropout, "p", 0.0) if dropout.training else 0.0
    return Added.apply(layer.base_layer(x), x, *weights, factors)  # type: ignore[no-any-return, no-untyped-call]
