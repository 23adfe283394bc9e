"""Cache of the teacher's answers at every position: the probabilities of its likeliest tokens, and that of
all others together.

Writes `models/checkpoints/teacher/`: per split `SPLIT-ids.npy`, int32 (P, k), and `SPLIT-logs.npy`, float16
(P, k + 1): log-probabilities of these tokens, the likeliest first, and of the rest in the last column.
`teacher.json` contains what all this depends on, and its figures. P counts the positions of the packed rows,
in order, that are followed by a token of the same conversation. That is 6 k + 2 bytes a position.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.core.jsonl import parse_object
from pipeline.core.text import shortened

RECORD = "teacher.json"
FORMAT = 1  # Increase it when the meaning of the files changes.
IDS = np.dtype("<i4")
LOGS = np.dtype("<f2")

Key = dict[str, Any]
Numbers = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Answers:
    """The teacher's answers to one split. Packed row r has positions `starts[r]` to `starts[r + 1]`."""

    starts: Numbers  # (rows + 1,)
    ids: Numbers  # (P, k)
    logs: Numbers  # (P, k + 1)

    def of(self, row: int) -> tuple[Numbers, Numbers]:
        """Return ids (p, k) and log-probabilities (p, k + 1) of a packed row's p positions, as file views."""
        piece = slice(int(self.starts[row]), int(self.starts[row + 1]))
        return self.ids[piece], self.logs[piece]


@dataclass(frozen=True)
class Teacher:
    """Answers to the training and the monitoring rows, and `figures` for the report: file, sha256, top_k,
    positions, covered, bytes.
    """

    train: Answers
    val: Answers
    figures: dict[str, Any]


def key_of(record: dict[str, Any], top_k: int) -> Key:
    """Return what the answers depend on, from the run's record (`train.run.describe`) and `top_k`.

    `top_k` is the number of tokens per position.
    """
    return {
        "format": FORMAT,
        "tokens_sha256": record["tokens_sha256"],
        "file_sha256": record["teacher_sha256"],
        "config_sha256": record["base"]["config_sha256"],
        "compute_dtype": record["settings"]["bnb_4bit_compute_dtype"],
        "top_k": top_k,
    }


def position_counts(seq_lengths: Iterable[list[int]]) -> list[int]:
    """Count, per packed row, the positions before a token of the same conversation: all but each last one."""
    return [sum(max(length - 1, 0) for length in lengths) for lengths in seq_lengths]


def cache_bytes(positions: int, top_k: int) -> int:
    """Return the bytes of the answers at so many positions."""
    return positions * (top_k * IDS.itemsize + (top_k + 1) * LOGS.itemsize)


def write_answers(
    folder: Path, split: str, positions: int, top_k: int, answers: Iterable[tuple[Numbers, Numbers]]
) -> float:
    """Write one split's two files in `folder`, in order: a full disk is an error, unlike in a memory map.

    `answers` yields those at the next positions, (p, k) and (p, k + 1). Return the sum of the probabilities
    of what is not kept. Raises `AssertionError` for more or fewer `positions`.
    """
    left = positions
    rest = 0.0
    with (
        (folder / f"{split}-ids.npy").open("wb") as of_ids,
        (folder / f"{split}-logs.npy").open("wb") as of_logs,
    ):
        for file, kind, width in ((of_ids, IDS, top_k), (of_logs, LOGS, top_k + 1)):
            header = {
                "descr": np.lib.format.dtype_to_descr(kind),
                "fortran_order": False,
                "shape": (positions, width),
            }
            np.lib.format.write_array_header_1_0(file, header)  # type: ignore[no-untyped-call]
        for ids, logs in answers:
            of_ids.write(np.ascontiguousarray(ids, IDS).tobytes())
            of_logs.write(np.ascontiguousarray(logs, LOGS).tobytes())
            left -= len(ids)
            rest += float(np.exp(logs[:, -1].astype(np.float64)).sum())
    if left:
        raise AssertionError(f"{split}: {left} of {positions} positions have no answer")
    return rest


def open_teacher(folder: Path, key: Key, counts: dict[str, list[int]]) -> Teacher | None:
    """Return the answers in `folder`, or None if they are missing, incomplete or belong to another run. The
    reason is printed on stderr.

    `counts` has the positions of each packed row per split.
    """
    if not folder.is_dir():
        return None
    try:
        record = parse_object((folder / RECORD).read_bytes())
        changed = [
            name for name in sorted({*key, *record["key"]}) if key.get(name) != record["key"].get(name)
        ]
        if changed:
            raise ValueError(f"{', '.join(changed)} changed")
        splits = {split: _open(folder, split, counts[split], key["top_k"]) for split in ("train", "val")}
        return Teacher(**splits, figures=dict(record["figures"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(
            f"train: the original's answers in {folder} can't be used "
            f"({shortened(error)}): they are made again",
            file=sys.stderr,
        )
        return None


def _open(folder: Path, split: str, counts: list[int], top_k: int) -> Answers:
    starts = np.cumsum([0, *counts], dtype=np.int64)
    arrays = {}
    for part, kind, width in (("ids", IDS, top_k), ("logs", LOGS, top_k + 1)):
        # Mode "c" because torch wants a writable array. What is written there never reaches the file.
        array = np.load(
            folder / f"{split}-{part}.npy", mmap_mode="c" if starts[-1] else None, allow_pickle=False
        )
        shape = (int(starts[-1]), width)
        if array.shape != shape or array.dtype != kind:
            raise ValueError(f"{split}-{part}.npy is {array.dtype} {array.shape}, not {kind} {shape}")
        arrays[part] = array
    return Answers(starts, **arrays)
