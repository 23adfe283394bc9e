"""The levels on the terminal: a whole table, the recommendation, the gate, where the page is."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config.sections import served_of
from pipeline.core.text import console
from pipeline.gate.recommend import Recommendation
from pipeline.metrics.answer_speed import is_disturbed, measure_again
from pipeline.pages.formats import number, percent, points, size
from pipeline.stages.report.level_table import across

if TYPE_CHECKING:
    from pipeline.gate.judgment import Judgment

ANY_WIDTH = 1000  # columns: more than the table ever takes


def show(
    evaluations: Mapping[str, Mapping[str, Any]],
    advice: Recommendation,
    verdicts: Mapping[str, "Judgment"],
    page: Path,
) -> None:
    """Print it all."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("model", no_wrap=True)
    for heading in ("size", "bpw", "ppl", "KLD", "same top", "tok/s", "score"):
        table.add_column(heading, justify="right", no_wrap=True)
    disturbed = [model for model, found in evaluations.items() if is_disturbed(found)]
    afar = [model for model, found in evaluations.items() if across(found)]
    for model, found in evaluations.items():
        star = "*" if model in afar else ""
        table.add_row(
            model,
            size(found["bytes"]),
            number(found.get("bits_per_weight")),
            number(found.get("perplexity")),
            star + number(found.get("kld_mean"), 4),
            star + percent(found.get("same_top")),
            "disturbed" if model in disturbed else speed(found),
            points((found.get("task") or {}).get("score")),
            style="bold" if model == advice.model else None,
        )
    output = console(highlight=False, width=max(80, console().width))
    # a terminal that is too narrow wraps the table rather than losing figures
    whole = console(width=ANY_WIDTH).measure(table).maximum
    console(highlight=False, width=max(output.width, whole)).print(table)
    if afar and served_of(evaluations):
        pairs = [f"{model} against {evaluations[model]['reference']}" for model in afar]
        output.print(f"* {', '.join(pairs)}.")
    elif afar:
        output.print(
            f"* {', '.join(afar)} against the tuned {evaluations[afar[0]]['reference']}: what fine-tuning "
            "changed."
        )
    nothing = "nothing" if served_of(evaluations) else "no level"
    passed = [model for model, verdict in verdicts.items() if verdict.verdict == "pass"]
    spoilt = (
        f"Other load disturbed the speeds of {', '.join(disturbed)}: once it has ended, run "
        f"`{measure_again(disturbed)}`."
    )
    for line in (
        *([spoilt] if disturbed else []),
        advice.reason,
        *(f"Beware: {warning}" for warning in advice.warnings),
        f"The gate passes {', '.join(passed) or nothing}.",
    ):
        output.print(line, markup=False)
    output.print(f"The page: {page}", markup=False, soft_wrap=True)


def speed(found: Mapping[str, Any]) -> str:
    """Tokens per second of generation with half the spread of the runs: 28.1±0.4."""
    value, half = found.get("generation_tok_s"), found.get("generation_tok_s_spread")
    return number(value, 1) if half is None else f"{number(value, 1)}±{number(half, 1)}"
