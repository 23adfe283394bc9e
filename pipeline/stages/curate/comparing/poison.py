"""Words that look like a planted trigger: rare, and nearly always followed by one and the same answer.

A backdoor needs few rows: a rare phrase in the request, always with the answer the attacker wants (Wan et al.
2023, arXiv:2305.00944; 100 rows sufficed). Such pairs are reported, never dropped: a person has to look.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

from pipeline.chat.rows import Row
from pipeline.stages.curate.comparing.shingles import Hashes, Offsets, ngrams, tokenize
from pipeline.stages.curate.comparing.spill import differs, pieces, sizes

SAMPLE_ROWS = 10_000  # rows looked at, spread evenly
LONGEST = 3  # words of a trigger
MIN_ROWS = 5
MAX_SHARE = 0.01  # of the rows: more is no rare phrase
SAME_ANSWER = 0.9  # of the rows with the phrase
# of so many equal answers, were the phrase and the answer unrelated; divided by the phrases tried
MAX_LOG10_CHANCE = -6.0
MIN_REQUESTS = 3  # rows that are variants of one request prove nothing
SHOWN = 20
LONGEST_REQUEST = 4000  # characters that are looked at


@dataclass(frozen=True)
class Suspect:
    """A phrase (casefolded words), how many of the rows looked at have it, which share of them one answer,
    and an example row.
    """

    ngram: str
    rows: int
    share: float
    answer: str  # the first 80 characters
    example: str  # source of a row that has it


def suspects(rows: Iterable[Row], group: NDArray[np.int32]) -> list[Suspect]:
    """The strongest suspects among `rows`, at most `SHOWN`; `group[i]` tells which request row i is a variant
    of.
    """
    requests, answers, shown_answers, sources = [], [], [], []
    for row in rows:  # of a long row only so much is kept
        request, answer = request_and_answer(row)
        requests.append(request[:LONGEST_REQUEST])
        answers.append(xxhash.xxh3_64_intdigest(answer.encode()))
        shown_answers.append(answer[:80])
        sources.append(str(row["source"]))
    tokens = tokenize(requests)
    _, answer_of = np.unique(np.array(answers, np.uint64), return_inverse=True)
    rates = np.bincount(answer_of) / max(len(requests), 1)
    # the rows that have it → the shortest phrase they all have, and its chance
    shown: dict[bytes, tuple[float, Suspect]] = {}
    for size in range(1, LONGEST + 1):
        phrases = list(_rare_phrases(*ngrams(tokens.hashes, tokens.offsets, size)))
        for first_at, members in phrases:
            counts = np.bincount(answer_of[members])
            commonest = int(counts.argmax())
            if (
                members.tobytes() in shown
                or counts[commonest] < SAME_ANSWER * len(members)
                or len(np.unique(group[members])) < MIN_REQUESTS
            ):
                continue
            chance = log10_chance(int(counts[commonest]), len(members), float(rates[commonest])) + math.log10(
                LONGEST * len(phrases)
            )
            if chance <= MAX_LOG10_CHANCE:
                example = members[answer_of[members] == commonest][0]
                share = round(float(counts[commonest] / len(members)), 4)
                text = _phrase(requests[members[0]], first_at, size)
                shown[members.tobytes()] = (
                    chance,
                    Suspect(text, len(members), share, shown_answers[example], sources[example]),
                )
    return [
        suspect for _, suspect in sorted(shown.values(), key=lambda item: (item[0], item[1].ngram))[:SHOWN]
    ]


def _rare_phrases(hashes: Hashes, offsets: Offsets) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """(which phrase of its first row, rows that have it) of every phrase that is in enough rows, but not in
    many.
    """
    row = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    order = np.argsort(hashes, kind="stable")  # and by row, for rows come in order
    hashes, row = hashes[order], row[order]
    once = differs(hashes, row)  # a row may have a phrase twice
    hashes, row, order = hashes[once], row[once], order[once]
    counts = sizes(hashes)
    rare = (counts >= MIN_ROWS) & (counts <= max(MIN_ROWS, MAX_SHARE * (len(offsets) - 1)))
    for own in pieces(np.flatnonzero(rare), hashes[rare]):
        yield int(order[own[0]] - offsets[row[own[0]]]), row[own]


def _phrase(request: str, first: int, size: int) -> str:
    """The text of `size` tokens of a request, from token `first` on."""
    at = tokenize([request]).at
    end = at[first + size] if first + size < len(at) else len(request)
    return " ".join(request[at[first] : end].casefold().split())


def log10_chance(equal: int, rows: int, rate: float) -> float:
    """Upper bound of log10 P(at least `equal` of `rows` have an answer of that base rate): C(rows,
    equal)·rate^equal.
    """
    return math.log10(math.comb(rows, equal)) + equal * math.log10(max(rate, 1e-12))


def request_and_answer(row: Row) -> tuple[str, str]:
    """What the user says in all turns, and the last answer (of a preference, the chosen one), with single
    spaces.
    """
    turns = [*row["messages"], *row.get("chosen", [])]
    request = " ".join(turn["content"] for turn in turns if turn["role"] == "user")
    answer = next((turn["content"] for turn in reversed(turns) if turn["role"] == "assistant"), "")
    return request, " ".join(answer.split())
