"""Preference rows made of scored chats: of two answers to one request the one with the higher reward is
chosen, the other rejected (`curate.pairs`).

Two chats make one request if they have the same messages up to the last answer and the same tools, and are on
the same side of the split, so that a pair is in the split of its chats. The best answer is paired with the
worst, the second best with the second worst and so on, so that no chat is in two pairs. The chats stay:
`train.method` decides what is learned.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import orjson
import xxhash
from numpy.typing import NDArray

from pipeline.chat.rows import Row, row_id, untrained_turns
from pipeline.config.sections import Curate
from pipeline.core.jsonl import dump_line
from pipeline.stages.curate.clean import KINDS
from pipeline.stages.curate.comparing.decide import KEPT, NEAR, SPLITS, Decisions, Table
from pipeline.stages.curate.comparing.duplicates import Clusters
from pipeline.stages.curate.comparing.spill import pieces
from pipeline.stages.curate.spool import Rows, Spool

PREFERENCE = KINDS.index("preference")
Mask = NDArray[np.bool_]
# An entry per candidate; rows with the same request and split have the same hash.
ANSWER = np.dtype([("request", "u8"), ("reward", "f8"), ("row", "i8")])


class Pair(NamedTuple):
    """Two rows with different answers to one request; `gap` is the difference of their rewards, above 0."""

    chosen: int
    rejected: int
    gap: float


@dataclass
class Pairs:
    """Pairs in the order of their chosen rows, and the outcomes of rows with a reward (reason → rows)."""

    made: list[Pair]
    rows: Counter[str]


def near_duplicates(decisions: Decisions, table: Table, settings: Curate) -> Mask:
    """Return rows that are dropped as chats because a row that is nearly the same stays, but may still be
    half of a pair: their answers may differ only in what matters.
    """
    if settings.pairs == "none":
        return np.zeros(len(table), np.bool_)
    scored: Mask = table.scored & (decisions.outcome == NEAR)
    return scored


def make_pairs(
    rows: Rows,
    decisions: Decisions,
    table: Table,
    clusters: Clusters,
    settings: Curate,
    weights: Sequence[float],
) -> Pairs:
    """Return the pairs of `curate.pairs`. `weights` is the share of each file that is used for training.

    A row is a candidate if it is kept, or dropped only because a row that is kept is nearly the same.
    """
    pairs = Pairs([], Counter())
    if settings.pairs == "none":
        return pairs
    beside = near_duplicates(decisions, table, settings)
    beside[beside] = (decisions.outcome[decisions.duplicate_of[beside]] == KEPT) & (
        np.asarray(weights)[table.file[beside]] > 0
    )
    candidates = np.flatnonzero(table.scored & ((decisions.outcome == KEPT) | beside))
    pairs.rows["left_out"] = int(table.scored.sum()) - len(candidates)
    answers = np.fromiter(_answers(rows, candidates, decisions), ANSWER)
    pairs.rows["not_trained"] = len(candidates) - len(answers)
    answers = answers[np.lexsort((answers["row"], -answers["reward"], answers["request"]))]
    for group in pieces(answers, answers["request"]):
        pairs.made += _pairs_of(group, clusters.first, pairs.rows)
    pairs.made.sort()
    return pairs


def _answers(rows: Rows, candidates: NDArray[np.int64], decisions: Decisions) -> Iterator[Any]:
    """Yield an `ANSWER` for each candidate, unless its last answer is not to be learned."""
    for index in candidates.tolist():
        row = rows.row(index)
        if row["messages"][-1].get("train", True):
            request = [untrained_turns(row["messages"][:-1]), row.get("tools"), int(decisions.split[index])]
            key = xxhash.xxh3_64_intdigest(orjson.dumps(request, option=orjson.OPT_SORT_KEYS))
            yield key, row["reward"], index


def _pairs_of(candidates: NDArray, first: NDArray[np.int32], why: Counter[str]) -> Iterator[Pair]:
    """Yield the pairs among the answers to one request, highest reward first.

    Equal answers (equal in `first`) count once, as the one with the highest reward.
    """
    _, at = np.unique(first[candidates["row"]], return_index=True)
    why["identical_answers"] += len(candidates) - len(at)
    candidates = candidates[np.sort(at)]
    if len(candidates) == 1:
        why["alone"] += 1
        return
    why["left_over"] += len(candidates) % 2
    for better, worse in zip(candidates[: len(candidates) // 2], candidates[::-1], strict=False):
        gap = float(better["reward"] - worse["reward"])
        reason = "equal_rewards" if gap == 0 else "paired"
        why[reason] += 2
        if reason == "paired":
            yield Pair(int(better["row"]), int(worse["row"]), gap)


def add_pairs(
    rows: Rows, spool: Spool, pairs: Sequence[Pair], decisions: Decisions, table: Table
) -> tuple[Decisions, Table]:
    """Append the pairs to the spool after those of `rows`. Return the decisions and the table of all rows.

    Each pair gets the file, the domain, the split and the copies of its chosen chat.
    """
    if not pairs:
        return decisions, table
    preferences = [_preference(rows.row(pair.chosen), rows.row(pair.rejected)) for pair in pairs]
    chosen = np.array([pair.chosen for pair in pairs])
    spool.append([dump_line(row) for row in preferences])
    more = table[chosen].copy()
    more.key = [int(row["id"], 16) for row in preferences]
    more.turns = table.turns[chosen] - 1
    more.kind = PREFERENCE
    more.scored = False
    with_pairs = Decisions(
        np.append(decisions.outcome, np.full(len(pairs), KEPT, np.uint8)),
        np.append(decisions.split, decisions.split[chosen]),
        np.append(decisions.duplicate_of, np.full(len(pairs), -1, np.int32)),
        # A chosen chat that is left out as a near duplicate has no copies itself.
        np.append(decisions.copies, np.maximum(decisions.copies[chosen], 1)),
    )
    return with_pairs, np.concatenate([table, more]).view(np.recarray)


def _preference(chosen: Row, rejected: Row) -> Row:
    """Return the canonical row of a pair. Its source names both chats."""
    row = {
        "source": f"{chosen['source']} > {rejected['source']}",
        "kind": "preference",
        "domain": chosen["domain"],
        "messages": untrained_turns(chosen["messages"][:-1]),
        **({"tools": chosen["tools"]} if "tools" in chosen else {}),
        "chosen": untrained_turns(chosen["messages"][-1:]),
        "rejected": untrained_turns(rejected["messages"][-1:]),
    }
    return {"id": row_id(row), **row}


def pair_counts(pairs: Pairs, decisions: Decisions, table: Table) -> dict[str, Any]:
    """Return the pairs' entry in `reports/data.json`: numbers by split, mean gap, outcomes of scored rows."""
    split = decisions.split[[pair.chosen for pair in pairs.made]]
    gaps = [pair.gap for pair in pairs.made]
    return {
        "made": len(pairs.made),
        "splits": {name: int((split == number).sum()) for number, name in enumerate(SPLITS)},
        "mean_gap": round(float(np.mean(gaps)), 6) if gaps else None,
        "scored_rows": int(table.scored.sum()),
        "rows": {reason: rows for reason, rows in sorted(pairs.rows.items()) if rows},
    }
