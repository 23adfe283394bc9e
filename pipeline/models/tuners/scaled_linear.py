"""A linear whose weight stays as a GGUF's quantized bytes and learns by its blocks' scales. Every code stays;
each scale is multiplied by 1 + its trained change.

The forward rounds the scales to float16 as in the file that will be written, so that what is trained is what
is served. The gradient goes straight through that rounding (Bengio et al., arXiv:1308.3432) to float32
changes. PEQA (arXiv:2305.14152) and mlx-lm's DWQ also tune only the scales, on other formats.
"""

from collections.abc import Callable
from typing import Any

import torch

from pipeline.gguf.dequantize import layout
from pipeline.gguf.scales import changed_scales, per_scale, scale_places, stored_scales, with_scales
from pipeline.models.quantized_linear import QuantizedLinear, passing, row_blocks
from pipeline.models.tensors import full_weight


class ScaledMatmul(torch.autograd.Function):
    """y = x Wᵀ + b with W quantized and its scales changed. The gradient of a matrix is never in memory: it
    is computed by blocks of rows and summed up per scale.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        quantized: torch.Tensor,
        change: torch.Tensor,
        bias: torch.Tensor | None,
        ggml_type: int,
    ) -> torch.Tensor:
        """Return (T, out) for x (T, in), quantized (out, row_bytes), change (scales, out, blocks of a row) in
        float32, bias (out,) in x's type.
        """
        ctx.save_for_backward(x, quantized, change)
        ctx.ggml_type = ggml_type
        y = x.new_empty(len(x), len(quantized))
        for rows in row_blocks(quantized, x.shape[1]):
            weights = rescaled(quantized[rows], ggml_type, change[:, rows])
            part = None if bias is None else bias[rows]
            y[:, rows] = torch.nn.functional.linear(x, passing(weights, ggml_type, x.dtype), part)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(
        ctx: Any, upstream: torch.Tensor
    ) -> tuple[torch.Tensor | None, None, torch.Tensor | None, torch.Tensor | None, None]:
        """Return the gradients of x, of the changes (Σ over a block of upstreamᵀ x · ∂weight/∂scale, times
        the file's scale) and of the bias if it trains.
        """
        x, quantized, change = ctx.saved_tensors
        of_x = torch.zeros_like(x) if ctx.needs_input_grad[0] else None
        of_change = torch.empty_like(change) if ctx.needs_input_grad[2] else None
        # A sum over all tokens of a batch soon leaves float16's range.
        wide = x.float() if x.dtype == torch.float16 and of_change is not None else x
        for rows in row_blocks(quantized, x.shape[1]):
            some = quantized[rows]
            above = upstream[:, rows]
            if of_x is not None:
                weights = rescaled(some, ctx.ggml_type, change[:, rows])
                of_x.addmm_(above, passing(weights, ctx.ggml_type, above.dtype))
            if of_change is not None:
                of_weights = (above.T.to(wide.dtype) @ wide).float()
                for number, stored in enumerate(stored_scales(some, ctx.ggml_type).float()):
                    by_scale = per_scale(some, ctx.ggml_type, number).mul_(of_weights)
                    of_change[number, rows] = by_scale.view(*stored.shape, -1).sum(-1) * stored
        return of_x, None, of_change, upstream.sum(0) if ctx.needs_input_grad[3] else None, None


def rescaled(quantized: torch.Tensor, ggml_type: int, change: torch.Tensor) -> torch.Tensor:
    """Return the bytes (rows, row_bytes) as in the tuned file."""
    scales = changed_scales(stored_scales(quantized, ggml_type), change)
    return with_scales(quantized, ggml_type, scales)


class ScaledLinear(QuantizedLinear):
    """`QuantizedLinear` with a trained parameter `change`, float32 (scales of a block, out_features, blocks
    of a row). It is 0 at the start: then it computes what the file does.
    """

    def __init__(self, linear: QuantizedLinear) -> None:
        super().__init__(
            linear.weight,
            linear.ggml_type,
            linear.bias,
            compute_dtype=linear.compute_dtype,
            grid=linear.grid,
        )
        shape = (
            len(scale_places(self.ggml_type)),
            self.out_features,
            self.in_features // layout(self.ggml_type).weights,
        )
        self.change = torch.nn.Parameter(torch.zeros(shape, device=self.weight.device))

    def product(self, x: torch.Tensor, bias: torch.Tensor | None) -> Any:
        """Return x Wᵀ + b, of the changed W."""
        return ScaledMatmul.apply(x, self.weight, self.change, bias, self.ggml_type)  # type: ignore[no-untyped-call]

    def tuned(self) -> QuantizedLinear:
        """Return the same linear as in the tuned file, frozen."""
        with torch.no_grad():
            # The weight itself may be in main memory (`pipeline.models.offload`).
            weights = rescaled(full_weight(self.weight).to(self.change.device), self.ggml_type, self.change)
        return QuantizedLinear(
            weights, self.ggml_type, self.bias, compute_dtype=self.compute_dtype, grid=self.grid
        )

    def rows(self, first: int, last: int) -> torch.Tensor:
        """Return rows [first, last) of the tuned weight; see `QuantizedLinear.rows`."""
        return self.tuned().rows(first, last)


def put_scales(model: Any, trains: Callable[[str], bool]) -> dict[str, ScaledLinear]:
    """Replace the linears of `model`'s layers (a model of `load_gguf`) for whose path `trains` returns True
    by ones whose scales train. Return these by path.

    Raises `DataError` for a type without scales.
    """
    scaled = {}
    for path, module in list(model.named_modules()):
        if ".layers." in path and trains(path) and isinstance(module, QuantizedLinear):
            scaled[path] = ScaledLinear(module)
            model.set_submodule(path, scaled[path])
    return scaled
