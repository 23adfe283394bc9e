"""The result as one page, `reports/sweep/NAME.html`: the verdict, the picture, finalists and trials."""

from collections.abc import Mapping
from typing import Any

from pipeline.commands.sweep.plot import parallel_plot
from pipeline.commands.sweep.terminal import ranked, value_text
from pipeline.pages.formats import FILTERS
from pipeline.pages.templating import DATA_FILTERS, fill


def render(report: Mapping[str, Any]) -> str:
    """The page as one string of HTML."""
    return fill(
        "sweep.html.jinja",
        DATA_FILTERS | FILTERS | {"setting": value_text},
        report=report,
        trials=ranked(report),
        plot=parallel_plot(report),
    )
