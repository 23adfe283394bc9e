"""Detect that the head and the embeddings of a GGUF are one matrix that was rounded twice.

A model whose head is tied to its embeddings has one matrix for both. A conversion that stores it twice lets
llama-quantize give each copy a type of its own, so that its values differ though the matrix is one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import hypot

import numpy as np

from pipeline.gguf.families.registry import DENSE
from pipeline.gguf.file import HEADS
from pipeline.gguf.header import Header
from pipeline.gguf.tensors import NOISE, Floats, GgufTensor

HEAD, EMBEDDINGS = HEADS
# A row may differ by this many times the rounding error of the two types. In the official Q4_K_M of
# Qwen2.5-Coder-0.5B-Instruct (Q8_0 and Q5_0) the farthest of 151,936 rows differs by 1.08 times.
SLACK = 1.25
# Relative RMSE of the coarsest types that can be compared, those of 4 bits. Fewer bits hide too much by
# rounding.
COARSEST = 0.13


@dataclass(frozen=True)
class OneMatrix:
    """The finer of two copies and the other; `difference` is the farthest row's, as a share of its length."""

    finer: GgufTensor
    coarser: GgufTensor
    difference: float


def one_matrix(header: Header, tensors: Mapping[str, GgufTensor], sampled: int = 1) -> OneMatrix | None:
    """Return head and embeddings of a GGUF as one matrix; None if a row differs by more than rounding, a
    table is missing, or the architecture is not known to tie them.

    Every row is compared or, for a quick guess, one block of rows in `sampled`.
    """
    dense = header.fields.get("general.architecture") in DENSE
    pair = [tensors[name] for name in (HEAD, EMBEDDINGS) if name in tensors]
    if not dense or len(pair) < 2 or pair[0].shape != pair[1].shape:
        return None
    finer, coarser = sorted(pair, key=lambda table: NOISE.get(table.type, np.inf))
    noise = [NOISE.get(table.type, np.inf) for table in pair]
    if max(noise) > COARSEST:
        return None
    farthest = 0.0
    for first, last in list(finer.blocks())[::sampled]:
        exact = finer.values(first, last)
        apart = _lengths(coarser.values(first, last) - exact)
        length = _lengths(exact)
        if not (apart <= SLACK * hypot(*noise) * length).all():  # This is False for a NaN too.
            return None
        farthest = max(farthest, float((apart[length > 0] / length[length > 0]).max(initial=0)))
    return OneMatrix(finer, coarser, farthest)


def _lengths(rows: Floats) -> Floats:
    return np.asarray(np.linalg.norm(rows, axis=1))
