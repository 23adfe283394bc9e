"""Show what two runs differ in: tables on the terminal, the page `reports/runs.html`, JSON."""

from collections.abc import Iterator, Sequence
from typing import Any

from pipeline.commands.terminal import plain_table, wide_console
from pipeline.config.products import is_base
from pipeline.core.changed_values import ChangedValue
from pipeline.core.text import one_line, plural
from pipeline.extras.runs.compare import AnswerPair, ModelChange, RunComparison
from pipeline.metrics.tool_calls import answer_text
from pipeline.pages.differences import clipped
from pipeline.pages.formats import MISSING, points, probability, signed, significant
from pipeline.pages.templating import fill
from pipeline.stages.report.calls_section import answer_with_calls
from pipeline.stages.report.comparisons import differences_plot

SHOWN = 12  # changed answers of a model on the page
LINES = 12  # lines of a table on the terminal
LONGEST = 1500  # characters of a prompt or a reference on the page


def print_comparison(found: RunComparison) -> None:
    """Print the tables."""
    console = wide_console()
    for title, changes in (("setting", found.settings), ("data", found.data), ("figure", found.figures)):
        if changes:
            console.print(_changes_table(title, changes, found))
        if len(changes) > LINES:
            console.print(f"… and {len(changes) - LINES} more", markup=False)
    for line in _lines(found):
        console.print(line, markup=False)
    names = [one_line(name, 16) for name in (found.first, found.second)]
    columns = (*names, "difference", "95 %", "p", "rows", "+", "−")
    table = plain_table("model", *columns, numbers=range(1, 9))
    for model in found.models:
        table.add_row(*_cells(model))
    console.print(table)
    for line in sentences(found):
        console.print(line, markup=False)
    for note in found.notes:
        console.print(f"Beware: {note}", markup=False)


def _changes_table(title: str, changes: Sequence[ChangedValue], found: RunComparison) -> Any:
    from rich.markup import escape

    names = (escape(one_line(found.first, 24)), escape(one_line(found.second, 24)))
    table = plain_table(title, *names, "change", numbers=[3])
    for change in changes[:LINES]:
        table.add_row(
            escape(change.key),
            escape(shown(change.before)),
            escape(shown(change.after)),
            change_text(change),
        )
    return table


def _lines(found: RunComparison) -> Iterator[str]:
    if not found.settings:
        yield "No setting differs."
    if found.rows:
        yield rows_sentence(found)
    for name, models in zip((found.first, found.second), found.only, strict=True):
        if models:
            yield f"Only {name} has {', '.join(models)}."


def rows_sentence(found: RunComparison) -> str:
    """Return in a sentence how the rows of data/final differ; "" if they are not here."""
    rows = found.rows
    if rows is None:
        return ""
    counts = {
        "added": len(rows.added),
        "removed": len(rows.removed),
        "changed": len(rows.changed),
        "in another split": len(rows.moved),
    }
    named = [f"{number:,} {what}" for what, number in counts.items() if number]
    return f"Rows of data/final: {', '.join(named) or 'none differs'} ({rows.same:,} the same)."


def _cells(model: ModelChange) -> list[str]:
    means = model.means
    if model.comparison is None or means is None:
        return [model.model, *[MISSING] * 5, str(len(model.pairs)), MISSING, MISSING]
    difference = model.comparison.difference
    return [
        model.model,
        points(means[0]),
        points(means[1]),
        signed(difference.points),
        model.comparison.interval,
        probability(difference.p_value),
        str(model.comparison.rows),
        str(model.better),
        str(model.worse),
    ]


def sentences(found: RunComparison) -> list[str]:
    """Return what became of each model in a sentence; those whose answers are all the same share one."""
    same = [
        model.model
        for model in found.models
        if model.comparison and not model.changed and not any(model.alone)
    ]
    told = [sentence(model) for model in found.models if model.model not in same]
    return [*told, *([f"Every answer is the same: {', '.join(same)}."] if same else [])]


def sentence(model: ModelChange) -> str:
    """Return what became of one model in a sentence."""
    left_out = f"; {plural(sum(model.alone), 'row')} of one run alone left out" if any(model.alone) else ""
    answers = f"{len(model.changed)} of {plural(len(model.pairs), 'answer')} changed{left_out}."
    if model.comparison is None:
        return f"{model.model}: not compared, {model.why_not}. {answers}"
    return f"{model.model}: {model.comparison.words} by {model.scorer}. {answers}"


