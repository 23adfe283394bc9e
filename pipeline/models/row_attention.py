"""Attention of packed rows on a CPU, each row by itself.

PyTorch's attention on a CPU computes the whole square of a mask. Of rows of 124 tokens that are packed into
1,024 only an eighth of that is needed. Here the mask stays what transformers makes it, and carries the rows
that it keeps apart: attention that finds them computes a row at a time, everything else sees a mask.
"""

from itertools import pairwise
from typing import Any, NamedTuple

NAME = "sdpa_by_row"  # the name by which transformers knows this attention


class Row(NamedTuple):
    """A row of a pack: its first token, the token after its last, and its mask, None if it is causal."""

    start: int
    end: int
    mask: Any


def attend_by_row(model: Any) -> None:
    """Let a model on a CPU compute attention a row at a time, if it uses PyTorch's attention now."""
    if model.device.type == "cpu" and model.config._attn_implementation == "sdpa":
        _register()
        model.set_attn_implementation(NAME)


def _register() -> None:
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, mask_with_rows)


def mask_with_rows(*arguments: Any, **more: Any) -> Any:
    """Return the mask of PyTorch's attention (1, 1, S, S), with attribute `rows` if it keeps rows apart."""
    from transformers.masking_utils import sdpa_mask

    mask = sdpa_mask(*arguments, **more)
    if mask is not None and mask.shape[:2] == (1, 1) and mask.shape[2] == mask.shape[3]:
        mask.rows = rows_of(mask)
    return mask


def rows_of(mask: Any) -> list[Row]:
    """Return the rows that a boolean mask (1, 1, S, S) keeps apart; [] if they are not all of it.

    A row begins at each token that doesn't see the one before it.
    """
    import torch

    square = mask[0, 0]
    begins = (~square.diagonal(-1)).nonzero().flatten() + 1
    borders = [0, *begins.tolist(), len(square)]
    rows = []
    seen = 0
    for start, end in pairwise(borders):
        own = square[start:end, start:end]
        count = int(own.sum())
        seen += count
        length = end - start
        is_causal = count == length * (length + 1) // 2 and bool(torch.equal(own, own.tril()))
        rows.append(Row(start, end, None if is_causal else mask[:, :, start:end, start:end]))
    return rows if seen == int(square.sum()) else []


def attention(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **more: Any
) -> tuple[Any, None]:
    """Return what PyTorch's attention returns (B, S, heads, width), computed a row at a time if the mask has
    rows.

    `query` is (B, heads, S, width), `key` and `value` have the model's number of key heads.
    """
    import torch
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    rows = getattr(attention_mask, "rows", None)
    if not rows or more.get("position_bias") is not None or key.shape[2] != query.shape[2]:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **more)  # type: ignore[no-any-return]

    # The backward of a split joins the rows' gradients once. That of each slice would fill a whole tensor.
    lengths = [row.end - row.start for row in rows]
    parts = zip(*(heads.split(lengths, dim=2) for heads in (query, key, value)), rows, strict=True)
    outputs = [sdpa_attention_forward(module, *heads, row.mask, **more)[0] for *heads, row in parts]
    return torch.cat(outputs, dim=1), None
