"""Texts as sequences of token hashes, their n-grams (shingles), and the n-grams that count for nothing
because they are everywhere.

A token is a word (a run of letters and digits) or one other visible character: `chmod +x` is not `chmod -x`.
In scripts written without spaces every letter is a word. Case and white space don't count. All of it is done
by numpy for many texts at once, which is five times as fast as a regular expression and a dictionary; the
hashes are the same on every machine and in every process.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.stages.curate.comparing.spill import Spill, offsets_of, starts

Hashes = NDArray[np.uint64]
Offsets = NDArray[np.int64]  # of n documents n + 1: document i is [offsets[i], offsets[i + 1])

BATCH = 1 << 16  # characters worked on at a time; of a longer text, the longest piece
# a letter of a longer word, a letter that is a word, any other character
SPACE, LETTER, ALONE, SIGN = range(4)
_TABLED = 0x3000  # characters below have their kind in a table
# Thai, Lao, Tibetan, Burmese, Khmer; kana and Chinese characters
_UNSPACED = ((0x0E00, 0x0FFF), (0x1000, 0x109F), (0x1780, 0x17FF))
_UNSPACED_ABOVE = ((0x3041, 0xA4CF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))
_HANGUL = (0xAC00, 0xD7A3)  # Korean has spaces
_FACTOR = 0x9E3779B97F4A7C15  # odd, so it has an inverse modulo 2^64


class Tokens(NamedTuple):
    """The tokens of several texts, one text after the other."""

    hashes: Hashes
    offsets: Offsets
    at: NDArray[np.int64]  # each one's first character, counted through all texts
    words: NDArray[np.bool_]  # which are words


def mix(keys: Hashes) -> Hashes:
    """A bijection under which equally distributed bits come out (the end of SplitMix64, Steele, Lea, Flood
    2014).
    """
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return keys ^ (keys >> np.uint64(31))


def _powers(factor: int) -> Hashes:
    table = np.empty(BATCH + 1, np.uint64)
    power = 1
    for i in range(len(table)):
        table[i] = power
        power = power * factor % 2**64
    return table


def _kind(code: int) -> int:
    character = chr(code)
    if character.isspace():
        return SPACE
    if not (character.isalnum() or character == "_" or unicodedata.category(character).startswith("M")):
        return SIGN
    return ALONE if any(first <= code <= last for first, last in _UNSPACED) else LETTER


def _folded(code: int) -> int:
    lower = chr(code).lower()
    return 0 if _kind(code) == SPACE else ord(lower) if len(lower) == 1 else code


_KINDS = np.array([_kind(code) for code in range(_TABLED)], np.uint8)
_FOLDED = np.array([_folded(code) for code in range(_TABLED)], np.uint32)
# for bytes.translate
_ASCII_KINDS, _ASCII_FOLDED = (bytes(table[:128].tolist()) + bytes(128) for table in (_KINDS, _FOLDED))
_POWERS, _INVERSES = _powers(_FACTOR), _powers(pow(_FACTOR, -1, 2**64))


def tokenize(texts: Sequence[str]) -> Tokens:
    """The tokens of every text; a token's hash is that of its lower-case characters (a polynomial modulo
    2^64, then mixed).
    """
    counts = np.zeros(len(texts), np.int64)
    hashes, at, words, passed = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)], [np.zeros(0, np.bool_)], 0
    for owners, pieces in _batches(texts):
        found, begin, word = _scan(" ".join(pieces) + " ")
        ends = np.cumsum([len(piece) + 1 for piece in pieces])
        per_piece = np.diff(np.searchsorted(begin, ends), prepend=0)
        np.add.at(counts, owners, per_piece)
        # the joining spaces are no part of the texts
        at.append(begin + (passed - np.repeat(np.arange(len(pieces)), per_piece)))
        hashes.append(found)
        words.append(word)
        passed += sum(map(len, pieces))
    return Tokens(np.concatenate(hashes), offsets_of(counts), np.concatenate(at), np.concatenate(words))


def _batches(texts: Sequence[str]) -> Iterator[tuple[list[int], list[str]]]:
    """(index of the text, piece) for all texts, in lists of at most `BATCH` characters; only a longer text is
    cut, at a space if it has one.
    """
    owners: list[int] = []
    pieces: list[str] = []
    held = 0
    for owner, text in enumerate(texts):
        while text or not owners or owners[-1] != owner:
            piece = text
            if len(text) >= BATCH:
                cut = text.rfind(" ", 1, BATCH - 1)
                piece = text[: cut if cut > 0 else BATCH - 1]
            if owners and held + len(piece) + 1 > BATCH:
                yield owners, pieces
                owners, pieces, held = [], [], 0
            owners.append(owner)
            pieces.append(piece)
            held += len(piece) + 1
            text = text[len(piece) :]
    if owners:
        yield owners, pieces


def _scan(text: str) -> tuple[Hashes, NDArray[np.int64], NDArray[np.bool_]]:
    """(hash, first character, is it a word) of every token."""
    kinds: NDArray
    folded: NDArray
    if text.isascii():
        ascii = text.encode("ascii")
        kinds, folded = (
            np.frombuffer(ascii.translate(table), np.uint8) for table in (_ASCII_KINDS, _ASCII_FOLDED)
        )
    else:
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        tabled = np.minimum(codes, _TABLED - 1)
        kinds, folded = _KINDS[tabled], _FOLDED[tabled]
        if codes.max() >= _TABLED:
            high = codes >= _TABLED
            kinds[high], folded[high] = SIGN, codes[high]
            for first, last in _UNSPACED_ABOVE:
                kinds[(codes >= first) & (codes <= last)] = ALONE
            kinds[(codes >= _HANGUL[0]) & (codes <= _HANGUL[1])] = LETTER
            spaces = codes == 0x3000
            kinds[spaces], folded[spaces] = SPACE, 0
    begins = kinds != SPACE
    inner = kinds == LETTER
    begins[1:] &= ~(inner[1:] & inner[:-1])
    at = np.flatnonzero(begins)
    if not len(at):
        return np.zeros(0, np.uint64), at, np.zeros(0, np.bool_)
    # sum of folded[j]·f^j over the token, times f^-start: the token's own polynomial, wherever it stands
    sums = np.add.reduceat(folded * _POWERS[: len(folded)], at)
    return mix(sums * _INVERSES[at]), at, kinds[at] < SIGN


def word_ngrams(tokens: Tokens, n: int) -> tuple[Hashes, Offsets]:
    """The hashes of all runs of `n` words inside each text, whatever other characters are between them."""
    return ngrams(*filtered(tokens.hashes, tokens.offsets, tokens.words), n)


def ngrams(hashes: Hashes, offsets: Offsets, n: int) -> tuple[Hashes, Offsets]:
    """The hashes of all runs of `n` tokens inside each document, in order; none for a document of fewer."""
    counts = np.maximum(np.diff(offsets) - (n - 1), 0)
    begins = offsets_of(counts)
    if not begins[-1]:
        return np.zeros(0, np.uint64), begins
    combined = hashes[: len(hashes) - n + 1].copy()
    for i in range(1, n):
        combined *= np.uint64(_FACTOR)
        combined += hashes[i : len(hashes) - n + 1 + i]
    return mix(combined[spread(offsets[:-1], counts)]), begins


def shingles(hashes: Hashes, offsets: Offsets, n: int) -> tuple[Hashes, Offsets]:
    """As `ngrams`, but a document of fewer than `n` tokens has one shingle of those it has."""
    grams, begins = ngrams(hashes, offsets, n)
    lengths = np.diff(offsets)
    short = np.flatnonzero((lengths > 0) & (lengths < n))
    if not len(short):
        return grams, begins
    single = np.zeros(len(short), np.uint64)
    for i in range(n - 1):
        inside = lengths[short] > i
        single[inside] = single[inside] * np.uint64(_FACTOR) + hashes[offsets[short[inside]] + i]
    grams = np.insert(grams, begins[short], mix(single))
    counts = np.diff(begins)
    counts[short] = 1
    return grams, offsets_of(counts)


def spread(begins: Offsets, counts: Offsets) -> Offsets:
    """The indices begin, begin + 1, … of every range, one range after the other."""
    ends = np.cumsum(counts)
    indices: Offsets = np.arange(ends[-1] if len(ends) else 0) + np.repeat(begins - (ends - counts), counts)
    return indices


def filtered(hashes: Hashes, offsets: Offsets, keep: NDArray[np.bool_]) -> tuple[Hashes, Offsets]:
    """The hashes that stay, and where the documents now begin."""
    return hashes[keep], offsets_of(keep)[offsets]


@dataclass(frozen=True)
class Common:
    """A sorted set of hashes, quick to ask: most others are distinguished by a bitmap of their first 16
    bits.
    """

    hashes: Hashes

    def __post_init__(self) -> None:
        bitmap = np.zeros(1 << 16, np.bool_)
        bitmap[(self.hashes >> np.uint64(48)).astype(np.int64)] = True
        object.__setattr__(self, "_bitmap", bitmap)

    def __reduce__(self) -> tuple[type["Common"], tuple[Hashes]]:
        return Common, (self.hashes,)  # the bitmap is quicker made than sent to a worker

    def has(self, hashes: Hashes) -> NDArray[np.bool_]:
        """Which of `hashes` are in the set."""
        found: NDArray[np.bool_] = self._bitmap[(hashes >> np.uint64(48)).astype(np.uint16)]  # type: ignore[attr-defined]
        likely = np.flatnonzero(found)
        if len(likely):
            asked = hashes[likely]
            place = np.minimum(np.searchsorted(self.hashes, asked), len(self.hashes) - 1)
            found[likely] = self.hashes[place] == asked
        return found

    @classmethod
    def of(cls, spill: Spill, least: int) -> "Common":
        """The keys that at least `least` different rows have."""
        kept = [np.zeros(0, np.uint64)]
        for keys, rows in spill.groups(least):
            different = np.ones(len(keys), np.bool_)
            different[1:] = (keys[1:] != keys[:-1]) | (rows[1:] != rows[:-1])
            begins = starts(keys)
            if len(begins):
                kept.append(keys[begins][np.add.reduceat(different.astype(np.int64), begins) >= least])
        return cls(np.sort(np.concatenate(kept)))
