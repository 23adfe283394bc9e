"""Whether the statistics add up, and whether anything is left to train and to measure on."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.config.sections import Curate
from pipeline.core.errors import DataError
from pipeline.core.text import plural
from pipeline.stages.curate.comparing.splits import SPLITS


def check_stats(counts: Mapping[str, Any], folder: Path, rejects: Path) -> None:
    """Compare the counts with each other and with the files written; a difference is a bug of ours."""
    written = {split: count_lines(folder / f"{split}.jsonl") for split in SPLITS}
    pairs = counts.get("pairs") or {"made": 0, "rows": {}, "splits": {}, "scored_rows": 0}
    entries = counts["rows_rejected"] + counts["rows_dropped"] + sum(counts["files_rejected"].values())
    balanced = (
        counts["rows_read"] == counts["rows_accepted"] + counts["rows_rejected"]
        and counts["rows_accepted"] + counts["parts_added"] + pairs["made"]
        == counts["rows_kept"] + counts["rows_dropped"]
        and sum(pairs["rows"].values()) == pairs["scored_rows"]
        and pairs["rows"].get("paired", 0) == 2 * pairs["made"] == 2 * sum(pairs["splits"].values())
        and counts["rules"][-1]["rows_out"] == counts["rows_kept"]
        and sum(counts["rejected"].values()) == counts["rows_rejected"] + counts["rows_dropped"]
        and sum(file["rows"] for file in counts["files"].values()) == counts["rows_read"]
        and all(file["rows"] == file["kept"] + file["rejected"] for file in counts["files"].values())
        and counts["files_found"] == len(counts["files"]) + len(counts["files_unread"])
        and sum(counts["files_rejected"].values()) == len(counts["files_unread"])
    )
    if not balanced or written != counts["splits"] or count_lines(rejects) != entries:
        raise RuntimeError(
            f"curate's statistics do not balance: {counts}, written {written} and {count_lines(rejects)} "
            "rejects"
        )


def count_lines(path: Path) -> int:
    """Newline bytes in a file."""
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))


def check_not_empty(
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
