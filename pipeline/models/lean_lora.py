"""LoRA on a CPU as PEFT computes it, bit for bit, in less memory.

PEFT casts the input of each adapter to float32, and autograd keeps every cast: three times that of the same
tensor for q, k and v. With dropout it keeps the noise too, in float32. The casts are a third of what a layer
keeps, with dropout half. The input in 16 bit is kept anyway, so here the backward casts it again. Of the
noise, one byte a feature is kept that marks what was dropped.

Temporary values (a float32 sum of an MLP's width takes 20 MB at 1,024 tokens) use the same memory again.
glibc before 2.38 can't give a freed block to an aligned request of its own size, so each one would leave a
hole between what is kept.

Dropout draws other numbers than PyTorch's, whose draw leaves such holes and takes four times as long. It
draws 16 bits for each feature, so shares are rounded to 1/65,536.
"""

from functools import partial
from typing import Any

import torch

_scratch: dict[tuple[str, torch.dtype], torch.Tensor] = {}


def scratch(name: str, like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return memory for a tensor with the shape of `like`. The next call with this name overwrites it."""
    key = name, dtype
    if key not in _scratch or _scratch[key].numel() < like.numel():
        with torch.inference_mode(False):  # Training could not write to a tensor made in inference mode.
            _scratch[key] = torch.empty(like.numel(), dtype=dtype)
    return _scratch[key][: like.numel()].view(like.shape)


def float32(name: str, values: torch.Tensor) -> torch.Tensor:
    """Return a float32 cast of `values` (T, width) that is valid until the next call with this name."""
    return scratch(name, values, torch.float32).copy_(values)


def draw_dropped(like: torch.Tensor, share: float) -> torch.Tensor:
    """Return a mask shaped like `like`, true for features that are dropped, with probability `share`."""
    quarters = scratch("drawn", like.flatten()[::4], torch.int64).random_(-(2**63), None)
    drawn = quarters.view(torch.int16)[: like.numel()].view(like.shape)
    return torch.lt(drawn, round(share * 2**16) - 2**15)


class Added(torch.autograd.Function):
    """base + (dropout(x)·Aᵀ·Bᵀ · scale, rounded to 16 bit). For the backward, x is kept in its own type and
    base is not kept.
    """

    @staticmethod
    def forward(
        ctx: Any,
        base: torch.Tensor,
        x: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        scale_and_share: tuple[float, float],
    ) -> torch.Tensor:
        """Return the sum: base (..., out), x (..., in) in 16 bit; a (r, in), b (out, r) float32; the share of
        x that is dropped.
        """
        ctx.scale, share = scale_and_share
        ctx.stays = 1 - share
        given = float32("in", rows(x))
        dropped = None
        if share:
            dropped = draw_dropped(given, share)
            given.masked_fill_(dropped, 0)
        low = given.mm(a.t()).div_(ctx.stays)
        high = scratch("out", rows(base), torch.float32)
        torch.mm(low, b.t(), out=high).mul_(ctx.scale)
        ctx.save_for_backward(x, low, a, b, dropped)
        return base + scratch("rounded", base, base.dtype).copy_(high.view(base.shape))

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        """Return the products that autograd computes for PEFT's two linears, in its order."""
        x, low, a, b, dropped = ctx.saved_tensors
        high = float32("out", rows(upstream[0])).mul_(ctx.scale)
        of_b = high.t().mm(low)
        of_low = high.mm(b).div_(ctx.stays)
        given = float32("in", rows(x))
        of_x = None
        if dropped is not None:
            given.masked_fill_(dropped, 0)
        of_a = of_low.t().mm(given)
        if ctx.needs_input_grad[1]:
            whole = torch.mm(of_low, a, out=given)
            of_x = (whole if dropped is None else whole.masked_fill_(dropped, 0)).to(x.dtype).view(x.shape)
        return upstream[0], of_x, of_a, of_b, None


def rows(values: torch.Tensor) -> torch.Tensor:
    """Return (..., width) as (T, width)."""
    return values.reshape(-1, values.shape[-1])


def lighten(model: Any) -> None:
    """Let the LoRA layers of `model` on NF4 linears compute as above. Layers with DoRA or biases, which do
    more, keep PEFT's forward.
    """
    from peft.tuners.lora import Linear4bit

    for layer in (module for module in model.modules() if isinstance(module, Linear4bit)):
        if not (layer.lora_variant or any(layer.lora_bias.values())):
            layer.forward = partial(_forward, layer)


def _forward(layer: Any, x: torch.Tensor, *arguments: Any, **more: Any) -> torch.Tensor:
    """Return the output of `layer.forward`.

    Calls PEFT's own unless the layer only adds its one adapter in 16 bit on a CPU.
    """
    (name,) = layer.active_adapters if len(layer.active_adapters) == 1 else ("",)
    others = arguments or more or layer.disable_adapters or layer.merged or name not in layer.lora_A
    if others or x.element_size() != 2 or x.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
        return type(layer).forward(layer, x, *arguments, **more)  # type: ignore[no-any-return]
    weights = layer.lora_A[name].weight, layer.lora_B[name].weight
    dropout = layer.lora_dropout[name]  # an identity if dropout is 0
    share = getattr(dropout, "p", 0.0) if dropout.training else 0.0
    return Added.apply(layer.base_layer(x), x, *weights, (layer.scaling[name], share))  # type: ignore[no-any-return, no-untyped-call]
