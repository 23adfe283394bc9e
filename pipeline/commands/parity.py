"""Show the last results of the parity checks: a line per check with figure, limit and verdict, and the likely
cause of each failure.

Reads `reports/parity.json`. Writes nothing, unless it measures again: then it writes the stage's reports.

    quench model parity
    quench model parity --depth full   # measure again
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipeline.commands.terminal import plain_table, wide_console
from pipeline.core.checks import figure_text as figure
from pipeline.core.errors import DataError, GateError
from pipeline.core.jsonl import BadLine, parse_record
from pipeline.gate.records import Parity
from pipeline.pages.parity_summary import MARKS, counts, grouped, in_words

COLORS = {"pass": "green", "warn": "yellow", "fail": "bold red", "not measured": "yellow"}


def main(root: Path, *, as_json: bool) -> int:
    """Print the last report.

    Return exit code 5 if a check failed, otherwise 0. Raises `DataError` without a report.
    """
    report = read(root / "reports" / "parity.json")
    if as_json:
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        show(report)
    if report["verdict"] == "pass" and not counts(report["checks"])["fail"]:
        return 0
    return GateError.exit_code


def measure(params_file: Path | None, root: Path, depth: str) -> None:
    """Run the stage at a depth other than params.yaml's. It writes the same reports even if a check fails."""
    from pipeline.config.params import load_params
    from pipeline.stages.parity.stage import measure_parity
    from pipeline.workflow.state.integrity import verify_inputs
    from pipeline.workflow.state.record import is_project_config, running

    params = load_params(params_file or root / "params.yaml")
    deeper = params.model_copy(update={"parity": params.parity.model_copy(update={"depth": depth})})
    with running("parity", root):  # The stage itself may be running here.
        if is_project_config(params_file, root):
            verify_inputs("parity", root)
        measure_parity(deeper, root)


def read(path: Path) -> dict[str, Any]:
    """Return the report. Raises `DataError` if it is missing or damaged."""
    if not path.is_file():
        raise DataError(
            "Q-CORE-001", f"{path} is missing: run `snakemake parity`, which measures the parity checks"
        )
    try:
        report = parse_record(path.read_bytes())
        Parity.model_validate(report)
    except (OSError, BadLine, ValidationError):
        raise DataError(
            "Q-CORE-006",
            f"{path} is not a report of the parity checks: run `snakemake --force parity`, which measures "
            "them again",
        ) from None
    return report


def show(report: Mapping[str, Any]) -> None:
    """Print a table of the checks by group, the result and cause of each failed check, and the verdict."""
    from rich.text import Text

    console = wide_console(None)
    table = plain_table("check", "figure", "limit", "unit", "verdict", numbers=(1, 2), unwrapped=(4,))
    groups = grouped(report["checks"])
    for name, rows in groups.items():
        table.add_row(Text(name, style="bold"))
        for row in rows:
            table.add_row(
                Text(f"  {row['title']}"),
                figure(row.get("figure")),
                figure(row.get("limit")),
                Text(row.get("unit") or ""),
                Text(f"{MARKS[row['verdict']]} {row['verdict']}", style=COLORS[row["verdict"]]),
            )
    console.print(table)
    for line in explained(row for rows in groups.values() for row in rows):
        console.print(line, markup=False, soft_wrap=True)
    title, sentence = in_words(report)
    verdict = f"{title} (depth {report.get('depth', 'unknown')}). {sentence}"
    console.print(verdict, markup=False, soft_wrap=True)


def explained(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield each failed check's result and likely cause, each warning, and why a check was not measured."""
    for row in rows:
        detail = (row.get("detail") or "").rstrip(".")
        if row["verdict"] == "fail":
            yield (
                f"{row['title']} failed: {figure(row.get('figure'))} against limit "
                f"{figure(row.get('limit'))}{detail and '; '}{detail}."
            )
            yield from [f"  Likely cause: {row['cause']}"] if row.get("cause") else []
        elif row["verdict"] == "warn":
            yield f"{row['title']} warns{detail and ': '}{detail}. {row.get('cause') or ''}".rstrip()
        elif row["verdict"] == "not measured":
            yield f"{row['title']} was not measured{detail and ': '}{detail}."
