"""ROUGE-L (Lin 2004), the library `rouge-score`'s to the last bit, with words of every script and of answers of any length.

The library fills a table of every word against every word: 11 s for 4,000 words each. Here a row of that table is the bits of one
integer (Crochemore et al. 2001, "A fast and practical bit-vector algorithm for the longest common subsequence problem"): 0.01 s.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.metrics.score import Score

# the library's tokens are a-z and 0-9 alone, so that Chinese against Chinese would score 0; for ASCII both are the same.
# Han and Kana are written without spaces: a character each
HAN = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
WORD = re.compile(f"[{HAN}]|[^\\W_{HAN}]+")


def rouge_l(reference: str, answer: str, row: Mapping[str, Any]) -> Score:
    """F1 of the longest common subsequence of words, 0 to 1."""
    wanted, given = (WORD.findall(text.lower()) for text in (reference, answer))
    if not wanted:
        raise ValueError("the reference has no words")
    common = common_words(wanted, given)
    if not common:
        return Score(0.0, bool(answer.strip()))
    precision, recall = common / len(given), common / len(wanted)
    return Score(2 * precision * recall / (precision + recall), True)


def common_words(one: Sequence[str], other: Sequence[str]) -> int:
    """Length of the longest common subsequence: the zeros that are left of a row of ones."""
    places: dict[str, int] = {}  # of each word in `one`, a bit each
    for place, word in enumerate(one):
        places[word] = places.get(word, 0) | 1 << place
    ones = row = (1 << len(one)) - 1
    for word in other:
        met = row & places.get(word, 0)
        row = (row + met | row - met) & ones
    return len(one) - row.bit_count()
