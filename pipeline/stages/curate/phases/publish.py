"""Writing of the clean rows, each to its split or to the rejects; and publishing of the outputs, checked."""

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from pipeline.chat.rows import line_of
from pipeline.config.sections import Curate
from pipeline.core.errors import DataError
from pipeline.core.jsonl import dump_line
from pipeline.core.publish import publishing, write_json, write_text
from pipeline.core.sources import SUFFIX, read_source
from pipeline.core.text import plural
from pipeline.stages.curate.account import CurationReport, check_report
from pipeline.stages.curate.clean import TEXT_SHOWN, Reject, several
from pipeline.stages.curate.comparing.decide import EXACT, KEPT, NEAR, OUTCOMES, SAMPLED_OUT, SPLITS
from pipeline.stages.curate.page import render_data_page
from pipeline.stages.curate.phases.cleaning import CHANGES, CLEANED, REJECTS, ROWS, clean_rows, raw_folder
from pipeline.stages.curate.phases.cluster import CLUSTERS, DECIDED, Decided
from pipeline.stages.curate.samples import first_lines
from pipeline.stages.curate.spool import Rows

WRITTEN = "written"  # the folder of this phase
DROPPED = "dropped.jsonl"


def write(work: Path, decided: Decided) -> None:
    """Write every row, and every pair made of rows, to its split or to the rejects, in the order read."""
    folder = work / WRITTEN
    folder.mkdir()
    rows = Rows([*clean_rows(work).spools, work / DECIDED / ROWS])
    decisions = decided.decisions
    outcomes = decisions["outcome"].tobytes()
    sides = decisions["split"].tobytes()
    is_repeated = (decisions["copies"] > 1).tobytes()
    with ExitStack() as stack:
        *splits, dropped = (
            stack.enter_context((folder / name).open("wb", buffering=1 << 20))
            for name in (*(f"{split}.jsonl" for split in SPLITS), DROPPED)
        )
        spools = (stack.enter_context(path.open("rb", buffering=1 << 20)) for path in rows.spools)
        for index, line in enumerate(chain.from_iterable(spools)):
            if outcomes[index] == KEPT:
                splits[sides[index]].write(line)
                if is_repeated[index]:
                    splits[sides[index]].writelines(repeated(line, int(decisions["copies"][index])))
            else:
                entry = reject(line, decisions[index], rows, decided.leaks.get(index))
                dropped.write(dump_line(entry))


def repeated(line: bytes, copies: int) -> Iterator[bytes]:
    """Yield the second and later copies of a row, each with its number after its source: FILE:LINE*2."""
    row = orjson.loads(line)
    for number in range(2, copies + 1):
        yield dump_line(row | {"source": f"{row['source']}*{number}"})


def reject(line: bytes, decision: np.void, rows: Rows, leak: dict[str, Any] | None) -> dict[str, Any]:
    """Return a line of `data/rejects.jsonl` for a clean row that is not used. `decision` is a `DECISION`."""
    outcome = int(decision["outcome"])
    if outcome == EXACT:
        why = {"detail": f"the same conversation as {rows.source(int(decision['duplicate_of']))}"}
    elif outcome == NEAR:
        alike = f"Jaccard {decision['similarity']:.2f}"
        why = {"detail": f"nearly the same ({alike}) as {rows.source(int(decision['duplicate_of']))}"}
    elif outcome == SAMPLED_OUT:
        why = {"detail": "left out so that its source or its domain doesn't outweigh the others"}
    else:
        assert leak is not None
        why = leak
    source = orjson.loads(line)["source"]
    file, line_number = line_of(source)
    entry = asdict(Reject(file, line_number, None, *OUTCOMES[outcome], "", shortened(line)))
    return entry | why | several(file, line_number, source)


def shortened(line: bytes) -> str:
    """Return a clean row as text, at most `TEXT_SHOWN` characters."""
    text = line.decode().rstrip("\n")
    return text if len(text) <= TEXT_SHOWN else f"{text[:TEXT_SHOWN]}… ({len(line)} bytes)"


def publish(root: Path, settings: Curate, work: Path, decided: Decided) -> CurationReport:
    """Publish the outputs below `root` and return the report.

    Raises `DataError` if no row can be used or a wanted split is empty. Nothing is published then.
    """
    data = root / "data"
    report = replace(decided.report, sources=_sources(raw_folder(root), decided.report) or None)
    samples = decided.samples
    with ExitStack() as stack:
        final, rejects, changes, clusters = (
            stack.enter_context(publishing(data / name))
            for name in ("final", "rejects.jsonl", "changes.jsonl", "clusters.jsonl")
        )
        final.mkdir()
        for split in SPLITS:
            (work / WRITTEN / f"{split}.jsonl").rename(final / f"{split}.jsonl")
        (work / CLEANED / CHANGES).rename(changes)
        (work / DECIDED / CLUSTERS).rename(clusters)
        with rejects.open("wb") as file:
            for part in (work / CLEANED / REJECTS, work / WRITTEN / DROPPED):
                with part.open("rb") as entries:
                    shutil.copyfileobj(entries, file, 1 << 20)
        check_report(report, final, rejects)
        samples["rejects"] = first_lines(rejects, "reason")
        samples["changes"] = first_lines(changes, "rule")
        _check_not_empty(report, samples["rejects"], raw_folder(root), settings)
        page = render_data_page(report, samples)
    write_json(root / "reports/data.json", report.as_dict())
    write_text(root / "reports/data.html", page)
    return report


def _sources(raw: Path, report: CurationReport) -> dict[str, dict[str, Any]]:
    """Return the records of where data comes from, by the name of its folder or file in data/raw."""
    records = {name: read_source(raw / name) for name in report.files if name.endswith(SUFFIX)}
    return {
        name.removesuffix(SUFFIX): {
            "address": record.address,
            "revision": record.revision,
            "config": record.config,
            "split": record.split,
            "license": record.license,
            "files": len(record.files),
            "bytes": record.bytes,
        }
        for name, record in records.items()
        if record
    }


def _check_not_empty(
    report: CurationReport, rejects: Sequence[Mapping[str, Any]], raw: Path, settings: Curate
) -> None:
    """Raise `DataError` without rows to train on, or to evaluate on although `test_fraction` is set.

    `rejects` has the first of each reason.
    """
    kept = report.rows_kept
    splits = report.splits
    if not kept:
        commonest = (Counter(report.rejected) + Counter(report.files_rejected)).most_common(3)
        reasons = ", ".join(f"{count} {code}" for code, count in commonest) or "no line in it"
        first = next((entry for entry in rejects if entry["reason"] == commonest[0][0]), None)
        where = first and f"{first['file']}{' line ' + str(first['line']) if first['line'] else ''}"
        example = f"; first {where}: {first['detail']}" if first else ""
        raise DataError(
            "Q-CURATE-013",
            f"0 of {plural(report.rows_read, 'row')} in {raw} can be used ({reasons}{example}): "
            "docs/data-formats.md shows what is read",
        )
    for split, is_required in (("train", True), ("test", settings.test_fraction > 0)):
        if is_required and not splits[split]:
            lost = report.rows_rejected + report.rows_dropped
            raise DataError(
                "Q-CURATE-014",
                f"of {plural(kept, 'row')} in {raw} none is left for {split} at val_fraction "
                f"{settings.val_fraction} and test_fraction {settings.test_fraction} "
                f"({plural(lost, 'was', 'were')} rejected): add rows, or set curate.test_fraction "
                "to 0 or to more",
            )
