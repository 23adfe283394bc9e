"""The rounding error of one tensor at a level, block by block."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pipeline.gguf.tensors import Floats, GgufTensor

# a block whose error is this share of its norm holds nothing of what it stands for; zeros are 1, other
# weights 1.4
LOST = 0.99
# blocks whose weights are smaller than this share of the tensor's (root mean square) may be rounded to
# nothing
SMALL = 1e-3


@dataclass(frozen=True)
class TensorNoise:
    """One tensor's relative error, how many of its blocks are lost, and the first row with a lost one."""

    rmse: float
    lost: int
    blocks: int
    row: int


def tensor_noise(before: GgufTensor, after: GgufTensor) -> TensorNoise:
    """A tensor's relative error, and its blocks (of the type's own size) that are lost; both sides have the
    same shape.
    """
    errors, norms = zip(*block_squares(before, after), strict=True)
    error, norm = np.concatenate(errors), np.concatenate(norms)
    total = float(norm.sum())
    with np.errstate(invalid="ignore"):
        lost = ~(error < LOST**2 * norm) & ~(
            (error == 0) | (norm < SMALL**2 * total / len(norm)) & np.isfinite(error)
        )
    at = np.flatnonzero(lost)
    return TensorNoise(
        float(np.sqrt(error.sum() / total)) if total else float(error.sum() > 0),
        len(at),
        len(norm),
        int(at[0]) * after.block // after.columns if len(at) else 0,
    )


def block_squares(before: GgufTensor, after: GgufTensor) -> Iterator[tuple[Floats, Floats]]:
    """(Σ error², Σ weight²) of each quantization block, for some rows at a time."""
    for first, last in after.blocks():
        ours, theirs = before.values(first, last), after.values(first, last)
        ours, difference = ours.reshape(-1, after.block), (theirs - ours).reshape(-1, after.block)
        yield np.einsum("ij,ij->i", difference, difference), np.einsum("ij,ij->i", ours, ours)
