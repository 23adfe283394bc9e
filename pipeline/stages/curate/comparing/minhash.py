"""MinHash signatures (Broder 1997) and the bands by which similar ones are found, by rensa;
benchmarks/results/2026-11-20-curation.md says why.
"""

import os
from dataclasses import dataclass

import numpy as np
import rensa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from pipeline.stages.curate.comparing.shingles import Hashes, Offsets, mix
from pipeline.stages.curate.comparing.spill import Keys

os.environ.setdefault("RAYON_NUM_THREADS", "1")  # rensa's threads: the cores are busy with other blocks
PERMUTATIONS = 128
FOUND = 0.98  # wanted probability that a pair exactly at the threshold is compared at all
SEED = 42
CHANCE = 1 / 256  # that 8 bits of different hashes are equal
# for the record: another version may decide otherwise for pairs near the threshold
ALGORITHM = f"rensa R-MinHash {rensa.RMinHash.ALGORITHM_VERSION}"


@dataclass(frozen=True)
class Sketch:
    """Of every row: 8 bits per permutation of its MinHash signature, a key per LSH band, and whether it has
    any shingles at all.
    """

    signatures: NDArray[np.uint8]  # (rows, PERMUTATIONS)
    bands: Keys  # (rows, bands)
    some: NDArray[np.bool_]  # (rows)


def bands_for(threshold: float) -> tuple[int, int]:
    """(bands, permutations in a band): the widest bands that still let a pair of this similarity s meet in
    one with probability `FOUND`.

    Of b bands of r permutations that is 1 − (1 − s^r)^b (Leskovec, Rajaraman, Ullman, Mining of Massive
    Datasets, 3.4).
    """
    wide = [r for r in range(1, PERMUTATIONS + 1) if 1 - (1 - threshold**r) ** (PERMUTATIONS // r) >= FOUND]
    return PERMUTATIONS // max(wide, default=1), max(wide, default=1)


def signatures(hashes: Hashes, offsets: Offsets) -> NDArray[np.uint32]:
    """The MinHash signature (documents, PERMUTATIONS) of every document of shingles."""
    matrix = rensa.RMinHash.digest_matrix_from_flat_token_hashes(
        hashes, offsets.astype(np.uint64), PERMUTATIONS, SEED
    )
    return np.array(matrix.to_rows(), np.uint32).reshape(len(offsets) - 1, PERMUTATIONS)


def sketch(signatures: NDArray[np.uint32], offsets: Offsets, salt: Keys, bands: tuple[int, int]) -> Sketch:
    """What is kept of signatures; documents of different `salt` (an entry each) never share a band key."""
    count, width = bands
    keys: Keys = np.add(salt[:, None], np.arange(count, dtype=np.uint64), dtype=np.uint64)
    for i in range(width):
        keys = keys * np.uint64(0x9E3779B97F4A7C15) + signatures[:, i * count : (i + 1) * count]
    low = (signatures * np.uint32(0x9E3779B1)) >> np.uint32(24)
    return Sketch(low.astype(np.uint8), mix(keys), np.diff(offsets) > 0)


def similarity(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Estimated Jaccard similarity of signatures (rows, PERMUTATIONS): b-bit minwise hashing (Li, König 2010)
    with b = 8, for large universes.
    """
    equal = (a == b).mean(axis=1)
    estimate: NDArray[np.float32] = np.maximum((equal - CHANCE) / (1 - CHANCE), 0).astype(np.float32)
    return estimate
