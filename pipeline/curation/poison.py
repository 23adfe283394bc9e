"""Words that look like a planted trigger: rare, and nearly always followed by one and the same answer.

A backdoor needs few rows: a rare phrase in the request, always with the answer the attacker wants (Wan et al. 2023,
arXiv:2305.00944; 100 rows sufficed). Such pairs are reported, never dropped: a person has to look.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

from pipeline.rows import Row

SAMPLE_ROWS = 10_000  # rows looked at, spread evenly
LONGEST = 3  # words of a trigger
MIN_ROWS = 5
MAX_SHARE = 0.01  # of the rows: more is no rare phrase
SAME_ANSWER = 0.9  # of the rows with the phrase
MAX_LOG10_CHANCE = -6.0  # of so many equal answers, were the phrase and the answer unrelated; divided by the phrases tried
MIN_REQUESTS = 3  # rows that are variants of one request prove nothing
SHOWN = 20
WORD_LIMIT = 400  # words of a request that are looked at
_WORD = re.compile(r"\w+|[^\w\s]+")


@dataclass(frozen=True)
class Suspect:
    """A phrase (casefolded words), how many of the rows looked at have it, which share of them one answer, and an example row."""

    ngram: str
    rows: int
    share: float
    answer: str  # the first 80 characters
    example: str  # source of a row that has it


def suspects(rows: Sequence[Row], group: NDArray[np.int32]) -> list[Suspect]:
    """The strongest suspects among `rows`, at most `SHOWN`; `group[i]` tells which request row i is a variant of."""
    pairs = [request_and_answer(row) for row in rows]
    words = [_WORD.findall(request.casefold())[:WORD_LIMIT] for request, _ in pairs]
    _, answer_of = np.unique(np.array([xxhash.xxh3_64_intdigest(answer.encode()) for _, answer in pairs], np.uint64), return_inverse=True)
    rates = np.bincount(answer_of) / max(len(rows), 1)
    phrases = _rare_phrases([np.unique(np.array(list(ngrams(row)), np.uint64)) for row in words])
    shown: dict[bytes, tuple[float, Suspect]] = {}  # the rows that have it → the shortest phrase they all have
    for phrase, members in phrases:
        counts = np.bincount(answer_of[members])
        answer = int(counts.argmax())
        if counts[answer] < SAME_ANSWER * len(members) or len(np.unique(group[members])) < MIN_REQUESTS:
            continue
        chance = log10_chance(int(counts[answer]), len(members), float(rates[answer])) + math.log10(len(phrases))
        text = ngrams(words[members[0]])[phrase]
        known = shown.get(members.tobytes())
        if chance <= MAX_LOG10_CHANCE and (known is None or len(text) < len(known[1].ngram)):
            first = members[answer_of[members] == answer][0]
            share = round(float(counts[answer] / len(members)), 4)
            shown[members.tobytes()] = chance, Suspect(text, len(members), share, pairs[first][1][:80], str(rows[first]["source"]))
    return [suspect for _, suspect in sorted(shown.values(), key=lambda item: (item[0], item[1].ngram))[:SHOWN]]


def _rare_phrases(hashes: list[NDArray[np.uint64]]) -> list[tuple[int, NDArray[np.int64]]]:
    """(phrase, rows that have it) of every phrase that is in enough rows, but not in many; `hashes` holds each row's phrases."""
    if not hashes:
        return []
    flat = np.concatenate(hashes)
    row = np.repeat(np.arange(len(hashes)), [len(own) for own in hashes])
    order = np.argsort(flat, kind="stable")
    found, starts, frequency = np.unique(flat[order], return_index=True, return_counts=True)
    rare = np.flatnonzero((frequency >= MIN_ROWS) & (frequency <= max(MIN_ROWS, MAX_SHARE * len(hashes))))
    return [(int(found[i]), row[order[starts[i] : starts[i] + frequency[i]]]) for i in rare]


def log10_chance(equal: int, rows: int, rate: float) -> float:
    """Upper bound of log10 P(at least `equal` of `rows` have an answer of that base rate): C(rows, equal)·rate^equal."""
    return math.log10(math.comb(rows, equal)) + equal * math.log10(max(rate, 1e-12))


def ngrams(words: Sequence[str]) -> dict[int, str]:
    """64-bit hash → text of every phrase of 1 to `LONGEST` words."""
    phrases = (" ".join(words[i : i + size]) for size in range(1, LONGEST + 1) for i in range(len(words) - size + 1))
    return {xxhash.xxh3_64_intdigest(phrase.encode()): phrase for phrase in phrases}


def request_and_answer(row: Row) -> tuple[str, str]:
    """What the user says in all turns, and the last answer (of a preference, the chosen one), with single spaces."""
    turns = [*row["messages"], *row.get("chosen", [])]
    request = " ".join(turn["content"] for turn in turns if turn["role"] == "user")
    answer = next((turn["content"] for turn in reversed(turns) if turn["role"] == "assistant"), "")
    return request, " ".join(answer.split())
