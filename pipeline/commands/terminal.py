"""Tables for a terminal, as wide as it is within limits (100 columns if there is none), and their figures."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from pipeline.core.text import console
from pipeline.core.units import MEMORY_GB

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDEST = 100  # columns
NOT_KNOWN = "not known"


def wide_console(widest: int | None = WIDEST) -> "Console":
    """Return standard output without highlighting. With `widest` None it is as wide as the terminal."""
    output = console(highlight=False)
    if not output.is_terminal:
        output.width = WIDEST
    elif widest:
        output.width = min(widest, max(80, output.width))
    return output


def plain_table(*columns: str, numbers: Collection[int] = (), unwrapped: Collection[int] = ()) -> "Table":
    """Return a table with a line below its head.

    Columns in `numbers` align right; they and `unwrapped` never wrap.
    """
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for place, column in enumerate(columns):
        table.add_column(
            column,
            justify="right" if place in numbers else "left",
            no_wrap=place in numbers or place in unwrapped,
        )
    return table


def figure(value: int | None) -> str:
    """Return bytes as GB of 2³⁰ bytes with three digits."""
    return NOT_KNOWN if value is None else f"{value / MEMORY_GB:.3f}"
