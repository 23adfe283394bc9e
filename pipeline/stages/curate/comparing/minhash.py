"""MinHash signatures (Broder 1997) of a block's rows, and the bands by which similar ones are found.

Both come from rensa. docs/measurements.md compares it with other implementations.
"""

import os
from dataclasses import dataclass

import numpy as np
import rensa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from pipeline.stages.curate.comparing.shingles import Hashes, Offsets, mix
from pipeline.stages.curate.comparing.spill import Keys

# One rensa thread, because the cores are busy with other blocks.
os.environ.setdefault("RAYON_NUM_THREADS", "1")
PERMUTATIONS = 128
FOUND = 0.98  # wanted probability that a pair exactly at the threshold is compared at all
SEED = 42
CHANCE = 1 / 256  # probability that 8 bits of different hashes are equal
# Recorded because another version may decide otherwise for pairs near the threshold.
ALGORITHM = f"rensa R-MinHash {rensa.RMinHash.ALGORITHM_VERSION}"


@dataclass(frozen=True)
class Sketch:
    """Sketch of every row: 8 bits per permutation of its MinHash signature, a key per LSH band, and a flag
    for rows with any shingles.
    """

    signatures: NDArray[np.uint8]  # shape (rows, PERMUTATIONS)
    bands: Keys  # shape (rows, bands)
    some: NDArray[np.bool_]  # shape (rows)


def bands_for(threshold: float) -> tuple[int, int]:
    """Return (bands, permutations in a band): the widest bands that still let a pair of this similarity s
    meet in one with probability `FOUND`.

    With b bands of r permutations the probability is 1 − (1 − s^r)^b (Leskovec, Rajaraman, Ullman, Mining of
    Massive Datasets, 3.4).
    """
    wide = [r for r in range(1, PERMUTATIONS + 1) if 1 - (1 - threshold**r) ** (PERMUTATIONS // r) >= FOUND]
    return PERMUTATIONS // max(wide, default=1), max(wide, default=1)


def signatures(hashes: Hashes, offsets: Offsets) -> NDArray[np.uint32]:
    """Return the MinHash signature (documents, PERMUTATIONS) of every document of shingles."""
    matrix = rensa.RMinHash.digest_matrix_from_flat_token_hashes(
        hashes, offsets.astype(np.uint64), PERMUTATIONS, SEED
    )
    return np.array(matrix.to_rows(), np.uint32).reshape(len(offsets) - 1, PERMUTATIONS)


def sketch(signatures: NDArray[np.uint32], offsets: Offsets, salt: Keys, bands: tuple[int, int]) -> Sketch:
    """Return the sketches of signatures.

    Documents of different `salt` (an entry each) never share a band key.
    """
    count, width = bands
    keys: Keys = np.add(salt[:, None], np.arange(count, dtype=np.uint64), dtype=np.uint64)
    for i in range(width):
        keys = keys * np.uint64(0x9E3779B97F4A7C15) + signatures[:, i * count : (i + 1) * count]
    low = (signatures * np.uint32(0x9E3779B1)) >> np.uint32(24)
    return Sketch(low.astype(np.uint8), mix(keys), np.diff(offsets) > 0)


def similarity(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Estimate the Jaccard similarity of signatures (rows, PERMUTATIONS) by b-bit minwise hashing (Li, König
    2010) with b = 8, for large universes.
    """
    equal = (a == b).mean(axis=1)
    estimate: NDArray[np.float32] = np.maximum((equal - CHANCE) / (1 - CHANCE), 0).astype(np.float32)
    return estimate
