"""The order of rows in q and k.

llama.cpp's rotary embedding turns neighbors, transformers' the two halves of a head, so the converter lays
row i of both halves side by side. Blocks lie along a row, so that moving rows keeps every weight.
"""

import torch


def in_order(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows (R, …) of a GGUF's q or k in transformers' order; as they are if `heads` is 0."""
    if not heads:
        return rows
    size = len(rows) // heads
    return rows.reshape(heads, size // 2, 2, -1).transpose(1, 2).reshape(len(rows), -1).contiguous()


def in_file_order(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """The inverse: rows (R, …) of transformers' q or k in the order of a GGUF."""
    if not heads:
        return rows
    size = len(rows) // heads
    return rows.reshape(heads, 2, size // 2, -1).transpose(1, 2).reshape(len(rows), -1).contiguous()
