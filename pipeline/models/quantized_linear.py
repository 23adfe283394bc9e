"""A linear and an embedding whose weight stays as a GGUF's quantized bytes. It is dequantized at every use,
block by block, forward and backward.

The weight is frozen: what trains is a LoRA adapter on it (QLoRA, arXiv:2305.14314, with llama.cpp's blocks
instead of NF4's). Nothing dense outlives the call that made it, so a linear costs its bytes in the file and,
while it runs, one block.
"""

from threading import local
from typing import Any

import torch

from pipeline.gguf.delta_heads import from_file, to_file
from pipeline.gguf.dequantize import columns_of, dequantize

# Weights that are dense at a time. A GPU is fastest with few launches (a 7B's scales trained 2.2 times as
# fast with blocks four times as large), a CPU if a block stays in its caches.
BLOCK_WEIGHTS = {"cuda": 32 << 20, "cpu": 8 << 20}
_spaces = local()


def row_blocks(quantized: torch.Tensor, columns: int) -> list[slice]:
    """Return slices of rows that cover a matrix (R, row_bytes) of `columns` weights a row. Each has at most
    `BLOCK_WEIGHTS` weights and at least one row.
    """
    rows = len(quantized)
    most = BLOCK_WEIGHTS["cuda" if quantized.is_cuda else "cpu"]
    step = max(1, most // max(columns, 1))
    return [slice(first, min(first + step, rows)) for first in range(0, rows, step)]


def passing(quantized: torch.Tensor, ggml_type: int, dtype: torch.dtype) -> torch.Tensor:
    """Return rows (R, row_bytes) as (R, columns) of `dtype`, valid until the next call.

    On a CPU every call writes to the same memory, because pages that are new each time cost as much as the
    arithmetic (measured: half the speed at 64 MB). A GPU's allocator keeps its pages by itself.
    """
    if quantized.is_cuda:
        return dequantize(quantized, ggml_type, dtype)
    columns = columns_of(ggml_type, quantized.shape[1])
    count = quantized.shape[0] * columns
    space: torch.Tensor | None = getattr(_spaces, "values", None)
    if space is None or space.dtype != dtype or space.numel() < count:
        _spaces.values = space = torch.empty(count, dtype=dtype)
    return dequantize(quantized, ggml_type, dtype, out=space[:count].view(-1, columns))


def frozen(quantized: torch.Tensor) -> torch.nn.Parameter:
    """Return bytes as a parameter that doesn't train; for a tied table, the parameter itself."""
    if isinstance(quantized, torch.nn.Parameter):
        return quantized
    return torch.nn.Parameter(quantized, requires_grad=False)


class QuantizedMatmul(torch.autograd.Function):
    """Autograd function of y = x Wᵀ + b with W quantized.

    Only the quantized bytes are kept; the backward dequantizes them again.
    """

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, quantized: torch.Tensor, bias: torch.Tensor | None, ggml_type: int
    ) -> torch.Tensor:
        """Return (T, out) for x (T, in), quantized (out, row_bytes), bias (out,), all in x's type."""
        ctx.save_for_backward(quantized)
        ctx.ggml_type = ggml_type
        blocks = row_blocks(quantized, x.shape[1])
        if len(blocks) == 1:
            return torch.nn.functional.linear(x, passing(quantized, ggml_type, x.dtype), bias)
        y = x.new_empty(len(x), len(quantized))
        for block in blocks:
            part = None if bias is None else bias[block]
            y[:, block] = torch.nn.functional.linear(x, passing(quantized[block], ggml_type, x.dtype), part)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(
        ctx: Any, upstream: torch.Tensor
    ) -> tuple[torch.Tensor | None, None, torch.Tensor | None, None]:
        """Return the gradients of x (upstream · W) and of the bias if it trains."""
        (quantized,) = ctx.saved_tensors
        of_bias = upstream.sum(0) if ctx.needs_input_grad[2] else None
        of_x = input_gradient(upstream, quantized, ctx.ggml_type) if ctx.needs_input_grad[0] else None
        return of_x, None, of_bias, None


def input_gradient(upstream: torch.Tensor, quantized: torch.Tensor, ggml_type: int) -> torch.Tensor:
    """Return upstream · W (T, in) for upstream (T, out) and a quantized W (out, row_bytes)."""
    columns = columns_of(ggml_type, quantized.shape[1])
    blocks = row_blocks(quantized, columns)
    if len(blocks) == 1:
        return upstream @ passing(quantized, ggml_type, upstream.dtype)
    of_x = upstream.new_zeros(upstream.shape[0], columns)
    for block in blocks:
        of_x.addmm_(upstream[:, block], passing(quantized[block], ggml_type, upstream.dtype))
    return of_x


