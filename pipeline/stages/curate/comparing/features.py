"""Features by which a block of rows is compared: hashes, MinHash signatures and fingerprints.

Runs in worker processes. Two texts of a row are compared. The entire conversation, without system turns,
finds duplicates. The user's turns before the last answer find variants of one request, which belong on one
side of the split.

N-grams that are in 5 % of the rows are boilerplate and are ignored: otherwise all rows with one long
instruction would be near-duplicates of each other. But a family of near-duplicates may be 5 % of the rows as
well. Such rows differ in the shingles that only one row has. A row with fewer than `OWN` of these is compared
by its boilerplate too, except the boilerplate of more than half of all rows. So rows that share only
boilerplate, even if it is nearly all of their text, are never near-duplicates in two cases: if either has
`OWN` shingles or more of its own, or if both are made from a template that is more than half of the data set.
A request is always compared by its own shingles. A request of 5 % of the rows is a request like any other if
it has `LONG_REQUEST` tokens and is not the request of more than half.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.chat.rows import Row, line_of
from pipeline.stages.curate.comparing.minhash import Sketch, bands_for, signatures, sketch
from pipeline.stages.curate.comparing.row_parts import block_texts, key_of, parts, short_answer, worth
from pipeline.stages.curate.comparing.shingles import (
    NGRAM,
    WINDOW,
    Hashes,
    Offsets,
    common,
    filtered,
    fingerprints,
    is_in,
    shingles,
    word_ngrams,
)
from pipeline.stages.curate.comparing.spill import Keys, Rows, Spill
from pipeline.stages.curate.spool import batches

SHINGLE = 3  # tokens in a shingle
# Rows (or requests) of this similarity stay on one side of the split. Only those over the threshold are
# duplicates.
RELATED = 0.7
SAMPLE_ROWS = 5000  # rows in the sample that is searched for boilerplate
# Text in this share of the sample, and in this number of rows, is boilerplate.
COMMON_SHARE = 0.05
COMMON_ROWS = 20
TEMPLATE_SHARE = 0.5  # share of the sample; text in more rows is the data set's template
OWN = 8  # shingles; two different words, one in the request and one in the answer, change 6
LONG_REQUEST = 8  # tokens
BLOCK_ROWS = 256  # rows of the sample that are read at a time
BLOCK_CHARACTERS = 1 << 20  # characters of the sample that are read at a time
# Suffix after FILE:LINE: the number of one of the rows of a line, of a row that `curate.transform` made of
# it, which may be cut, or of a part of a long row.
_PART = re.compile(r":\d+((~\d+)*#\d+|(~\d+)+(#cut)?)$")


@dataclass(frozen=True)
class Boilerplate:
    """Text that is in too many rows to identify one: shingles, n-grams, and entire requests (by their key).
    The template's shingles are listed separately. All are sorted.
    """

    shingles: Hashes
    grams: Hashes
    requests: Hashes
    template: Hashes


@dataclass(frozen=True)
class Features:
    """Features by which a block of rows is compared. Rows are counted from the first row of the block."""

    worth: NDArray[np.uint64]  # shape (rows); the near-duplicate with the highest value is kept
    entire: Sketch
    # Rows with few shingles of their own are sketched with their boilerplate. Other rows have the signatures
    # of `entire`, and no bands.
    family: Sketch
    request: Sketch
    asking: tuple[Keys, Rows]  # Rows with the same key make the same request.
    divided: tuple[Keys, Rows]  # Rows with the same key are parts of one conversation.
    fingerprints: tuple[Keys, Rows]  # input of `pipeline.stages.curate.comparing.contamination`


def features(
    rows: Sequence[Row], boilerplate: Boilerplate, *, threshold: float, guarded: bool = True
) -> Features:
    """Return the features of a block of rows, for duplicates of at least that similarity, and for shared runs
    of at least `NGRAM` words.

    `guarded` says that boilerplate counts against some texts, so that it gets fingerprints.
    """
    bands = bands_for(min(threshold, RELATED))
    read = block_texts(rows)
    # A conversation to learn does not duplicate one with a thumb down, nor one with another label as answer.
    salt = np.array(
        [key_of([f"{row['kind']} {row.get('label', '')}", short_answer(row)]) for row in rows], np.uint64
    )
    entire, family = _sketches(*shingles(*read.documents(), SHINGLE), boilerplate, salt, bands)
    request_shingles, request_offsets = shingles(*read.request_documents(), SHINGLE)
    request_shingles, request_offsets = filtered(
        request_shingles, request_offsets, ~is_in(request_shingles, boilerplate.shingles)
    )
    counted = (read.requests != 0) & ~is_in(read.requests, boilerplate.requests)
    return Features(
        worth=np.array([worth(row) for row in rows], np.uint64),
        entire=entire,
        family=family,
        request=sketch(
            signatures(request_shingles, request_offsets),
            request_offsets,
            np.zeros(len(rows), np.uint64),
            bands,
        ),
        asking=(read.requests[counted], np.flatnonzero(counted).astype(np.uint32)),
        divided=_divided(rows),
        fingerprints=fingerprints(read.tokens, read.begins, boilerplate.grams, guarded=guarded),
    )


def _sketches(
    hashes: Hashes, offsets: Offsets, boilerplate: Boilerplate, salt: Keys, bands: tuple[int, int]
) -> tuple[Sketch, Sketch]:
    """Return the sketches `entire` and `family` of documents of shingles."""
    total = np.diff(offsets)
    special = ~is_in(hashes, boilerplate.shingles)
    counts = np.diff(filtered(hashes, offsets, special)[1])
    # A row that is only boilerplate is compared by it all the same.
    entire, entire_offsets = filtered(hashes, offsets, special | np.repeat(counts == 0, total))
    little = np.repeat((counts < OWN) & (counts < total), total)
    family, family_offsets = filtered(hashes, offsets, little & ~is_in(hashes, boilerplate.template))
    entire_signatures = signatures(entire, entire_offsets)
    family_signatures = entire_signatures.copy()
    nonempty = np.flatnonzero(np.diff(family_offsets))
    if len(nonempty):
        family_signatures[nonempty] = signatures(family, np.append(0, family_offsets[nonempty + 1]))
    return sketch(entire_signatures, entire_offsets, salt, bands), sketch(
        family_signatures, family_offsets, salt, bands
    )


def _divided(rows: Sequence[Row]) -> tuple[Keys, Rows]:
    """Return rows that were made of one line (source FILE:LINE#PART, FILE:LINE~NUMBER), by the line."""
    parts_at = [i for i, row in enumerate(rows) if _is_part(row["source"])]
    lines = (line_of(rows[i]["source"]) for i in parts_at)
    keys = [key_of([f"{file}:{line}"]) for file, line in lines]
    return np.array(keys, np.uint64), np.array(parts_at, np.uint32)


def _is_part(source: str) -> bool:
    return ("#" in source or "~" in source) and bool(_PART.search(source))


def boilerplate(rows: Iterable[Row], folder: Path) -> Boilerplate:
    """Return the text that is common among `rows`, at most `SAMPLE_ROWS` of all.

    The join uses files of `folder`.
    """
    spills = [
        Spill(folder, f"sampled_{kind}") for kind in ("shingles", "grams", "requests", "short_requests")
    ]
    count = 0
    for block in batches(
        rows, lambda row: sum(len(part.text) for part in parts(row)), BLOCK_CHARACTERS, BLOCK_ROWS
    ):
        read = block_texts(block)
        grams, text_offsets = word_ngrams(read.tokens, NGRAM - WINDOW + 1)
        requests = (read.requests, np.arange(len(block) + 1))
        short = np.diff(read.request_documents()[1]) < LONG_REQUEST
        hashed = (
            shingles(*read.documents(), SHINGLE),
            (grams, text_offsets[read.begins]),
            requests,
            filtered(*requests, short),
        )
        owners = np.arange(count, count + len(block), dtype=np.uint32)
        for spill, (hashes, offsets) in zip(spills, hashed, strict=True):
            spill.add(hashes, np.repeat(owners, np.diff(offsets)))
        count += len(block)
    least = max(COMMON_ROWS, int(np.ceil(COMMON_SHARE * count)))
    most = max(COMMON_ROWS, int(TEMPLATE_SHARE * count) + 1)
    shingles_of_all, known_grams, requests_of_all, short_requests = (spill.finish() for spill in spills)
    return Boilerplate(
        shingles=common(shingles_of_all, least),
        grams=common(known_grams, least),
        requests=np.union1d(common(short_requests, least), common(requests_of_all, most)),
        template=common(shingles_of_all, most),
    )
