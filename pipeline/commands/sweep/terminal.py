"""A sweep's result on the terminal: the trials, the best first, the verdict, the command that applies it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.commands.terminal import plain_table, wide_console
from pipeline.config.text import as_yaml
from pipeline.core.wording import plural
from pipeline.pages.formats import MISSING, duration, number, significant

SHOWN = 20  # trials
LONGEST = 24  # characters of a value


def show(report: Mapping[str, Any], page: Path) -> None:
    """Print it all."""
    from rich.markup import escape

    space, verdict, console = report["space"], report["verdict"], wide_console()
    keys = [name.removeprefix("train.") for name in space["keys"]]
    table = plain_table(
        "trial", *keys, space["metric"], "state", "time", numbers=[0, len(keys) + 1, len(keys) + 3]
    )
    for one in ranked(report)[:SHOWN]:
        table.add_row(
            str(one["trial"]),
            *(escape(value_text(value)) for value in one["settings"].values()),
            number(one["value"], 4),
            one["state"],
            duration(one["seconds"]),
            style="bold" if verdict and one["trial"] == verdict["winner"] else None,
        )
    console.print(table)
    if (more := len(report["trials"]) - SHOWN) > 0:
        console.print(f"{plural(more, 'more trial is', 'more trials are')} on the page.", markup=False)
    if verdict:
        finals = plain_table("finalist", "mean", "95 %", "p", numbers=range(4))
        for trial, mean in verdict["means"].items():
            test = verdict["differences"].get(trial)
            low_high = f"{number(mean['low'], 4)}–{number(mean['high'], 4)}"
            finals.add_row(
                trial, number(mean["mean"], 4), low_high, significant(test["p_value"]) if test else MISSING
            )
        console.print(finals)
        console.print(report["sentence"], markup=False)
        console.print(f"To train with it: {report['apply']}", markup=False, soft_wrap=True)
    else:
        console.print(report["sentence"], markup=False)
    console.print(f"The page: {page}", markup=False, soft_wrap=True)


def ranked(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The trials: those that reached their end, the best first, then the others."""
    sign = -1 if report["maximize"] else 1
    return sorted(
        report["trials"],
        key=lambda one: (
            one["state"] != "complete",
            one["value"] is None,
            sign * (one["value"] or 0.0),
            one["trial"],
        ),
    )


def value_text(value: Any) -> str:
    """A setting's value, short."""
    text = significant(value) if isinstance(value, float) else as_yaml(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
