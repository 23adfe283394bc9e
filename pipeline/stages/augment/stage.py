"""Write additional training rows with a model: reworded questions, flawed answers as `rejected`, answers to
prompts that have none. Off by default (`augment.kinds`).

Reads `data/final/` (texts are written to training rows, or to rows of val for monitoring, so nothing crosses
the split), `data/guard/`, `data/evaluation/` (scorers), `models/base/` and the writing model. Writes
`data/augmented/KIND-{train,val}.jsonl`, which stage preprocess adds to the rows of each split, and
`reports/augment/KIND.json`, `KIND.dropped.jsonl` and `KIND.html`. Texts are kept in
`models/.augment/KIND/journal.jsonl`, so a killed run continues.
Command: `python -m pipeline augment@rejected`
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from pipeline.config.params import Params
from pipeline.config.sections import Augment, AugmentKind
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.jsonl import write_rows
from pipeline.core.locks import absent
from pipeline.core.places import scratch
from pipeline.core.publish import write_json, write_text
from pipeline.core.text import most, plural, words
from pipeline.stages.augment.filters import REASONS, RIGHT, found_right, problem_of, same_words, written_text
from pipeline.stages.augment.instructions import (
    TEXTS,
    Call,
    asked_turns,
    calls_of,
    request_bytes,
    right_answer,
)
from pipeline.stages.augment.journal import Journal, Text
from pipeline.stages.augment.overlap import SPLITS, shared
from pipeline.stages.augment.page import render
from pipeline.stages.augment.rows import Curated, curated, figures_of, origin, raw_row
from pipeline.stages.augment.writers import ROOM, addressed, identity, key_of, served

FOLDER = scratch("augment")
LETTERS_PER_TOKEN = 2  # bytes of text; low on purpose, so that the budget is not exceeded
EXAMPLES = 6  # rows, and dropped texts, on the page
NOTHING = {
    "questions": "no row of {file} has a question of the user's before its answer",
    "rejected": "no chat of {file} ends in an answer in words, and no prompt there has one",
    "answers": 'no row of {file} is a prompt with an empty answer ({{"prompt": "…", "answer": ""}})',
}


@dataclass
class Sorted:
    """Calls with their texts: those that became rows so far, and the dropped ones with a reason."""

    kept: list[tuple[Call, Text]] = field(default_factory=list)
    dropped: list[tuple[Call, Text, str]] = field(default_factory=list)

    def drop(self, reasons: Mapping[int, str]) -> None:
        """Move the texts at these places of `kept` to `dropped`."""
        self.dropped += [(*self.kept[place], reason) for place, reason in sorted(reasons.items())]
        self.kept = [pair for place, pair in enumerate(self.kept) if place not in reasons]


def main(params: Params, root: Path, item: str) -> None:
    """Run the stage for one kind on the files below `root`."""
    settings = params.augment
    kind = checked_kind(settings, item)
    final = root / "data/final"
    project = root.resolve() / FOLDER / kind
    for split in SPLITS:
        if not (final / f"{split}.jsonl").is_file():
            raise absent(final / f"{split}.jsonl", root)
    calls = calls_of(kind, settings, final)
    if not any(call.split == "train" for call in calls):
        why = NOTHING[kind].format(file=final / "train.jsonl")
        raise DataError(
            "Q-AUGMENT-007", f"{why}, so nothing can be written: leave {kind} out of augment.kinds"
        )
    writer = identity(settings, root)
    if settings.url:
        key_of(settings)
    journal = Journal(project / "journal.jsonl", writer)
    check_budget(settings, calls, journal, kind)
    asking = addressed(settings) if settings.url else served(params, root)
    journal.fill(calls, asking, settings.parallel, settings.max_tokens)
    sorted_texts = sort(kind, calls, journal, params, root)
    if not sorted_texts.kept:
        raise nothing_left(kind, counts_of(sorted_texts, ()))
    kept = sorted_texts.kept
    origins = [(call.split, origin(call, text, writer, settings.temperature)) for call, text in kept]
    result = curated(project, params, root, [raw_row(kind, *pair) for pair in kept], origins)
    dropped = counts_of(sorted_texts, result.rejected)
    if not result.rows["train"]:
        raise nothing_left(kind, dropped)
    report = {
        "kind": kind,
        "writer": writer,
        "temperature": settings.temperature,
        "seed": settings.seed,
        "max_new_tokens": settings.max_new_tokens,
        "asked": len({call.row["id"] for call in calls}),
        "texts": len(calls),
        "tokens": journal.tokens(calls),
        "rows": {split: len(rows) for split, rows in result.rows.items()},
        "dropped": dropped,
        "reasons": REASONS,
        "changed": figures_of(project),
        "scorer": params.evaluate.scorer if kind == "rejected" else None,
        "prompts": {name: TEXTS[name] for name in sorted({call.instruction for call in calls})},
    }
    publish(root, kind, result, sorted_texts, report)
    print(f"augment: {sentence(report)}; look at {root / f'reports/augment/{kind}.html'}")


def checked_kind(settings: Augment, item: str) -> AugmentKind:
    """Return the kind of a job. Raises `ConfigError` if the settings don't contain it."""
    for kind in settings.kinds:
        if kind == item:
            return kind
    raise ConfigError(
        "Q-AUGMENT-008",
        f"{item} is not in augment.kinds ({', '.join(settings.kinds) or 'empty'}): add it there, one of "
        f"{', '.join(get_args(AugmentKind))}",
    )


