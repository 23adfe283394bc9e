"""Set up Jinja in one place: every page and text that Quench writes is a template of `templates/`."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core.checks import figure_text
from pipeline.core.text import most, percent, plural, safe, words
from pipeline.pages.differences import clipped, marked
from pipeline.pages.formats import FIGURES, anchor

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"


def cell(text: str) -> str:
    """Return a foreign text for a cell of a Markdown table: it ends no cell and contains no markup."""
    return safe(text, 300).translate({ord("|"): "&#124;", ord("<"): "&lt;", ord("`"): "'"})


FILTERS: dict[str, Callable[..., Any]] = FIGURES | {
    "anchor": anchor,
    "cell": cell,
    "figure_text": figure_text,
    "marked": marked,
    "clipped": clipped,
    "words": words,
    "plural": plural,
    "most": most,
    "share": percent,
}


def fill(template: str, **values: Any) -> str:
    """Fill one template of `templates/`; in NAME.html.jinja everything printed is escaped.

    Raises jinja2's `UndefinedError` if a text that is not HTML (Markdown, shell, INI) uses a value that is
    missing.
    """
    return str(_environment(template.endswith(".html.jinja")).get_template(template).render(**values))


@cache  # A template is compiled once, because compiling takes longer than filling it.
def _environment(html: bool) -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, Undefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=html,  # noqa: S701 (a Modelfile or a Markdown card is not HTML)
        undefined=Undefined if html else StrictUndefined,
    )
    environment.filters.update(FILTERS)
    return environment
