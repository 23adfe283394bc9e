"""Rows that share text: they stay on one side of the split where they can, and training rows leave that still
share some with the data that the model is evaluated on: the test split, and files that the user names.

Two texts share text if they have a run of n words in common (n = 13 as in GPT-3, arXiv:2005.14165, appendix
C; case and punctuation are ignored). Runs in system turns don't count. Neither do runs of boilerplate in a
test row, because they are the template of all rows, nor runs made of phrases: macros, sign-offs and footers,
`PHRASE` words or more that rows of `PHRASE_GROUPS` unrelated groups have. A copied answer is in two groups or
three. A run counts if at most `PHRASED` of its words are in phrases, so neither do the words count at which
one phrase ends and the next begins, with a name between them. The text of a named file always counts. A row
of fewer than n words shares nothing: it can only be caught as a duplicate.

Fingerprints of texts are joined on disk: two texts that share a run have a fingerprint in common. The join
gives candidates. The texts of the candidates are then compared.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.chat.rows import Row
from pipeline.core.text import most
from pipeline.stages.curate.comparing.features import BLOCK_CHARACTERS, BLOCK_ROWS
from pipeline.stages.curate.comparing.row_parts import block_texts, parts
from pipeline.stages.curate.comparing.shingles import (
    NGRAM,
    ONE,
    WINDOW,
    Hashes,
    Tokens,
    common,
    fingerprints,
    is_in,
    of_boilerplate,
    run_keys,
    spread,
    tokenize,
    word_ngrams,
)
from pipeline.stages.curate.comparing.sketched import labels, unite, unjoined
from pipeline.stages.curate.comparing.spill import (
    Keys,
    Rows,
    Spill,
    differs,
    groups_of,
    offsets_of,
    pieces,
    ranks,
)
from pipeline.stages.curate.inputs import read_texts
from pipeline.stages.curate.spool import Rows as StoredRows
from pipeline.stages.curate.spool import batches

PARTNERS = 4  # candidates of one training row for one key
CHECKED = 32  # candidates checked for one training row: so many texts of files, and so many test rows
SPANS = 3  # shared spans reported for one training row
GROUPED = 0.1  # Largest share of the rows that one group may have because of spans that its rows share.
PHRASE = NGRAM - WINDOW + 1  # words
PHRASE_GROUPS = 5  # groups of related rows
PHRASE_ROWS = 100_000  # rows in the sample that is searched for phrases
PHRASED = NGRAM - PHRASE  # words of phrases in a run that still counts: the others are a run that is none
DOCUMENTS = "documents"
DOCUMENT = 1 << 31  # offset of the number of a named file's text; smaller numbers are rows
CANDIDATE = np.dtype([("row", "u4"), ("other", "u4"), ("key", "u8")])
Candidates = NDArray  # records of dtype `CANDIDATE`
Place = tuple[str, int, int, int]  # place of a text: file, line, and its offset and size in bytes in `texts`
EXCERPT = 300  # characters of a shared span that the statistics show
NO_PHRASES = np.zeros(0, np.uint64)


@dataclass(frozen=True)
class Span:
    """Shared characters `start` to `end` of the part of `row_parts.parts` at `place` (tool calls as JSON)."""

    place: str
    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Leak:
    """A training row that shares text with a test row, or with the text in line `line` of a named file."""

    row: int
    other: int | None  # index of the test row
    file: str | None
    line: int | None
    spans: list[Span]


def write_documents(folder: Path, files: Mapping[str, Path], boilerplate: Hashes) -> dict[str, int]:
    """Write the texts of the named `files` that training must not overlap with, and their fingerprints.

    They go into files of `folder`. Returns the number of texts of `NGRAM` words or more for each file,
    because shorter texts cannot be found. Raises `DataError` if a file cannot be read.
    """
    spill = Spill(folder, DOCUMENTS)
    places = list[Place]()
    with (folder / "texts").open("wb") as file:
        for name, path in files.items():
            texts = read_texts(path)
            while block := list(islice(texts, 256)):
                tokens = tokenize([text for _, text in block])
                long = np.flatnonzero(np.diff(word_ngrams(tokens, NGRAM)[1]))
                number = np.zeros(len(block), np.uint32)
                number[long] = np.arange(len(long)) + (len(places) + DOCUMENT)
                keys, rows = fingerprints(tokens, np.arange(len(block) + 1), boilerplate)
                spill.add(keys, number[rows])
                for line, text in (block[i] for i in long):
                    data = text.encode("utf-8", "surrogatepass")
                    places.append((name, line, file.tell(), len(data)))
                    file.write(data)
    spill.finish()
    (folder / f"{DOCUMENTS}.json").write_text(json.dumps(places), encoding="utf-8")
    counts = Counter(name for name, *_ in places)
    return {name: counts[name] for name in files}


def phrases(rows: Iterable[tuple[int, Row]], folder: Path) -> Hashes:
    """Return the runs of `PHRASE` words that are in rows of `PHRASE_GROUPS` groups or more, sorted.

    `rows` are rows with the number of their group, ordered by it. The join uses files of `folder`.
    """
    spill = Spill(folder, "phrases")
    for block in batches(rows, _size, BLOCK_CHARACTERS, BLOCK_ROWS):
        read = block_texts([row for _, row in block])
        grams, offsets = word_ngrams(read.tokens, PHRASE)
        groups = np.array([group for group, _ in block], np.uint32)
        spill.add(grams, np.repeat(groups, np.diff(offsets[read.begins])))
    return common(spill.finish(), PHRASE_GROUPS)


def _size(grouped: tuple[int, Row]) -> int:
    return sum(len(part.text) for part in parts(grouped[1]))


class Overlaps:
    """Search, by fingerprints, for training rows that share `NGRAM` words with other rows or documents."""

    def __init__(self, prints: Spill, folder: Path, boilerplate: Hashes, known_phrases: Hashes) -> None:
        self.prints = prints
        self.boilerplate = boilerplate
        self.phrases = known_phrases
        self.phrase_keys = np.unique(known_phrases >> ONE << ONE)
        self.texts = folder / "texts"
        self.places: list[Place] = json.loads((folder / f"{DOCUMENTS}.json").read_bytes())

    def candidates(self, train: NDArray[np.bool_], test: NDArray[np.bool_]) -> Candidates:
        """Return sorted records: training row, test row or `DOCUMENT` + number of a text, shared key.

        `train` and `test` have an entry per row. A row has at most `PARTNERS` others per key and `CHECKED`
        candidates of either kind, so that the work grows with the rows and not with their pairs.
        """
        train, test = np.append(train, False), np.append(test, False)  # The last entry represents documents.
        joined = [np.zeros(0, CANDIDATE)]
        for keys, rows in groups_of([self.prints]):
            document = rows >= DOCUMENT
            number = np.where(document, len(train) - 1, rows)
            is_phrase = of_boilerplate(keys) | is_in(keys >> ONE << ONE, self.phrase_keys)
            is_other = (test[number] & ~is_phrase) | document
            joined.append(_joined(keys, rows, train[number], is_other))
            if sum(map(len, joined[1:])) > len(joined[0]) + (1 << 16):
                joined = [_checked(np.concatenate(joined))]
        return _checked(np.concatenate(joined))

    def leaks(
        self, train: NDArray[np.bool_], test: NDArray[np.bool_], row_at: Callable[[int], Row]
    ) -> Iterator[Leak]:
        """Yield the training rows that share text, in order, each with the first text that it shares some
        with. Files come before test rows.

        `row_at` returns the row with a given number.
        """
        candidates = self.candidates(train, test)
        for of_row in pieces(candidates, candidates["row"]):
            number = int(of_row["row"][0])
            row = row_at(number)
            for other in sorted(set(of_row["other"].tolist()), key=lambda other: (other < DOCUMENT, other)):
                keys = of_row["key"][of_row["other"] == other]
                spans = self._spans(row, other, keys, row_at)
                if spans:
                    if other >= DOCUMENT:
                        file, line, _, _ = self.places[other - DOCUMENT]
                        yield Leak(number, None, file, line, spans)
                    else:
                        yield Leak(number, other, None, None, spans)
                    break

    def related(
        self, used: NDArray[np.bool_], group: NDArray[np.int32], row_at: Callable[[int], Row]
    ) -> NDArray[np.int32]:
        """Return the `group` of every row (the smallest row of it) after groups are united that share text.

        Only `used` rows unite groups. Groups that would have more than `GROUPED` of them together stay apart:
        the split would have too little left to choose from.
        """
        united = group.copy()
        candidates = self.candidates(used, used)
        candidates = candidates[candidates["other"] < candidates["row"]]  # Each pair once, and no documents.
        for of_pair in pieces(candidates, candidates["row"].astype(np.int64) << 32 | candidates["other"]):
            number, other = int(of_pair["row"][0]), int(of_pair["other"][0])
            a, b = unjoined(united, np.array([number], np.int32), np.array([other], np.int32))
            if len(a) and self._spans(row_at(number), other, of_pair["key"], row_at):
                unite(united, a, b)
        labels(united)
        rows_of = np.bincount(united[used], minlength=len(united))
        fits = rows_of[united] <= GROUPED * used.sum()
        return np.where(fits, united, group)

    def _spans(
        self, row: Row, other: int, keys: NDArray[np.uint64], row_at: Callable[[int], Row]
    ) -> list[Span]:
        """Return the text that `row` shares with row or document `other`, given the keys that both have."""
        # A named file's text counts, however many rows have it.
        ignored = self.phrases if other < DOCUMENT else NO_PHRASES
        return shared_spans(row, Match(self._texts_of(other, row_at), keys, self.boilerplate, ignored))

    def _texts_of(self, other: int, row_at: Callable[[int], Row]) -> list[str]:
        if other < DOCUMENT:
            return [part.text for part in parts(row_at(other)) if part.role != "system"]
        _, _, offset, size = self.places[other - DOCUMENT]
        with self.texts.open("rb") as file:
            file.seek(offset)
            return [file.read(size).decode("utf-8", "surrogatepass")]


def _joined(keys: Keys, rows: Rows, is_train: NDArray[np.bool_], is_other: NDArray[np.bool_]) -> Candidates:
    """Return pairs with one key: a training row (`is_train`) and another (`is_other`). A row may be both.

    Records are grouped by key.
    """
    once = differs(keys, rows)  # A row may have a key twice.
    left = np.flatnonzero(is_train & once)
    right = np.flatnonzero(is_other & once)
    # The range of other records with the same key, for each training record.
    first = np.searchsorted(keys[right], keys[left], "left")
    last = np.searchsorted(keys[right], keys[left], "right")
    partners = np.minimum(last - first, PARTNERS)
    left, right = np.repeat(left, partners), right[spread(first, partners)]
    in_two_rows = rows[left] != rows[right]
    left, right = left[in_two_rows], right[in_two_rows]
    return np.rec.fromarrays([rows[left], rows[right], keys[left]], CANDIDATE)


def _checked(candidates: Candidates) -> Candidates:
    """Return the candidates sorted, and at most `CHECKED` per row and kind of other."""
    candidates = candidates[np.lexsort((candidates["key"], candidates["other"], candidates["row"]))]
    return candidates[
        ranks(candidates["row"].astype(np.int64) << 1 | (candidates["other"] >= DOCUMENT)) < CHECKED
    ]


@dataclass(frozen=True)
class Match:
    """Texts that a row may share runs with: only runs with one of `keys` count, and not those of phrases."""

    texts: Sequence[str]
    keys: Hashes
    boilerplate: Hashes
    phrases: Hashes


def shared_spans(row: Row, match: Match) -> list[Span]:
    """Return at most `SPANS` runs of `NGRAM` or more words of the row that count for the match."""
    shared = np.unique(word_ngrams(tokenize(match.texts), NGRAM)[0])
    spans = (_runs(part.place, part.text, shared, match) for part in parts(row) if part.role != "system")
    return list(islice(chain.from_iterable(spans), SPANS))


def _runs(place: str, text: str, shared: Hashes, match: Match) -> Iterator[Span]:
    tokens = tokenize([text])
    hits = np.isin(word_ngrams(tokens, NGRAM)[0], shared)
    counted = hits & np.isin(run_keys(tokens, match.boilerplate)[0], match.keys)
    counted &= _phrased_words(tokens, match.phrases) <= PHRASED
    words = np.flatnonzero(tokens.words)  # indices of the tokens that are words
    edges = np.flatnonzero(np.diff(hits, prepend=False, append=False))
    # The n-grams [first, last) are shared.
    for first, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if counted[first:last].any():
            start = int(tokens.at[words[first]])
            final = words[last - 2 + NGRAM]
            end = int(tokens.at[final + 1]) if final + 1 < len(tokens.at) else len(text)
            shared_text = text[start:end].rstrip()
            yield Span(place, start, start + len(shared_text), shared_text)


def _phrased_words(tokens: Tokens, known_phrases: Hashes) -> NDArray[np.int64]:
    """Return how many words of every run of `NGRAM` words of a text are in a phrase."""
    count = int(tokens.words.sum())
    begins = np.flatnonzero(is_in(word_ngrams(tokens, PHRASE)[0], known_phrases))
    edges = np.zeros(count + 1, np.int64)
    edges[begins] += 1
    edges[begins + PHRASE] -= 1
    covered = offsets_of(np.cumsum(edges[:-1]) > 0)
    return covered[NGRAM:] - covered[:-NGRAM]


def commonest(leaks: Iterable[Leak]) -> list[dict[str, Any]]:
    """Return the first shared spans of the training rows with the number of rows that have them, the most
    frequent first.
    """
    counts = Counter(_excerpt(leak.spans[0].text) for leak in leaks)
    return [{"text": text, "rows": rows} for text, rows in most(counts)[:SPANS]]


def describe(leak: Leak, rows: StoredRows) -> dict[str, Any]:
    """Return `detail` and `spans` of a leak for data/rejects.jsonl."""
    where = f"{leak.file} line {leak.line}" if leak.other is None else f"test row {rows.source(leak.other)}"
    return {
        "detail": f"shares a run of {NGRAM} words or more with {where}",
        "spans": [asdict(span) | {"text": _excerpt(span.text)} for span in leak.spans],
    }


def _excerpt(text: str) -> str:
    return text[:EXCERPT] + ("…" if len(text) > EXCERPT else "")
