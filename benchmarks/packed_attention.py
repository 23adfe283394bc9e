"""Attention of a packed row on a GPU in three ways, for `gpu_all.py`: with the mask of all rows, a row at a
time, and by PyTorch's kernel for rows of variable length, which needs no mask.
"""

from collections.abc import Sequence
from typing import Any

import torch

from pipeline.models import row_attention
from pipeline.models.row_attention import Row

MASKED = "sdpa"  # transformers' name
BY_ROW = row_attention.NAME
VARLEN = "varlen"


def register() -> None:
    """Make both other ways known to transformers."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(BY_ROW, row_attention.attention)
    AttentionMaskInterface.register(BY_ROW, row_attention.mask_with_rows)
    AttentionInterface.register(VARLEN, varlen_attention)
    AttentionMaskInterface.register(VARLEN, lambda *_, **__: None)


def borders_of(rows: Sequence[Row]) -> torch.Tensor:
    """Return the borders (rows + 1,) of a pack's rows, int32, as kernels of variable length want them: where
    each row begins, and the end. Raises `ValueError` if a row isn't causal, or if there is none.
    """
    if not rows or any(row.mask is not None for row in rows):
        raise ValueError("only causal rows that are all of a pack have borders alone")
    return torch.tensor([*(row.start for row in rows), rows[-1].end], dtype=torch.int32)


def varlen_attention(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **more: Any
) -> tuple[Any, None]:
    """Return attention (1, S, heads, width) within the rows whose borders the collator gives.

    `query` is (1, heads, S, width), `key` and `value` have the model's number of key heads.
    """
    from torch.nn.attention.varlen import varlen_attn

    flat = [heads[0].transpose(0, 1).to(value.dtype) for heads in (query, key, value)]
    borders = more["cu_seq_lens_q"]
    longest = more["max_length_q"]
    output = varlen_attn(
        *flat,
        borders,
        borders,
        longest,
        longest,
        scale=more.get("scaling"),
        window_size=(-1, 0),  # causal
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return output[None], None
