"""The rounding error of one tensor at a level, block by block."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipeline.gguf.tensors import Floats, GgufTensor

# a block whose error is this share of its norm holds nothing of what it stands for; zeros are 1, other
# weights 1.4
LOST = 0.99
# blocks whose weights are smaller than this share of the tensor's (root mean square) may be rounded to
# nothing
SMALL = 1e-3
# the worst weight is looked for in blocks of at least this share of the tensor's norm, for a float16 scale of
# smaller ones has few digits left; what a scale of half a unit in the last place moves a weight by at most (a
# code of up to 4,096 times 2 to the power of -25) is no error
LARGE, FLOAT16 = 0.1, 2.0**-13


@dataclass(frozen=True)
class TensorNoise:
    """One tensor's relative error, how many of its blocks are lost and the first row with a lost one; the
    largest error of a weight as a share of the largest weight in its block, and its row.
    """

    rmse: float
    lost: int
    blocks: int
    row: int
    worst: float
    worst_row: int


class BlockNoise(NamedTuple):
    """Of each quantization block: Σ error², Σ weight², the largest error and the largest weight."""

    error: Floats
    norm: Floats
    largest_error: Floats
    largest: Floats

    def shares(self) -> Floats:
        """The largest error of each block as a share of its largest weight; 0 in blocks that are small."""
        large = self.norm >= LARGE**2 * self.norm.mean()
        shares = np.zeros_like(self.largest)
        beyond = np.maximum(self.largest_error - FLOAT16, 0)
        np.divide(beyond, self.largest, out=shares, where=large & (self.largest > 0))
        return shares


def tensor_noise(before: GgufTensor, after: GgufTensor) -> TensorNoise:
    """A tensor's relative error, its blocks (of the type's own size) that are lost, and its worst weight;
    both sides have the same shape.
    """
    noise = BlockNoise(*map(np.concatenate, zip(*blocks_of(before, after), strict=True)))
    total = float(noise.norm.sum())
    with np.errstate(invalid="ignore"):
        lost = ~(noise.error < LOST**2 * noise.norm) & ~(
            (noise.error == 0) | (noise.norm < SMALL**2 * total / len(noise.norm)) & np.isfinite(noise.error)
        )
        shares = noise.shares()
    at, worst = np.flatnonzero(lost), int(shares.argmax())

    def row(block: int) -> int:
        return block * after.block // after.columns

    return TensorNoise(
        float(np.sqrt(noise.error.sum() / total)) if total else float(noise.error.sum() > 0),
        len(at),
        len(noise.norm),
        row(int(at[0])) if len(at) else 0,
        float(shares[worst]),
        row(worst),
    )


def blocks_of(before: GgufTensor, after: GgufTensor) -> Iterator[BlockNoise]:
    """The noise of every quantization block, for some rows at a time."""
    for first, last in after.blocks():
        ours, theirs = before.values(first, last), after.values(first, last)
        yield block_noise(ours.reshape(-1, after.block), theirs.reshape(-1, after.block))


def block_noise(before: Floats, after: Floats) -> BlockNoise:
    """The noise of blocks (blocks, weights) that became `after`."""
    difference = after - before
    return BlockNoise(
        np.einsum("ij,ij->i", difference, difference),
        np.einsum("ij,ij->i", before, before),
        np.abs(difference).max(axis=1),
        np.abs(before).max(axis=1),
    )
