"""The verdict on the terminal: a table of at most 100 columns, the sentence, where the page is."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.commands.terminal import plain_table, wide_console
from pipeline.core.units import MEMORY_GB
from pipeline.pages.formats import number, percent, points, size

NUMBERS = range(1, 9)
FITS = {True: "yes", False: "no", None: "not known"}


def show(report: Mapping[str, Any], page: Path) -> None:
    """Print it all."""
    from rich.markup import escape

    console = wide_console()
    compared = any("kld" in one["divergence"] for one in report["files"].values())
    headings = ("size", "bpw", "memory GB", "fits", "tok/s", "score", "95 %", "right")
    table = plain_table("file", *headings, *(["KLD"] if compared else []), numbers=[*NUMBERS, 9])
    for name, one in report["files"].items():
        task = one["task"]
        table.add_row(
            escape(name),
            size(one["bytes"]),
            number(one["bits_per_weight"]),
            number(one["memory"]["total_bytes"] / MEMORY_GB),
            FITS[one["memory"]["fits"]],
            "disturbed"
            if one["served"]["disturbed"]
            else number(one["served"]["generation_tok_s"]["median"], 1),
            points(task["score"]),
            f"{points(task['score_low'])}–{points(task['score_high'])}",
            percent(task["perfect"]),
            *([number(one["divergence"].get("kld"), 4)] if compared else []),
            style="bold" if name in report["verdict"]["alike"] else None,
        )
    console.print(table)
    notes = [f"Beware: {note}" for note in report["verdict"]["notes"]]
    for line in (report["verdict"]["sentence"], *notes):
        console.print(line, markup=False)
    console.print(f"The page: {page}", markup=False, soft_wrap=True)