def check_budget(settings: Augment, calls: Sequence[Call], journal: Journal, kind: str) -> None:
    """Print how much will be requested. Raises `ConfigError` if that is above the budget of the settings."""
    missing = journal.missing(calls)
    tokens = sum(
        size // LETTERS_PER_TOKEN + ROOM + settings.max_new_tokens for size in request_bytes(missing)
    )
    kept = ""
    if len(missing) < len(calls):
        kept = f", {len(calls) - len(missing):,} more are kept from before"
    amount = f"{kind}: {plural(len(missing), 'call')} and at most some {tokens:,} tokens"
    print(
        f"augment: {amount}{kept} (augment.max_calls {settings.max_calls:,}, max_tokens "
        f"{settings.max_tokens:,})",
        flush=True,
    )
    if len(missing) > settings.max_calls or tokens > settings.max_tokens:
        raise ConfigError(
            "Q-AUGMENT-009",
            f"{amount} are above augment.max_calls ({settings.max_calls:,}) or augment.max_tokens "
            f"({settings.max_tokens:,}), and nothing was asked: raise these, or set a smaller augment.rows, "
            "per_row or max_new_tokens",
        )


def sort(kind: AugmentKind, calls: Sequence[Call], journal: Journal, params: Params, root: Path) -> Sorted:
    """Return the texts that can become rows, and the dropped ones, each with its reason."""
    result = Sorted([(call, journal[call]) for call in calls])
    reasons = {}
    for place, (call, text) in enumerate(result.kept):
        reason = problem_of(kind, call, text)
        if reason:
            reasons[place] = reason
    result.drop(reasons | repeated(result.kept, reasons))
    if kind == "rejected":
        texts = [written_text(text) for _, text in result.kept]
        points = found_right([call for call, _ in result.kept], texts, params.evaluating, root)
        right = {place for place, score in enumerate(points) if score is not None and score >= RIGHT}
        result.drop(dict.fromkeys(right, "right"))
    written = [written_text(text) for _, text in result.kept]
    result.drop(shared(kind, [call for call, _ in result.kept], written, root / "data/final"))
    return result


def repeated(pairs: Sequence[tuple[Call, Text]], others: Mapping[int, str]) -> dict[int, str]:
    """Return the places, apart from `others`, with a text that was already written to the same row."""
    seen: dict[str, list[str]] = {}
    places: dict[int, str] = {}
    for place, (call, text) in enumerate(pairs):
        if place in others:
            continue
        before = seen.setdefault(call.row["id"], [])
        written = written_text(text)
        if any(same_words(written, other) for other in before):
            places[place] = "same_as_another"
        before.append(written)
    return places


def counts_of(sorted_texts: Sorted, rejected: Sequence[tuple[int, str]]) -> dict[str, int]:
    """Count the dropped texts by reason. Rows that curation rejected count under its own reasons."""
    counts = Counter(reason for _, _, reason in sorted_texts.dropped)
    counts.update(reason for _, reason in rejected)
    return dict(most(counts))


def nothing_left(kind: str, dropped: Mapping[str, int]) -> DataError:
    """Return the error for texts that gave no row at all."""
    return DataError(
        "Q-AUGMENT-010",
        f"no row of kind {kind} came of what the model wrote ({_in_words(dropped)}), so nothing is written: "
        f"take another augment.model, more augment.rows, or leave {kind} out of augment.kinds",
    )


def _in_words(dropped: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} {words(reason)}" for reason, number in most(dropped))


def publish(root: Path, kind: str, result: Curated, sorted_texts: Sorted, report: Mapping[str, Any]) -> None:
    """Write the rows, the dropped texts, the report and its page."""
    for split, rows in result.rows.items():
        write_rows(root / f"data/augmented/{kind}-{split}.jsonl", rows)
    reports = root / "reports/augment"
    dropped = [
        _dropped_entry(call, reason) | {"text": written_text(text)}
        for call, text, reason in sorted_texts.dropped
    ]
    # Their texts are in the rejects of the sub-project's curation, whose rules may be about secrets.
    dropped += [_dropped_entry(sorted_texts.kept[line - 1][0], reason) for line, reason in result.rejected]
    write_rows(reports / f"{kind}.dropped.jsonl", dropped)
    write_json(reports / f"{kind}.json", report)
    lines = {line for line, _ in result.rejected}
    kept = [pair for line, pair in enumerate(sorted_texts.kept, start=1) if line not in lines]
    examples = [example(call, text) for call, text in kept[:EXAMPLES]]
    examples += [example(call, text, reason) for call, text, reason in sorted_texts.dropped[:EXAMPLES]]
    write_text(reports / f"{kind}.html", render(report, examples))


def _dropped_entry(call: Call, reason: str) -> dict[str, Any]:
    return {"of": call.row["id"], "prompt": call.instruction, "number": call.number, "reason": reason}


def example(call: Call, text: Text, reason: str | None = None) -> dict[str, Any]:
    """Return a text next to its row, for the page."""
    before = "\n\n".join(turn["content"] for turn in asked_turns(call.row) if turn["role"] == "user")
    if call.instruction.startswith("rejected"):
        before += f"\n\n→ {right_answer(call.row)}"
    return {
        "of": call.row["id"],
        "prompt": call.instruction,
        "before": before,
        "written": written_text(text),
        "reason": reason,
    }


def sentence(report: Mapping[str, Any]) -> str:
    """Return the outcome in words."""
    rows = report["rows"]
    watched = f" and {rows['val']:,} for watching it" if rows.get("val") else ""
    dropped = f", dropped: {_in_words(report['dropped'])}" if report["dropped"] else ""
    return f"{plural(rows['train'], 'row')} of kind {report['kind']} for training{watched}{dropped}"
