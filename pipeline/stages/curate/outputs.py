"""Sends every clean row to its split or to the rejects, and records the clusters."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np

from pipeline.core.jsonl import dump_line
from pipeline.stages.curate.clean import TEXT_SHOWN, keep_sample, reject_entry
from pipeline.stages.curate.comparing.decide import EXACT, FATES, KEPT, NEAR, SAMPLED_OUT, Decisions
from pipeline.stages.curate.comparing.duplicates import Clusters
from pipeline.stages.curate.comparing.spill import pieces, sizes
from pipeline.stages.curate.comparing.splits import SPLITS
from pipeline.stages.curate.spool import Spool, source_of

Describe = Callable[[int], dict[str, Any]]  # of a contaminated row: `detail`, and `spans` that it shares


def write_rows(
    spool: Spool,
    decisions: Decisions,
    clusters: Clusters,
    describe: Describe,
    final: Path,
    rejects: IO[bytes],
) -> dict[str, list[dict[str, Any]]]:
    """Write `final/{train,val,test}.jsonl` in the order in which the rows were read, and what was dropped to
    `rejects`.

    Gives the first few rejects of every reason.
    """
    shown: dict[str, list[dict[str, Any]]] = {}
    with ExitStack() as stack:
        files = [
            stack.enter_context((final / f"{split}.jsonl").open("wb", buffering=1 << 20)) for split in SPLITS
        ]
        for index, line in enumerate(spool.lines()):
            if decisions.fate[index] == KEPT:
                files[decisions.split[index]].write(line)
                continue
            entry = reject(spool, index, line, decisions, clusters, describe)
            rejects.write(dump_line(entry))
            keep_sample(shown, entry["reason"], entry)
    return shown


def reject(
    spool: Spool, index: int, line: bytes, decisions: Decisions, clusters: Clusters, describe: Describe
) -> dict[str, Any]:
    """A line of `data/rejects.jsonl` for a row that was clean, but is not used."""
    fate, twin = int(decisions.fate[index]), int(decisions.twin[index])
    if fate == EXACT:
        why = {"detail": f"the same conversation as {spool.source(twin)}"}
    elif fate == NEAR:
        alike = f"Jaccard {clusters.similarity[index]:.2f}"
        why = {"detail": f"nearly the same ({alike}) as {spool.source(twin)}"}
    elif fate == SAMPLED_OUT:
        why = {"detail": "left out so that its source or its domain doesn't outweigh the others"}
    else:
        why = describe(index)
    file, _, number = source_of(line).rpartition(":")  # FILE:LINE or FILE:LINE#PART
    return reject_entry(file, int(number.partition("#")[0]), None, *FATES[fate], "", shortened(line)) | why


def write_clusters(spool: Spool, clusters: Clusters, path: Path) -> None:
    """Write a line per cluster of duplicates: the sources of its rows, the best one, exact copies, the
    smallest similarity to the best.
    """
    members = np.argsort(clusters.cluster, kind="stable")
    members = members[sizes(clusters.cluster[members]) > 1]
    exact = clusters.exact
    with path.open("wb", buffering=1 << 20) as file:
        for rows in pieces(members, clusters.cluster[members]):
            entry = {
                "rows": [spool.source(row) for row in rows.tolist()],
                "best": spool.source(int(rows[clusters.keep[rows]][0])),
                "exact": int(exact[rows].sum()),
                "similarity": round(float(clusters.similarity[rows].min()), 4),
            }
            file.write(dump_line(entry))


def shortened(line: bytes) -> str:
    """A clean row as text, at most `TEXT_SHOWN` characters."""
    text = line.decode().rstrip("\n")
    return text if len(text) <= TEXT_SHOWN else f"{text[:TEXT_SHOWN]}… ({len(line)} bytes)"