def shown(value: Any) -> str:
    """Return a value in a few characters; a dash for none."""
    if value is None:
        return MISSING
    if isinstance(value, float):
        return f"{value:g}"
    return one_line(str(value), 40)


def change_text(change: ChangedValue) -> str:
    """Return the difference of two numbers with its sign; "" for anything else."""
    difference = change.difference
    if difference is None:
        return ""
    return f"{'+' if difference > 0 else '−'}{significant(abs(difference))}"


def verdict(found: RunComparison) -> str:
    """Return what became of the tuned models in a sentence."""
    told = [model for model in found.models if model.comparison and not is_base(model.model)]
    by_verdict = {
        what: [model.model for model in told if model.comparison and model.comparison.verdict == what]
        for what in ("better", "worse", "noise")
    }
    words = {
        "better": "better, more than noise",
        "worse": "worse, more than noise",
        "noise": "within the noise",
    }
    parts = [f"{words[what]}: {', '.join(models)}" for what, models in by_verdict.items() if models]
    if not parts:
        return "No tuned model could be compared."
    return f"{found.second} against {found.first}: {'; '.join(parts)}."


def render(found: RunComparison) -> str:
    """Return the page as HTML."""
    drawn = [model.comparison for model in found.models if model.comparison]
    return fill(
        "runs.html.jinja",
        found=found,
        verdict=verdict(found),
        rows_sentence=rows_sentence(found),
        plot=differences_plot(drawn, "runs-drawn", "Scores of the second run less those of the first"),
        cells=[_cells(model) for model in found.models],
        sentences=sentences(found),
        models=[
            {
                "name": model.model,
                "changed": len(model.changed),
                "rows": list(map(_row, model.changed[:SHOWN])),
            }
            for model in sorted(found.models, key=lambda model: is_base(model.model))
            if model.changed
        ],
        shown=shown,
        change_text=change_text,
    )


def _row(pair: AnswerPair) -> dict[str, Any]:
    """Return one row of the page."""
    reference = "\nor: ".join(map(str, (pair.first.reference, *(pair.first.other_references or ()))))
    return {
        "id": pair.first.id,
        "prompt": clipped(pair.first.prompt, LONGEST),
        "reference": clipped(answer_text(reference, pair.first.expected_calls), LONGEST),
        "before": answer_with_calls(pair.first),
        "after": answer_with_calls(pair.second),
        "scores": pair.scores,
    }


def as_record(found: RunComparison) -> dict[str, Any]:
    """Return the comparison as JSON."""
    return {
        "first": found.first,
        "second": found.second,
        "settings": _record(found.settings),
        "data": _record(found.data),
        "rows": found.rows
        and {
            "same": found.rows.same,
            "added": len(found.rows.added),
            "removed": len(found.rows.removed),
            "changed": len(found.rows.changed),
            "moved": len(found.rows.moved),
        },
        "figures": _record(found.figures),
        "models": {model.model: _model_record(model) for model in found.models},
        "only": dict(zip(("first", "second"), found.only, strict=True)),
        "notes": found.notes,
    }


def _record(changes: Sequence[ChangedValue]) -> dict[str, Any]:
    return {change.key: {"first": change.before, "second": change.after} for change in changes}


def _model_record(model: ModelChange) -> dict[str, Any]:
    comparison = model.comparison
    return {
        "scorer": model.scorer,
        "rows": comparison.rows if comparison else 0,
        "left_out": list(model.alone),
        "means": model.means,
        "difference": comparison
        and {
            "points": comparison.difference.points,
            "low": comparison.difference.low,
            "high": comparison.difference.high,
            "p_value": comparison.difference.p_value,
            "verdict": comparison.verdict,
        },
        "why_not": model.why_not,
        "better": model.better,
        "worse": model.worse,
        "answers": [
            {
                "id": pair.first.id,
                "scores": pair.scores,
                "first": answer_with_calls(pair.first),
                "second": answer_with_calls(pair.second),
            }
            for pair in model.changed
        ],
    }
