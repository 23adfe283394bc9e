"""Written texts that repeat a row of another split, and so would leak it across the border.

The row that a text was written to is on the right side already, and so is everything that it shares with
other rows. Only what the text adds to its own row counts.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pipeline.chat.rows import Row, texts
from pipeline.config.sections import AugmentKind
from pipeline.core.jsonl import read_rows
from pipeline.stages.augment.instructions import Call, question_of

# Consecutive words that a training row may not share with a held-out one, as in curation.
WORDS = 13
SHINGLE = 3  # length in words
ALIKE = 0.7  # Jaccard similarity of two questions from which curation keeps them on one side of the split
SPLITS = ("train", "val", "test")
Shingles = frozenset[int]


def shared(
    kind: AugmentKind, calls: Sequence[Call], written: Sequence[str], final: Path
) -> Mapping[int, str]:
    """Return the reason for each place whose text shares too much with a row of another split in `final`.

    The rows are read one at a time, so memory grows only with the written texts.
    """
    runs = defaultdict[int, list[int]](list)  # places by the hash of a run of words
    questions = defaultdict[int, list[int]](list)  # places by the hash of a shingle
    written_shingles = [_shingles(text, SHINGLE) for text in written]
    originals = [_shingles(question_of(call.row), SHINGLE) for call in calls]
    for place, (call, text) in enumerate(zip(calls, written, strict=True)):
        own_runs = set[int]()
        for _, row_text in texts(call.row):
            own_runs |= _shingles(row_text, WORDS)
        for run in _shingles(text, WORDS) - own_runs:
            runs[run].append(place)
        if kind == "questions":
            for shingle in written_shingles[place]:
                questions[shingle].append(place)
    reasons: dict[int, str] = {}
    for split, row in _rows(final):
        row_runs = {run for _, text in texts(row) for run in _shingles(text, WORDS) if run in runs}
        for place in {place for run in row_runs for place in runs[run]}:
            if calls[place].split != split:
                reasons[place] = "shared_with_held_out"
        question_shingles = _shingles(question_of(row), SHINGLE)
        together = Counter(place for shingle in question_shingles for place in questions.get(shingle, ()))
        for place, common in together.items():
            if calls[place].split == split or place in reasons:
                continue
            alike = common / len(written_shingles[place] | question_shingles)
            if alike >= ALIKE and alike > _alike(originals[place], question_shingles):
                reasons[place] = "near_held_out"
    return reasons


def _rows(final: Path) -> Iterator[tuple[str, Row]]:
    for split in SPLITS:
        for row in read_rows(final / f"{split}.jsonl"):
            yield split, row


def _alike(first: Shingles, second: Shingles) -> float:
    return len(first & second) / len(first | second) if first or second else 0.0


def _shingles(text: str, length: int) -> Shingles:
    """Return the hashes of all runs of `length` words and signs. A shorter question is one run."""
    words = re.findall(r"\w+|[^\w\s]", text.casefold())
    if length == WORDS:
        words = [word for word in words if word[0].isalnum() or word[0] == "_"]
        if len(words) < length:
            return frozenset()
    last = max(1, len(words) - length + 1)
    return frozenset(hash(tuple(words[start : start + length])) for start in range(last) if words)
