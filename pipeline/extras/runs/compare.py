"""Compare two runs: which settings and data differ, how much the scores do and whether that is noise, which
answers changed.

Scores are compared on the rows that both runs held out, paired, so that a hard row is hard for both. p is
Holm's over the tuned models (`pipeline.metrics.statistics`); the untuned ones are a control.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline.commands.data.diff import Difference as RowDifference
from pipeline.commands.data.diff import compare as compare_rows
from pipeline.config.products import is_base
from pipeline.core.changed_values import ChangedValue, changed_values, flat
from pipeline.core.errors import DataError
from pipeline.extras.runs.read import Run
from pipeline.gate.evaluations import Answer
from pipeline.metrics.statistics import compare_scores, holm
from pipeline.stages.report.calls_section import answer_with_calls
from pipeline.stages.report.comparisons import Comparison

# of reports/data.json: what is compared, the rest follows from rows
COUNTED = ("rows_read", "rows_kept", "rows_rejected", "splits", "rejected")


@dataclass(frozen=True)
class AnswerPair:
    """Both runs' answers to one row."""

    first: Answer
    second: Answer
    scores: tuple[float | None, float | None]

    @property
    def changed(self) -> bool:
        """True if the answers differ in their text or their calls."""
        return answer_with_calls(self.first) != answer_with_calls(self.second)

    @property
    def moved(self) -> float:
        """Second score minus first; 0 if one has none."""
        before, after = self.scores
        return 0.0 if before is None or after is None else after - before


@dataclass(frozen=True)
class ModelChange:
    """One model in both runs: the difference of its scores, or in a sentence why there is none."""

    model: str
    scorer: str
    pairs: Sequence[AnswerPair]  # of the rows that both runs asked
    alone: tuple[int, int]  # rows that only one run asked
    comparison: Comparison | None
    why_not: str = ""

    @property
    def means(self) -> tuple[float, float] | None:
        """Both mean scores, of 1, on the rows that are compared."""
        both = [pair.scores for pair in self.pairs if None not in pair.scores]
        if not both:
            return None
        return sum(one[0] or 0.0 for one in both) / len(both), sum(one[1] or 0.0 for one in both) / len(both)

    @property
    def better(self) -> int:
        """Number of rows that score higher in the second run."""
        return sum(pair.moved > 0 for pair in self.pairs)

    @property
    def worse(self) -> int:
        """Number of rows that score lower in the second run."""
        return sum(pair.moved < 0 for pair in self.pairs)

    @property
    def changed(self) -> list[AnswerPair]:
        """Pairs whose answers differ, those whose scores differ most first."""
        return sorted((pair for pair in self.pairs if pair.changed), key=lambda pair: -abs(pair.moved))


@dataclass(frozen=True)
class RunComparison:
    """Everything that two runs differ in."""

    first: str
    second: str
    settings: list[ChangedValue]
    data: list[ChangedValue]
    rows: RowDifference | None  # None if a run's rows are not here
    figures: list[ChangedValue]
    models: list[ModelChange]
    only: tuple[list[str], list[str]]  # models of one run alone
    notes: list[str]


def compare_runs(first: Run, second: Run) -> RunComparison:
    """Compare two runs."""
    notes = [*first.lacks, *second.lacks]
    try:
        rows = compare_rows(first.version, second.version)
    except DataError as error:
        rows = None
        notes.append(f"rows of data/final are not compared: {error}")
    models = [model for model in first.evaluations if model in second.evaluations]
    return RunComparison(
        first.name,
        second.name,
        changed_values(first.settings, second.settings),
        changed_values(_counted(first.data), _counted(second.data)),
        rows,
        changed_values(first.figures, second.figures),
        _corrected([compare_model(model, first, second) for model in models]),
        (
            [model for model in first.evaluations if model not in models],
            [model for model in second.evaluations if model not in models],
        ),
        notes,
    )


def _counted(data: Mapping[str, Any]) -> dict[str, Any]:
    return flat({key: data[key] for key in COUNTED if key in data})


def compare_model(model: str, first: Run, second: Run) -> ModelChange:
    """Compare one model of both runs on the rows that both asked: the same id, request and reference."""
    old = {row.id: row for row in first.answers[model]}
    new = {row.id: row for row in second.answers[model]}
    same = [id for id, row in old.items() if id in new and _asked(row) == _asked(new[id])]
    alone = (len(old) - len(same), len(new) - len(same))
    scorer = _scorer(model, first, second)
    pairs = [
        AnswerPair(old[id], new[id], (_score(old[id], scorer, first), _score(new[id], scorer, second)))
        for id in same
    ]
    scored = [pair.scores for pair in pairs if None not in pair.scores]
    if not same:
        why_not = "no held-out row is in both runs"
    elif not scorer:
        why_not = "the runs have no scorer in common (evaluate.scorers)"
    elif not scored:
        why_not = "no row has a score in both runs"
    else:
        before = [one[0] or 0.0 for one in scored]
        after = [one[1] or 0.0 for one in scored]
        named = Comparison(
            first.name, f"{model} of {second.name}", len(scored), compare_scores(before, after)
        )
        return ModelChange(model, scorer, pairs, alone, named)
    return ModelChange(model, scorer, pairs, alone, None, why_not)


def _asked(row: Answer) -> tuple[Any, ...]:
    return row.prompt, row.reference, row.other_references, row.expected_calls


def _scorer(model: str, first: Run, second: Run) -> str:
    """Return the scorer by which both runs' answers can be compared; "" if there is none.

    It is the one that decides in the first run, otherwise in the second, otherwise the first that both have.
    """
    used = [run.evaluations[model].task for run in (first, second)]
    names = [list(dict.fromkeys([task.scorer, *(task.scores or {})])) if task else [] for task in used]
    common = [name for name in names[0] if name in names[1]]
    preferred = [task.scorer for task in used if task and task.scorer in common]
    return next(iter([*preferred, *common]), "")


def _score(row: Answer, scorer: str, run: Run) -> float | None:
    """Return the points that `scorer` gave an answer."""
    if scorer in row.scores:
        return row.scores[scorer]
    decides = {evaluation.task.scorer for evaluation in run.evaluations.values() if evaluation.task}
    return row.score if decides == {scorer} else None


def _corrected(models: Sequence[ModelChange]) -> list[ModelChange]:
    """Return the models, the tuned ones with p-values by Holm's correction for all of them."""
    tested = {
        model.model: model.comparison.difference.p_value
        for model in models
        if model.comparison and not is_base(model.model)
    }
    adjusted = dict(zip(tested, holm(list(tested.values())), strict=True))
    return [
        _with_p_value(model, adjusted[model.model]) if model.model in adjusted else model for model in models
    ]


def _with_p_value(model: ModelChange, p_value: float) -> ModelChange:
    assert model.comparison
    difference = replace(model.comparison.difference, p_value=p_value)
    return replace(model, comparison=replace(model.comparison, difference=difference))
