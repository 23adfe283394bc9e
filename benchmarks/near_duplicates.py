"""Compare ways to find near-duplicates: signature libraries by time and F1, and shingle sizes by F1, on
generated chats.

    python benchmarks/near_duplicates.py [--rows 20000] [--threshold 0.7]

All libraries get the same shingle hashes (gaoya makes its own) and their signatures go through the same bands
and the same check; times are CPU times of one thread, as ratios to rensa's. What isn't installed is not
measured; `pip install datasketch gaoya`.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ["RAYON_NUM_THREADS"] = "1"

import numpy as np

from benchmarks.chats import chats, pairwise_f1
from pipeline.stages.curate.comparing.duplicates import Similar, labels, unite
from pipeline.stages.curate.comparing.minhash import PERMUTATIONS, SEED, bands_for, signatures, sketch
from pipeline.stages.curate.comparing.shingles import Hashes, Offsets, mix, shingles, tokenize

Sign = Callable[[Hashes, Offsets], np.ndarray]  # shingles → signatures (documents, PERMUTATIONS), uint32
BLOCK = 1000


def rensa_rho(hashes: Hashes, offsets: Offsets) -> np.ndarray:
    """rensa's faster sketch: samples token positions, so order and length matter."""
    import rensa

    matrix = rensa.RMinHash.digest_matrix_from_flat_token_hashes_rho(
        hashes, offsets.astype(np.uint64), PERMUTATIONS, SEED
    )
    return np.array(matrix.to_rows(), np.uint32)


def datasketch(hashes: Hashes, offsets: Offsets) -> np.ndarray:
    """datasketch.MinHash, with the hashing of tokens left out."""
    from datasketch import MinHash

    short = (hashes >> np.uint64(32)).tolist()
    found = []
    for first, last in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        one = MinHash(num_perm=PERMUTATIONS, seed=SEED, hashfunc=int)
        one.update_batch(short[first:last])
        found.append(one.hashvalues)
    return np.array(found, np.uint32)


def numpy_minhash(hashes: Hashes, offsets: Offsets) -> np.ndarray:
    """The textbook's MinHash by multiply-shift, a permutation at a time."""
    factors = np.random.default_rng(SEED).integers(1 << 63, size=PERMUTATIONS, dtype=np.uint64) * np.uint64(
        2
    ) + np.uint64(1)
    columns = [np.minimum.reduceat((hashes * factor) >> np.uint64(32), offsets[:-1]) for factor in factors]
    return np.stack(columns, axis=1).astype(np.uint32)


def numpy_one_permutation(hashes: Hashes, offsets: Offsets) -> np.ndarray:
    """One permutation hashing (Li, Owen, Zhang 2012), empty bins filled by optimal densification (Shrivastava
    2017).
    """
    documents, empty = len(offsets) - 1, np.uint32(0xFFFFFFFF)
    bins = np.repeat(np.arange(documents) * PERMUTATIONS, np.diff(offsets)) + (
        hashes >> np.uint64(57)
    ).astype(np.int64)
    found = np.full(documents * PERMUTATIONS, empty)
    np.minimum.at(found, bins, hashes.astype(np.uint32))
    sparse = found.reshape(documents, PERMUTATIONS)
    filled = sparse.copy()
    row, column = np.nonzero(sparse == empty)
    attempt = 0
    while len(row):
        attempt += 1
        donor = (mix((column + attempt * 1000003).astype(np.uint64)) % np.uint64(PERMUTATIONS)).astype(
            np.int64
        )
        value = sparse[row, donor]
        filled[row, column] = value
        row, column = row[value == empty], column[value == empty]
    return filled


def clusters(signed: list[np.ndarray], blocks: list[tuple[Hashes, Offsets]], threshold: float) -> np.ndarray:
    """The smallest row of every row's cluster, by the product's own bands and check."""
    rows = sum(map(len, signed))
    parent = np.arange(rows, dtype=np.int32)
    with tempfile.TemporaryDirectory() as folder:
        similar, first = Similar(Path(folder)), 0
        for block, (_, offsets) in zip(signed, blocks, strict=True):
            similar.add(
                sketch(block, offsets, np.zeros(len(block), np.uint64), bands_for(threshold)),
                np.uint32(first),
            )
            first += len(block)
        for a, b, alike in similar.pairs(parent, parent.copy()):
            unite(parent, a[alike >= threshold], b[alike >= threshold])
    return labels(parent)


def gaoya(texts: list[str], threshold: float) -> np.ndarray:
    """gaoya's own index over words in threes, asked for every text; raises ImportError."""
    from gaoya.minhash import MinHashStringIndex

    count, width = bands_for(threshold)
    index = MinHashStringIndex(32, threshold, count, width, None, "word", True, (3, 3))
    index.par_bulk_insert_docs(list(range(len(texts))), texts)
    parent = np.arange(len(texts), dtype=np.int32)
    for row, found in enumerate(index.par_bulk_query(texts)):
        unite(parent, np.full(len(found), row, np.int32), np.array(found, np.int32))
    return labels(parent)


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """(CPU seconds, result)."""
    start = time.process_time()
    result = call()
    return time.process_time() - start, result


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--threshold", type=float, default=0.7)
    options = parser.parse_args()
    generated = list(chats(options.rows, seed=0))
    truth, texts = np.array([cluster for cluster, _ in generated]), ["\n".join(chat) for _, chat in generated]
    seconds, tokens = timed(lambda: [tokenize(texts[i : i + BLOCK]) for i in range(0, len(texts), BLOCK)])
    first_turns = [
        tokenize([chat[0] for _, chat in generated[i : i + BLOCK]]) for i in range(0, len(texts), BLOCK)
    ]
    blocks, short = (
        [shingles(each.hashes, each.offsets, 3) for each in some] for some in (tokens, first_turns)
    )
    print(f"{options.rows} chats, threshold {options.threshold}, bands {bands_for(options.threshold)}\n")
    print("signatures                time / rensa's  of first turns      F1")
    signers: dict[str, Sign] = {
        "rensa R-MinHash": signatures,
        "rensa rho": rensa_rho,
        "numpy one permutation": numpy_one_permutation,
        "numpy MinHash": numpy_minhash,
        "datasketch": datasketch,
    }
    base = base_short = 0.0
    for name, sign in signers.items():
        try:
            took, signed = timed(lambda sign=sign: [sign(*block) for block in blocks])
            took_short, _ = timed(lambda sign=sign: [sign(*block) for block in short])
        except ImportError:
            print(f"{name:24}  not measured (not installed)")
            continue
        base, base_short = base or took, base_short or took_short
        print(
            f"{name:24}  {took / base:14.2f}  {took_short / base_short:14.2f}  "
            f"{pairwise_f1(truth, clusters(signed, blocks, options.threshold)):6.4f}"
        )
    try:
        took, found = timed(lambda: gaoya(texts, options.threshold))
        print(f"{'gaoya (all of it)':24}  {took / base:14.2f}  {'':14}  {pairwise_f1(truth, found):6.4f}")
    except ImportError:
        print(f"{'gaoya':24}  not measured (not installed)")
    print(f"{'(our tokens)':24}  {seconds / base:14.2f}\n\nshingle of n tokens       F1")
    for n in range(1, 6):
        blocks = [shingles(each.hashes, each.offsets, n) for each in tokens]
        print(
            f"{n:24}  {pairwise_f1(truth, clusters([signatures(*block) for block in blocks], blocks, options.threshold)):6.4f}"  # noqa: E501
        )


if __name__ == "__main__":
    main()
