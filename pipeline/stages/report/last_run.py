"""What changed since the last run: settings, figures, and scores on the same rows.

The report keeps a short record of each run in `.quench/report-runs.jsonl`, the newest last. Like the usage of
stages it belongs to this machine's folder and is no output of the stage. Making the report of the same run
again compares it with the same earlier one, so that the page has the same bytes.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline.config.params import Params
from pipeline.config.products import is_base
from pipeline.core.changed_values import changed_values, flat
from pipeline.core.errors import QuenchError
from pipeline.core.hashing import json_hash
from pipeline.core.publish import write_text
from pipeline.gate.inputs import Inputs
from pipeline.gate.verdict import Judgment
from pipeline.pages.formats import MISSING, number, percent, points, signed, size
from pipeline.stages.report.comparisons import Comparison, compare

FILE = Path(".quench/report-runs.jsonl")
KEPT = 20  # runs in the file
OF_THE_MACHINE = ("machine",)  # sections whose keys say nothing about a run
LONGEST = 60  # letters of a setting's value


class ModelRecord(BaseModel):
    """Figures of one model. `scores` are those of the rows, in order; None is a row without one."""

    model_config = ConfigDict(frozen=True)

    score: float | None
    stopped: float | None
    kld: float | None
    bytes: int
    gate: str | None
    scores: list[float | None]


class RunRecord(BaseModel):
    """One run: when its report was made, its settings by dotted key, its figures. `rows` is the hash of the
    ids of the held-out rows that were asked.
    """

    model_config = ConfigDict(frozen=True)

    at: str
    settings: dict[str, Any]
    recommended: str | None
    rows: str
    rows_trained: int
    steps: int
    loss: float | None
    eval_loss: float | None
    models: dict[str, ModelRecord]

    def is_same_run(self, other: "RunRecord") -> bool:
        """Return True if both differ in nothing but when their reports were made."""
        return self.model_copy(update={"at": ""}) == other.model_copy(update={"at": ""})


@dataclass(frozen=True)
class Change:
    """One line of the page: what changed, from what, to what, and a few words on it."""

    what: str
    before: str
    after: str
    words: str = ""


@dataclass(frozen=True)
class SinceLastRun:
    """The earlier run's time, and what is different now: settings, then figures."""

    at: str
    settings: Sequence[Change]
    figures: Sequence[Change]


def record_of(
    params: Params, inputs: Inputs, recommended: str | None, verdicts: Mapping[str, Judgment]
) -> RunRecord:
    """Return the record of the present run."""
    first = next(iter(inputs.answers.values()), [])
    return RunRecord(
        at=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        settings=flat(params.model_dump(mode="json", exclude=set(OF_THE_MACHINE))),
        recommended=recommended,
        rows=json_hash([row.id for row in first]),
        rows_trained=inputs.data.splits.get("train", 0),
        steps=inputs.train.steps,
        loss=inputs.train.loss_last,
        eval_loss=inputs.train.eval_loss,
        models={
            model: ModelRecord(
                score=found.score,
                stopped=found.task.stopped if found.task else None,
                kld=found.kld_mean,
                bytes=found.bytes,
                gate=verdicts[model].verdict if model in verdicts else None,
                scores=[row.score for row in inputs.answers.get(model, ())],
            )
            for model, found in inputs.evaluations.items()
        },
    )


def earlier_run(root: Path, present: RunRecord) -> RunRecord | None:
    """Return the newest recorded run that is not the present one; None if there is none."""
    return next((run for run in reversed(_runs(root)) if not run.is_same_run(present)), None)


def keep(root: Path, present: RunRecord) -> None:
    """Put the present run last in the file; what was kept of the same run before is replaced."""
    kept = [run for run in _runs(root) if not run.is_same_run(present)]
    lines = [run.model_dump_json() for run in [*kept[1 - KEPT :], present]]
    with suppress(OSError, QuenchError):  # A finished report must not fail because of its record.
        write_text(root / FILE, "".join(f"{line}\n" for line in lines))


def _runs(root: Path) -> list[RunRecord]:
    try:
        lines = (root / FILE).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    runs = []
    for line in lines:
        with suppress(ValidationError):  # of another version, or cut off
            runs.append(RunRecord.model_validate_json(line))
    return runs


def changes_since(before: RunRecord, now: RunRecord) -> SinceLastRun:
    """Return what is different in the run `now`, compared with the run `before`."""
    changed = sorted(changed_values(before.settings, now.settings), key=lambda value: value.key)
    settings = [Change(value.key, _shown(value.before), _shown(value.after)) for value in changed]
    return SinceLastRun(before.at, settings, [*_run_figures(before, now), *_model_figures(before, now)])


def _run_figures(before: RunRecord, now: RunRecord) -> list[Change]:
    """Return the figures of the run that differ as shown."""
    pairs = [
        ("Recommended", before.recommended or "nothing", now.recommended or "nothing"),
        ("Rows for training", f"{before.rows_trained:,}", f"{now.rows_trained:,}"),
        ("Steps", f"{before.steps:,}", f"{now.steps:,}"),
        ("Loss at the end", number(before.loss, 3), number(now.loss, 3)),
        ("Loss on held-out rows", number(before.eval_loss, 3), number(now.eval_loss, 3)),
    ]
    return [Change(*pair) for pair in pairs if pair[1] != pair[2]]


def _model_figures(before: RunRecord, now: RunRecord) -> list[Change]:
    """Return the figures of models in either run that differ as shown, the tuned ones first."""
    changes = []
    for model in sorted(before.models.keys() | now.models.keys(), key=lambda model: (is_base(model), model)):
        old = before.models.get(model)
        new = now.models.get(model)
        if old is None or new is None:
            changes.append(
                Change(model, MISSING if old is None else "measured", "measured" if new else MISSING)
            )
            continue
        pairs = [
            ("score", points(old.score), points(new.score), _compared(model, before, now)),
            ("answers that end", percent(old.stopped, 0), percent(new.stopped, 0), ""),
            ("KLD on answers", number(old.kld, 4), number(new.kld, 4), ""),
            ("size", size(old.bytes), size(new.bytes), ""),
            ("gate", old.gate or MISSING, new.gate or MISSING, ""),
        ]
        changes += [
            Change(f"{model}: {what}", old_text, new_text, words)
            for what, old_text, new_text, words in pairs
            if old_text != new_text
        ]
    return changes


def _compared(model: str, before: RunRecord, now: RunRecord) -> str:
    """Return the change of a model's score with its interval; that rows differ if they can't be compared."""
    if before.rows != now.rows:
        return "on other rows"
    compared: Comparison | None = compare(
        "before", "now", {"before": before.models[model].scores, "now": now.models[model].scores}
    )
    if compared is None:
        return ""
    return f"{signed(compared.difference.points)} points, {compared.interval}; {compared.words}"


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
