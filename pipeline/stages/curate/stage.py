"""Turn whatever lies in data/raw into a clean, deduplicated, leak-free, redacted training set, and account
for every line.

Reads `data/raw/**`, `data/guard/**` (names to redact, texts to keep out of training), `models/base.json` and
`models/base/` (the tokenizer's control tokens, the template). Writes `data/final/{train,val,test}.jsonl`,
`data/rejects.jsonl`, `data/changes.jsonl`, `data/clusters.jsonl`, `reports/data.json` and
`reports/data.html`.

    python -m pipeline curate
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pipeline.config.methods import kinds_sentences
from pipeline.config.params import Params
from pipeline.config.sections import Curate
from pipeline.core.hardware import usable_cores
from pipeline.core.publish import scratch_folder
from pipeline.core.text import plural, shortened
from pipeline.intake.files.members import NOT_READ, Unread
from pipeline.intake.files.notes import notes_sentences
from pipeline.stages.curate.account import CurationReport
from pipeline.stages.curate.called_tools import calls_sentences
from pipeline.stages.curate.clean import Cleaner
from pipeline.stages.curate.comparing.decide import SPLITS
from pipeline.stages.curate.inputs import cleaner_arguments, held_out_sentences
from pipeline.stages.curate.mapped import columns_sentences, fields_sentences
from pipeline.stages.curate.page_words import (
    answers_sentences,
    length_sentences,
    not_shown_sentences,
    pairs_sentence,
    redaction_sentences,
)
from pipeline.stages.curate.phases.cleaning import clean, make_plan, raw_folder
from pipeline.stages.curate.phases.cluster import cluster
from pipeline.stages.curate.phases.compare import join, sample, sketch
from pipeline.stages.curate.phases.mappings import check_fields
from pipeline.stages.curate.phases.publish import publish, write
from pipeline.stages.curate.phases.unreadable import check_files
from pipeline.stages.curate.workers import workers

ALONE_BYTES = 2 << 20  # Below this many bytes, starting workers takes longer than the work.
DIVIDED = (
    "no document is short enough to be held out whole, so parts of documents are in training, others of the "
    "same in test"
)
FILES_NAMED = 5  # files that the terminal names for one reason why they are not read
REASONS_NAMED = 5
LOUD = 0.2  # Share of the rows; a reason that takes more is said in a sentence of its own.
SHARED = 0.02  # Share of the rows; if more are contaminated, the text that most of them share is said.


def curate(root: Path, settings: Curate, processes: int | None = None) -> CurationReport:
    """Run the stage below `root`, publish its outputs, and return the content of `reports/data.json`.

    Rows are streamed; docs/curation-at-scale.md lists what memory depends on. `processes` is the number of
    workers, by default one a core. The outputs are the same bytes with any number of them. Raises `DataError`
    if no row of a file can be read, no row can be used or a wanted split is empty, `ConfigError` for a glob
    that no file matches and a mapping that fits no row. Nothing is published then.
    """
    with scratch_folder(root / "data/.curating") as work:
        plan = make_plan(root, settings)
        if processes is None:
            processes = usable_cores() or 1 if plan.bytes_read > ALONE_BYTES else 1
        with workers(processes, Cleaner, *cleaner_arguments(root, settings)) as pool:
            stats = clean(root, settings, work, plan, pool)
            check_fields(root, settings, stats)
            check_files(root, settings, work, stats)
            sampled = sample(root, settings, work)
            sketch(settings, work, sampled, pool)
        answers = join(work, sampled)
        decided = cluster(root, settings, work, stats, sampled, answers)
        write(work, decided)
        return publish(root, settings, work, decided)


def file_sentences(count: int, unread: Mapping[str, str], empty: Mapping[str, str]) -> list[str]:
    """Return sentences on which of `count` files are not read, which give no row, and why: one for each
    reason, with the first names.
    """
    sentences = []
    if unread:
        sentences.append(f"{plural(count, 'file')}, of which {plural(len(unread), 'was', 'were')} not read")
    sentences += _by_reason("not read", unread)
    if empty:
        sentences.append(f"{plural(len(empty), 'file gives', 'files give')} no row")
    return sentences + _by_reason("no row", empty)


def _by_reason(what: str, files: Mapping[str, str]) -> list[str]:
    """Return a sentence for each of the first reasons. `files` has the reason of each."""
    reasons: dict[str, list[str]] = {}
    for name, why in files.items():
        reasons.setdefault(why, []).append(name)
    sentences = [f"{what}: {_first(names)}: {why}" for why, names in list(reasons.items())[:REASONS_NAMED]]
    others = sum(len(names) for names in list(reasons.values())[REASONS_NAMED:])
    if others:
        sentences.append(f"{what}: {plural(others, 'more file')}: reports/data.html says why")
    return sentences


def link_sentences(files: Iterable[str], raw: Path) -> list[str]:
    """Return a sentence on the links that lead out of data/raw, if there are any: their targets can change
    without a trace here.
    """
    links = [name for name in files if (raw / name).is_symlink()]
    out = [name for name in links if not (raw / name).resolve().is_relative_to(raw.resolve())]
    if not out:
        return []
    return [f"{plural(len(out), 'file is a link', 'files are links')} out of {raw}: {_first(out)}"]


def _first(names: Sequence[str]) -> str:
    others = f" and {len(names) - FILES_NAMED:,} more" if len(names) > FILES_NAMED else ""
    return ", ".join(names[:FILES_NAMED]) + others


def loud_sentences(report: CurationReport) -> list[str]:
    """Return a warning for each reason that took more than a fifth of the rows, and the text that most
    contaminated rows share, if these are more than a few.
    """
    read = report.rows_read + report.parts_added
    sentences = [
        f"warning: {plural(rows, 'row was', 'rows were')} rejected as {reason}, {rows / read:.0%} of all: "
        f"`quench doctor explain {reason}`"
        for reason, rows in report.rejected.items()
        if rows > LOUD * read and reason != "blank"
    ]
    is_common = report.contamination["rows"] > SHARED * read
    spans = report.contamination.get("spans", []) if is_common else []
    return sentences + [
        f"contaminated: {plural(span['rows'], 'row shares', 'rows share')} {shortened(span['text'])!r}"
        for span in spans
    ]


def main(params: Params, root: Path) -> None:
    """Run the stage below `root`, and print the result."""
    settings = params.curating
    report = curate(root, settings)
    splits = ", ".join(f"{split} {report.splits[split]}" for split in SPLITS)
    lost = report.rows_rejected + report.rows_dropped
    parts = f", {report.parts_added:,} more by splitting" if report.parts_added else ""
    repeated = f", {report.rows_repeated:,} more by repeating" if report.rows_repeated else ""
    print(
        f"curate: {plural(report.rows_read, 'row')} read{parts}{repeated}, {report.rows_kept:,} kept "
        f"({splits}), {lost:,} rejected"
    )
    sentences = [
        *file_sentences(report.files_found, report.files_unread, report.files_without_row or {}),
        *notes_sentences(
            sum((Counter(file["notes"]) for file in report.files.values()), Counter()),
            {
                name: Unread(file["notes"].get(NOT_READ, 0), file.get("members_named", []))
                for name, file in report.files.items()
            },
        ),
        *fields_sentences(report.files, settings),
        *columns_sentences(report.files),
        *held_out_sentences(report.files),
        *link_sentences(report.files, raw_folder(root)),
        *kinds_sentences(report.untrained, report.scored),
        *length_sentences(report.length),
        *(f"warning: {sentence}" for sentence in not_shown_sentences(report)),
        *answers_sentences(report),
        *calls_sentences(report.calls or {}),
        *([DIVIDED] if "documents_divided" in report.groups else []),
        *([pairs_sentence(report.pairs)] if report.pairs else []),
    ]
    for sentence in [*sentences, *redaction_sentences(report), *loud_sentences(report)]:
        print(f"curate: {sentence}")
    if lost or report.files_rejected:
        print(
            f"curate: why, and where: {root / 'data/rejects.jsonl'} (`quench doctor explain REASON` explains "
            "a reason)"
        )
    print(f"curate: the full statistics: {root / 'reports/data.html'}")
