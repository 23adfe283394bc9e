"""Fingerprints of texts: two that share a run of words have one in common.

Winnowing (Schleimer, Wilkerson, Aiken 2003): of the n-grams in a run only the smallest hash stands for it, so
some 2/(WINDOW + 1) of them are kept.
"""

import numpy as np
from numpy.typing import NDArray

from pipeline.stages.curate.comparing.shingles import Hashes, Offsets, Tokens, is_in, spread, word_ngrams
from pipeline.stages.curate.comparing.spill import Keys, Rows, differs, offsets_of

WINDOW = 5  # successive n-grams of which winnowing takes the smallest
_ONE, _TOP = np.uint64(1), np.uint64(63)


def fingerprints(
    tokens: Tokens, begins: Offsets, boilerplate: Hashes, ngram: int, *, guarded: bool = True
) -> tuple[Keys, Rows]:
    """(key, row): any two texts that share a run of `ngram` words have a key in common; of runs that are all
    boilerplate only if `guarded`.

    `begins` is where each row's texts begin; runs don't go from one text into the next. `boilerplate` has the
    shorter n-grams that tell nothing, sorted.
    """
    keys, offsets = run_keys(tokens, boilerplate, ngram)
    rows = np.repeat(np.arange(len(begins) - 1, dtype=np.uint32), np.diff(offsets[begins]))
    new = (~of_boilerplate(keys) | guarded) & differs(keys, rows)
    return keys[new], rows[new]


def run_keys(tokens: Tokens, boilerplate: Hashes, ngram: int) -> tuple[Hashes, Offsets]:
    """For every run of `ngram` words in each text the smallest hash of the `WINDOW` shorter n-grams in it, of
    boilerplate only if all are.

    The hashes have 63 bits; the lowest bit of a key says that it is of boilerplate.
    """
    grams, offsets = word_ngrams(tokens, ngram - WINDOW + 1)
    grams = grams >> _ONE | is_in(grams, boilerplate).astype(np.uint64) << _TOP
    runs = np.maximum(np.diff(offsets) - (WINDOW - 1), 0)
    begins = offsets_of(runs)
    if not begins[-1]:
        return np.zeros(0, np.uint64), begins
    last = len(grams) - WINDOW + 1
    smallest = np.minimum.reduce([grams[i : last + i] for i in range(WINDOW)])
    return ((smallest << _ONE) | (smallest >> _TOP))[spread(offsets[:-1], runs)], begins


def of_boilerplate(keys: Keys) -> NDArray[np.bool_]:
    """Which keys are of runs that are all boilerplate."""
    found: NDArray[np.bool_] = (keys & _ONE) == _ONE
    return found
