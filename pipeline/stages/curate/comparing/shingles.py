"""Texts as sequences of token hashes, their n-grams (shingles), and those ignored for being everywhere.

A token is a word (a run of letters and digits) or one other visible character: `chmod +x` is not `chmod -x`.
In scripts written without spaces every letter is a word. Case and white space are ignored. numpy does all of
it for many texts at once, which is five times as fast as a regular expression and a dictionary. The hashes
are the same on every machine and in every process.

Fingerprints find texts that share a run of words. Winnowing (Schleimer, Wilkerson, Aiken 2003) keeps only the
smallest hash of the n-grams in a run, so about 2/(WINDOW + 1) of them are kept.
"""

import sys
import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from pipeline.stages.curate.comparing.spill import Keys, Rows, Spill, differs, groups_of, offsets_of, sizes
from pipeline.stages.curate.spool import batches

Hashes = NDArray[np.uint64]
Offsets = NDArray[np.int64]  # n + 1 entries for n documents; document i is [offsets[i], offsets[i + 1])

BATCH = 1 << 16  # characters processed at a time, and the longest piece of a longer text
# SPACE; a letter of a longer word; a letter that is a word; any other character.
SPACE, LETTER, ALONE, SIGN = range(4)
_TABLED = 0x3000  # Characters below this have their kind in a table.
# Thai, Lao, Tibetan, Burmese, Khmer; kana and Chinese characters.
_UNSPACED = ((0x0E00, 0x0FFF), (0x1000, 0x109F), (0x1780, 0x17FF))
# Ranges above the table; Korean has spaces.
_KINDS_ABOVE = {
    SPACE: ((0x3000, 0x3000),),
    ALONE: ((0x3041, 0xA4CF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF)),
    LETTER: ((0xAC00, 0xD7A3),),
}
_FACTOR = 0x9E3779B97F4A7C15  # an odd number, so it has an inverse modulo 2^64
NGRAM = 13  # consecutive words that a training row may not share
WINDOW = 5  # successive n-grams of which winnowing keeps the smallest
ONE = np.uint64(1)
_TOP = np.uint64(63)


class Tokens(NamedTuple):
    """Tokens of several texts, one text after the other."""

    hashes: Hashes
    offsets: Offsets
    at: NDArray[np.int64]  # index of each token's first character, counted through all texts
    words: NDArray[np.bool_]  # True for the tokens that are words


def mix(keys: Hashes) -> Hashes:
    """Return the keys under a bijection that spreads bits evenly.

    It is the last step of SplitMix64 (Steele, Lea, Flood 2014).
    """
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return keys ^ (keys >> np.uint64(31))


def _kind(code: int) -> int:
    character = chr(code)
    if character.isspace():
        return SPACE
    if not (character.isalnum() or character == "_" or unicodedata.category(character).startswith("M")):
        return SIGN
    return ALONE if any(first <= code <= last for first, last in _UNSPACED) else LETTER


def _folded(code: int) -> int:
    lower = chr(code).lower()
    return ord(lower) if len(lower) == 1 else code


def _tables() -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
    """Return two tables by character: its kind, and its value to hash (lower-case letter, 0 for space)."""
    kinds = np.full(sys.maxunicode + 1, SIGN, np.uint8)
    folded = np.arange(sys.maxunicode + 1, dtype=np.uint32)
    kinds[:_TABLED] = [_kind(code) for code in range(_TABLED)]
    folded[:_TABLED] = [_folded(code) for code in range(_TABLED)]
    for kind, ranges in _KINDS_ABOVE.items():
        for first, last in ranges:
            kinds[first : last + 1] = kind
    return kinds, np.where(kinds == SPACE, 0, folded).astype(np.uint32)


_KINDS, _FOLDED = _tables()
_POWERS, _INVERSES = (
    np.cumprod(np.array([1, *[factor] * BATCH], np.uint64), dtype=np.uint64)
    for factor in (_FACTOR, pow(_FACTOR, -1, 2**64))
)


def tokenize(texts: Sequence[str]) -> Tokens:
    """Return the tokens of every text, hashed by their lower-case characters.

    The hash is a polynomial modulo 2^64, mixed.
    """
    counts = np.zeros(len(texts), np.int64)
    passed = 0
    parts = [(np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.bool_))]
    for batch in batches(_pieces(texts), lambda piece: len(piece[1]) + 1, BATCH, BATCH):
        pieces = [piece for _, piece in batch]
        hashes, at, words = _scan(" ".join(pieces) + " ")
        ends = np.cumsum([len(piece) + 1 for piece in pieces])
        per_piece = np.diff(np.searchsorted(at, ends), prepend=0)
        np.add.at(counts, [owner for owner, _ in batch], per_piece)
        # The joining spaces are not part of the texts.
        parts.append((hashes, at + (passed - np.repeat(np.arange(len(pieces)), per_piece)), words))
        passed += sum(map(len, pieces))
    hashes, at, words = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Tokens(hashes, offsets_of(counts), at, words)


