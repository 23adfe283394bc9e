"""The clean rows of a shard, each to its split or to the rejects, with the clusters that begin there; and the
outputs of all shards, put together in their order, checked and published.
"""

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np
import orjson
from numpy.typing import NDArray

from pipeline.config.sections import Curate
from pipeline.core.errors import DataError
from pipeline.core.jsonl import dump_line
from pipeline.core.publish import publishing, write_json, write_text
from pipeline.core.text import plural
from pipeline.stages.curate.account import check_stats
from pipeline.stages.curate.clean import TEXT_SHOWN, Reject, file_entry, keep_sample
from pipeline.stages.curate.comparing.decide import EXACT, FATES, KEPT, NEAR, SAMPLED_OUT, SPLITS
from pipeline.stages.curate.comparing.spill import pieces
from pipeline.stages.curate.page import render_data_page
from pipeline.stages.curate.phases.cleaning import CHANGES, REJECTS, Plan, raw_folder
from pipeline.stages.curate.phases.cluster import CLUSTERED, COUNTS, DECIDED, LEAKS, MEMBERS, NAMES
from pipeline.stages.curate.phases.cluster import SAMPLES as PAGE_SAMPLES
from pipeline.stages.curate.phases.work import ROWS, Work, dump, load
from pipeline.stages.curate.spool import Rows, source_of

DROPPED, CLUSTERS, SAMPLES = "dropped.jsonl", "clusters.jsonl", "samples.json"


@dataclass(frozen=True)
class Decided:
    """What `cluster` decided: arrays with an entry per row, which stay on disk, and of the shard's
    contaminated rows what the rejects say.
    """

    rows: Rows
    fate: NDArray[np.uint8]
    split: NDArray[np.uint8]
    twin: NDArray[np.int32]
    first: NDArray[np.int32]
    keep: NDArray[np.bool_]
    similarity: NDArray[np.float32]
    leaks: dict[int, dict[str, Any]]


def write(work: Work, shard: int) -> None:
    """Write what becomes of the rows of this shard (from 0), the last one's with the pairs made of all."""
    folder = work.made("cluster")
    rows = Rows([*work.rows().spools, folder / ROWS])
    last = shard == work.shards - 1
    begin, end = rows.bases[shard], rows.bases[shard + (2 if last else 1)]
    arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in (*DECIDED, *CLUSTERED)}
    decided = Decided(rows, **arrays, leaks=_leaks(folder, begin, end))
    with work.making("write", shard) as target:
        shown: dict[str, list[dict[str, Any]]] = {}
        with ExitStack() as stack:
            splits = [
                stack.enter_context((target / f"{split}.jsonl").open("wb", buffering=1 << 20))
                for split in SPLITS
            ]
            dropped = stack.enter_context((target / DROPPED).open("wb", buffering=1 << 20))
            _write_rows(decided, range(shard, shard + (2 if last else 1)), splits, dropped, shown)
        dump(target / SAMPLES, shown)
        members, names = (np.load(folder / name, mmap_mode="r") for name in (MEMBERS, NAMES))
        mine = slice(*np.searchsorted(names, [begin, end]))
        _write_clusters(decided, members[mine], names[mine], target / CLUSTERS)


def _leaks(folder: Path, begin: int, end: int) -> dict[int, dict[str, Any]]:
    with (folder / LEAKS).open("rb") as lines:
        found = ((entry.pop("row"), entry) for entry in map(orjson.loads, lines))
        return {row: entry for row, entry in found if begin <= row < end}


def _write_rows(
    decided: Decided,
    spools: range,
    splits: list[Any],
    dropped: IO[bytes],
    shown: dict[str, list[dict[str, Any]]],
) -> None:
    """Every row to its split or to `dropped`, in the order read; `shown` gets the first of every reason."""
    for spool in spools:
        begin, end = decided.rows.bases[spool : spool + 2]
        fates, sides = decided.fate[begin:end].tobytes(), decided.split[begin:end].tobytes()
        for at, line in enumerate(decided.rows.lines(spool)):
            if fates[at] == KEPT:
                splits[sides[at]].write(line)
                continue
            entry = reject(decided, begin + at, line)
            dropped.write(dump_line(entry))
            keep_sample(shown, entry["reason"], entry)


def reject(decided: Decided, index: int, line: bytes) -> dict[str, Any]:
    """A line of `data/rejects.jsonl` for a row that was clean, but is not used."""
    fate, twin = int(decided.fate[index]), int(decided.twin[index])
    if fate == EXACT:
        why = {"detail": f"the same conversation as {decided.rows.source(twin)}"}
    elif fate == NEAR:
        alike = f"Jaccard {decided.similarity[index]:.2f}"
        why = {"detail": f"nearly the same ({alike}) as {decided.rows.source(twin)}"}
    elif fate == SAMPLED_OUT:
        why = {"detail": "left out so that its source or its domain doesn't outweigh the others"}
    else:
        why = decided.leaks[index]
    file, _, number = source_of(line).rpartition(":")  # FILE:LINE or FILE:LINE#PART
    line_number = int(number.partition("#")[0])
    return asdict(Reject(file, line_number, None, *FATES[fate], "", shortened(line))) | why


