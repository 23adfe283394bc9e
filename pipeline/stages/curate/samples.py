"""Samples of rows for the data page: the first that were rejected for a reason or changed by a rule, near
duplicates next to the row that is kept, texts that training shares with tests, pairs, answers to one request,
and a few of those kept.
"""

from collections.abc import Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from pipeline.chat.rows import Row
from pipeline.config.sections import Curate
from pipeline.stages.curate.comparing.contamination import Leak, describe
from pipeline.stages.curate.comparing.decide import KEPT, Decisions
from pipeline.stages.curate.comparing.duplicates import Clusters
from pipeline.stages.curate.comparing.row_parts import parts, request_and_answer
from pipeline.stages.curate.pairs import Pairs
from pipeline.stages.curate.spool import Rows, spread_evenly

SHOWN = 8  # samples of each kind
LOOKED_AT = 1000  # near-duplicates among which clusters are chosen
ROWS_SHOWN = 3
LINES_SHOWN = 3  # rejects of a reason, changes of a rule
TEXT = 1200  # characters of a row


def first_lines(path: Path, key: str) -> list[dict[str, Any]]:
    """Return the first few lines of every reason or rule in a file of rejects or changes. A line has the
    reason or rule as `key`.
    """
    shown: dict[str, list[dict[str, Any]]] = {}
    with path.open("rb") as lines:
        for line in lines:
            entry = orjson.loads(line)
            of_key = shown.setdefault(entry[key], [])
            if len(of_key) < LINES_SHOWN:
                of_key.append(entry)
    return list(chain.from_iterable(shown.values()))


def row_samples(
    rows: Rows,
    pairs: Pairs,
    leaks: dict[int, Leak],
    decisions: Decisions,
    clusters: Clusters,
    settings: Curate,
) -> dict[str, Any]:
    """Return the samples of rows that were compared."""
    described = ((leak, describe(leak, rows)) for leak in islice(leaks.values(), SHOWN))
    return {
        "clusters": cluster_samples(rows, clusters) if settings.drop_duplicates == "near" else [],
        "contamination": [
            {"source": rows.source(leak.row), "matched": why["detail"], "span": why["spans"][0]["text"]}
            for leak, why in described
        ],
        "pairs": pair_samples(rows, pairs.made),
        "rows": [
            rows.row(index) for index in spread_evenly(np.flatnonzero(decisions.outcome == KEPT), ROWS_SHOWN)
        ],
    }


def cluster_samples(rows: Rows, clusters: Clusters) -> list[dict[str, Any]]:
    """Return the kept row of some clusters next to those that differ most.

    They show if the threshold is right.
    """
    near = np.flatnonzero(clusters.similarity < 1)
    order = near[np.argsort(clusters.similarity[near], kind="stable")]
    shown: dict[int, list[int]] = {}
    for row in order[:LOOKED_AT].tolist():
        name = int(clusters.cluster[row])
        if name in shown or len(shown) < SHOWN:
            shown.setdefault(name, []).append(row)
    return [
        {
            "kept": _sample(rows, int(np.flatnonzero((clusters.cluster == name) & clusters.keep)[0])),
            "dropped": [
                _sample(rows, row) | {"similarity": round(float(clusters.similarity[row]), 3)}
                for row in dropped[:ROWS_SHOWN]
            ],
        }
        for name, dropped in shown.items()
    ]


def _sample(rows: Rows, index: int) -> dict[str, Any]:
    text = "\n".join(f"{part.role}: {part.text}" for part in parts(rows.row(index)))  # one turn a line
    return {"source": rows.source(index), "text": _cut(text)}


def answer_samples(rows: Rows, requests: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
    """Return requests that have several answers, and the sources of these."""
    return [_answered([rows.row(row) for row in request[:4]]) for request in requests]


def pair_samples(rows: Rows, pairs: Sequence[tuple[int, int, float]]) -> list[dict[str, Any]]:
    """Return request and both answers of the first pairs (chosen row, rejected row, gap of rewards)."""
    samples = []
    for chosen, rejected, gap in pairs[:SHOWN]:
        both = [rows.row(chosen), rows.row(rejected)]
        samples.append(_answered(both) | {"gap": gap})
    return samples


def _answered(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the request that these rows make, and the answer and the source of each."""
    exchanges = [request_and_answer(row) for row in rows]
    return {
        "prompt": _cut(exchanges[0][0]),
        "answers": [_cut(answer) for _, answer in exchanges],
        "sources": [row["source"] for row in rows],
    }


def _cut(text: str) -> str:
    return text if len(text) <= TEXT else f"{text[:TEXT]}…"