def _pieces(texts: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield (index of the text, piece) for all texts.

    A text of `BATCH` characters or more is cut, at a space if possible.
    """
    for owner, text in enumerate(texts):
        while len(text) >= BATCH:
            space = text.rfind(" ", 1, BATCH - 1)
            cut = space if space > 0 else BATCH - 1
            yield owner, text[:cut]
            text = text[cut:]
        yield owner, text


def _scan(text: str) -> tuple[Hashes, NDArray[np.int64], NDArray[np.bool_]]:
    """Return three columns for the tokens: hash, first character, True if it is a word."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    kinds = _KINDS[codes]
    begins = kinds != SPACE
    inner = kinds == LETTER
    begins[1:] &= ~(inner[1:] & inner[:-1])
    at = np.flatnonzero(begins)
    if not len(at):
        return np.zeros(0, np.uint64), at, np.zeros(0, np.bool_)
    # Sum of folded[j]·f^j over the token, times f^-start: the token's own polynomial at any position.
    sums = np.add.reduceat(_FOLDED[codes] * _POWERS[: len(codes)], at)
    return mix(sums * _INVERSES[at]), at, kinds[at] < SIGN


def word_ngrams(tokens: Tokens, n: int) -> tuple[Hashes, Offsets]:
    """Return the hashes of all runs of `n` words inside each text, ignoring other characters between them."""
    return ngrams(*filtered(tokens.hashes, tokens.offsets, tokens.words), n)


def ngrams(hashes: Hashes, offsets: Offsets, n: int) -> tuple[Hashes, Offsets]:
    """Return the hashes of all runs of `n` tokens in each document, in order; none for a shorter one."""
    counts = np.maximum(np.diff(offsets) - (n - 1), 0)
    begins = offsets_of(counts)
    if not begins[-1]:
        return np.zeros(0, np.uint64), begins
    runs = sliding_window_view(hashes, n) @ _POWERS[:n][::-1]
    return mix(runs[spread(offsets[:-1], counts)]), begins


def shingles(hashes: Hashes, offsets: Offsets, n: int) -> tuple[Hashes, Offsets]:
    """Return `ngrams`, but one shingle of all tokens for a document of fewer than `n`."""
    grams, begins = ngrams(hashes, offsets, n)
    lengths = np.diff(offsets)
    short = np.flatnonzero((lengths > 0) & (lengths < n))
    single = np.zeros(len(short), np.uint64)
    for i in range(n - 1):
        inside = lengths[short] > i
        single[inside] = single[inside] * np.uint64(_FACTOR) + hashes[offsets[short[inside]] + i]
    grams = np.insert(grams, begins[short], mix(single))
    counts = np.diff(begins)
    counts[short] = 1
    return grams, offsets_of(counts)


def fingerprints(
    tokens: Tokens, begins: Offsets, boilerplate: Hashes, *, guarded: bool = True
) -> tuple[Keys, Rows]:
    """Return (key, row) records. Any two texts that share a run of `NGRAM` words have a key in common.

    Runs that are all boilerplate have a key only if `guarded`. `begins` is the index of each row's first
    text; runs don't continue from one text into the next. `boilerplate` contains the shorter n-grams that are
    ignored, sorted.
    """
    keys, offsets = run_keys(tokens, boilerplate)
    rows = np.repeat(np.arange(len(begins) - 1, dtype=np.uint32), np.diff(offsets[begins]))
    new = (~of_boilerplate(keys) | guarded) & differs(keys, rows)
    return keys[new], rows[new]


def run_keys(tokens: Tokens, boilerplate: Hashes) -> tuple[Hashes, Offsets]:
    """Return the smallest hash of the `WINDOW` shorter n-grams in every run of `NGRAM` words of each text.
    Boilerplate is used only if all of them are boilerplate.

    The hashes have 63 bits. The lowest bit of a key is set if it is boilerplate.
    """
    grams, offsets = word_ngrams(tokens, NGRAM - WINDOW + 1)
    grams = grams >> ONE | is_in(grams, boilerplate).astype(np.uint64) << _TOP
    runs = np.maximum(np.diff(offsets) - (WINDOW - 1), 0)
    begins = offsets_of(runs)
    if not begins[-1]:
        return np.zeros(0, np.uint64), begins
    last = len(grams) - WINDOW + 1
    smallest = np.minimum.reduce([grams[i : last + i] for i in range(WINDOW)])
    return ((smallest << ONE) | (smallest >> _TOP))[spread(offsets[:-1], runs)], begins


def of_boilerplate(keys: Keys) -> NDArray[np.bool_]:
    """Return True for the keys of runs that are all boilerplate."""
    is_boilerplate: NDArray[np.bool_] = (keys & ONE) == ONE
    return is_boilerplate


def spread(begins: Offsets, counts: Offsets) -> Offsets:
    """Return the indices begin, begin + 1, … of every range, one range after the other."""
    indices: Offsets = np.arange(counts.sum()) + np.repeat(begins - (np.cumsum(counts) - counts), counts)
    return indices


def filtered(hashes: Hashes, offsets: Offsets, keep: NDArray[np.bool_]) -> tuple[Hashes, Offsets]:
    """Return the hashes to keep, and the new offsets of the documents."""
    return hashes[keep], offsets_of(keep)[offsets]


def is_in(keys: Hashes, among: Hashes) -> NDArray[np.bool_]:
    """Return True for the `keys` in the sorted `among`; `np.isin` would sort it again in each call."""
    if not len(among):
        return np.zeros(len(keys), np.bool_)
    at = np.minimum(np.searchsorted(among, keys), len(among) - 1)
    is_there: NDArray[np.bool_] = among[at] == keys
    return is_there


def common(spill: Spill, least: int) -> Hashes:
    """Return the keys that at least `least` different rows have, sorted."""
    kept = [np.zeros(0, np.uint64)]
    for keys, rows in groups_of([spill], least):
        once = differs(keys, rows)  # A row may have a key twice.
        kept.append(np.unique(keys[once][sizes(keys[once]) >= least]))
    return np.sort(np.concatenate(kept))