class QuantizedLinear(torch.nn.Linear):
    """nn.Linear with `weight` uint8 (out_features, row_bytes) of ggml type `ggml_type`, frozen. PEFT adds
    LoRA to it as to any nn.Linear.

    It computes in `compute_dtype` and returns its input's type, under autocast too, as bitsandbytes' NF4
    linears do. PEFT can't merge into bytes: `merge_adapter` and its like raise `RuntimeError`. If the file
    has the columns in another order, they stay in it, because they can't be moved between blocks. The inputs
    are put in that order by `grid` (`pipeline.gguf.delta_heads.DeltaHeads.grid`).
    """

    weight: torch.nn.Parameter

    def __init__(
        self,
        quantized: torch.Tensor,
        ggml_type: int,
        bias: torch.Tensor | None = None,
        *,
        compute_dtype: torch.dtype,
        grid: tuple[int, int] | None = None,
    ) -> None:
        torch.nn.Module.__init__(self)  # nn.Linear's own would allocate the dense weight first.
        self.in_features = columns_of(ggml_type, quantized.shape[1])
        self.out_features = quantized.shape[0]
        self.ggml_type = ggml_type
        self.compute_dtype = compute_dtype
        self.grid = grid
        self.weight = frozen(quantized)
        self.register_parameter(
            "bias", None if bias is None else torch.nn.Parameter(bias.to(compute_dtype), requires_grad=False)
        )

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return (…, out_features) for (…, in_features), in the input's type."""
        with torch.autocast(input.device.type, enabled=False):
            x = input.reshape(-1, self.in_features).to(self.compute_dtype)
            if self.grid:
                x = to_file(x, self.grid)
            bias = None if self.bias is None else self.bias.to(self.compute_dtype)
            y: torch.Tensor = self.product(x, bias)
            return y.to(input.dtype).reshape(*input.shape[:-1], self.out_features)

    def product(self, x: torch.Tensor, bias: torch.Tensor | None) -> Any:
        """Return x Wᵀ + b."""
        return QuantizedMatmul.apply(x, self.weight, bias, self.ggml_type)  # type: ignore[no-untyped-call]

    def input_gradient(self, upstream: torch.Tensor) -> torch.Tensor:
        """Return the gradient of the input (T, in_features), in the compute type, for that of the output."""
        of_x = input_gradient(upstream.to(self.compute_dtype), self.weight, self.ggml_type)
        return from_file(of_x, self.grid) if self.grid else of_x

    @property
    def logical(self) -> int:
        """Number of weights that its bytes encode."""
        return self.in_features * self.out_features

    def rows(self, first: int, last: int) -> torch.Tensor:
        """Return rows [first, last) of the weight, (last − first, in_features), with the columns as in the
        file, in the compute type, valid until the next use of any quantized linear.
        """
        return passing(self.weight[first:last], self.ggml_type, self.compute_dtype)

    def extra_repr(self) -> str:
        """Return the text that `print(model)` shows."""
        return f"{super().extra_repr()}, ggml_type={self.ggml_type}, compute_dtype={self.compute_dtype}"


class QuantizedEmbedding(torch.nn.Embedding):
    """nn.Embedding with `weight` uint8 (num_embeddings, row_bytes), frozen. Only the rows that are looked up
    are dequantized. They are multiplied by `scale`, rounded to the compute type as transformers does.

    A head tied to it uses this very parameter, so that the table is in memory once.
    """

    weight: torch.nn.Parameter
    # Attributes that `print` shows.
    max_norm = None
    norm_type = 2.0
    scale_grad_by_freq = False
    sparse = False

    def __init__(
        self,
        quantized: torch.Tensor,
        ggml_type: int,
        padding_idx: int | None = None,
        *,
        compute_dtype: torch.dtype,
        scale: float | None = None,
    ) -> None:
        torch.nn.Module.__init__(self)
        self.num_embeddings = len(quantized)
        self.embedding_dim = columns_of(ggml_type, quantized.shape[1])
        self.padding_idx = padding_idx
        self.ggml_type = ggml_type
        self.compute_dtype = compute_dtype
        self.weight = frozen(quantized)
        factor = None if scale is None else torch.tensor(scale, device=quantized.device)
        self.embed_scale: torch.Tensor | None
        self.register_buffer("embed_scale", factor, persistent=False)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return rows (…, embedding_dim) in the compute type for ids (…)."""
        rows = self.weight.index_select(0, input.reshape(-1))
        values = dequantize(rows, self.ggml_type, self.compute_dtype)
        if self.embed_scale is not None:
            values = values * self.embed_scale.to(self.compute_dtype)
        return values.reshape(*input.shape, self.embedding_dim)

    @property
    def logical(self) -> int:
        """Number of weights that its bytes encode."""
        return self.num_embeddings * self.embedding_dim