def _write_clusters(
    decided: Decided, members: NDArray[np.int32], names: NDArray[np.int32], path: Path
) -> None:
    """Write a line per cluster of duplicates: the sources of its rows, the best one, exact copies, the
    smallest similarity to the best. `names` has for each of `members` its cluster, whose rows are neighbors.
    """
    with path.open("wb", buffering=1 << 20) as file:
        for rows in pieces(np.asarray(members), np.asarray(names)):
            numbers = rows.tolist()
            best = int(rows[decided.keep[rows]][0])
            entry = {
                "rows": [decided.rows.source(row) for row in numbers],
                "best": decided.rows.source(best),
                "exact": int((decided.first[rows] != rows).sum()),
                "similarity": round(float(decided.similarity[rows].min()), 4),
            }
            file.write(dump_line(entry))


def shortened(line: bytes) -> str:
    """A clean row as text, at most `TEXT_SHOWN` characters."""
    text = line.decode().rstrip("\n")
    return text if len(text) <= TEXT_SHOWN else f"{text[:TEXT_SHOWN]}… ({len(line)} bytes)"


def publish(root: Path, settings: Curate, work: Work, plan: Plan) -> dict[str, Any]:
    """Publish the outputs below `root` and give the statistics (what `reports/data.json` holds). Raises
    `DataError` if no row can be used or a wanted split is empty; then nothing is published.
    """
    cleaned, written, data = work.each("clean"), work.each("write"), root / "data"
    counts: dict[str, Any] = load(work.made("cluster") / COUNTS)
    samples: dict[str, Any] = load(work.made("cluster") / PAGE_SAMPLES)
    with ExitStack() as stack:
        final, rejects, changes, clusters = (
            stack.enter_context(publishing(data / name))
            for name in ("final", "rejects.jsonl", "changes.jsonl", "clusters.jsonl")
        )
        final.mkdir()
        for split in SPLITS:
            parts = [folder / f"{split}.jsonl" for folder in written]
            if work.key:
                _join(parts, final / f"{split}.jsonl")
            else:  # one process, one shard, and nobody else needs the file
                parts[0].rename(final / f"{split}.jsonl")
        refused = b"".join(dump_line(file_entry(name, why)) for name, why in plan.refused.items())
        dropped = [folder / DROPPED for folder in written]
        _join([*(folder / REJECTS for folder in cleaned), *dropped], rejects, refused)
        _join([folder / CHANGES for folder in cleaned], changes)
        _join([folder / CLUSTERS for folder in written], clusters)
        check_stats(counts, final, rejects)
        _check_not_empty(counts, samples.pop("all_rejects"), raw_folder(root), settings)
        samples["rejects"] += _dropped_samples(written)
        page = render_data_page(counts, samples)
    write_json(root / "reports/data.json", counts)
    write_text(root / "reports/data.html", page)
    return counts


def _check_not_empty(
    counts: Mapping[str, Any], samples: Mapping[str, list[dict[str, Any]]], raw: Path, settings: Curate
) -> None:
    """Raise `DataError` if there is nothing to train on, or nothing to measure on though `test_fraction` asks
    for it.

    `samples` has rejects under "reject REASON".
    """
    kept, splits = counts["rows_kept"], counts["splits"]
    if not kept:
        commonest = (Counter(counts["rejected"]) + Counter(counts["files_rejected"])).most_common(3)
        reasons = ", ".join(f"{count} {code}" for code, count in commonest) or "no line in it"
        first = next(iter(samples.get(f"reject {commonest[0][0]}", [])), None) if commonest else None
        where = first and f"{first['file']}{' line ' + str(first['line']) if first['line'] else ''}"
        example = f"; first {where}: {first['detail']}" if first else ""
        raise DataError(
            "Q-CURATE-013",
            f"0 of {plural(counts['rows_read'], 'row')} in {raw} can be used ({reasons}{example}): "
            "docs/data-formats.md shows what is read",
        )
    for split, wanted in (("train", True), ("test", settings.test_fraction > 0)):
        if wanted and not splits[split]:
            lost = counts["rows_rejected"] + counts["rows_dropped"]
            raise DataError(
                "Q-CURATE-014",
                f"of {plural(kept, 'row')} in {raw} none is left for {split} at val_fraction "
                f"{settings.val_fraction} and test_fraction {settings.test_fraction} "
                f"({plural(lost, 'was', 'were')} rejected): add rows or change these fractions",
            )


def _join(parts: Sequence[Path], target: Path, head: bytes = b"") -> None:
    """Write `head` and the parts, one after the other."""
    with target.open("wb") as whole:
        whole.write(head)
        for path in parts:
            with path.open("rb") as part:
                shutil.copyfileobj(part, whole, 1 << 20)


def _dropped_samples(written: Sequence[Path]) -> list[dict[str, Any]]:
    """The first few rejects of every reason, of all shards."""
    shown: dict[str, list[dict[str, Any]]] = {}
    for folder in written:
        for reason, entries in load(folder / SAMPLES).items():
            for entry in entries:
                keep_sample(shown, reason, entry)
    return list(chain.from_iterable(shown.values()))
