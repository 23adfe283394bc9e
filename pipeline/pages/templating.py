"""The one Jinja set-up: every page and text that Quench writes is a template of `templates/`."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core.checks import figure_text
from pipeline.core.text import count, most, percent, plural, words
from pipeline.pages.differences import clipped, marked

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"
DATA_FILTERS: dict[str, Callable[..., Any]] = {
    "count": count,
    "percent": percent,
    "marked": marked,
    "clipped": clipped,
    "words": words,
    "plural": plural,
    "most": most,
}


def fill(
    template: str, filters: dict[str, Callable[..., Any]] = DATA_FILTERS, *, html: bool = True, **values: Any
) -> str:
    """One template of `templates/`, filled; as HTML everything printed is escaped.

    Raises jinja2's `UndefinedError` if a text that is not HTML (Markdown, shell, INI) uses a value that is
    missing.
    """
    return str(_environment(tuple(filters.items()), html).get_template(template).render(**values))


@cache  # it compiles a template once: that takes longer than to fill it
def _environment(filters: tuple[tuple[str, Callable[..., Any]], ...], html: bool) -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, Undefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=html,  # noqa: S701 (a Modelfile or a Markdown card is no HTML)
        undefined=Undefined if html else StrictUndefined,
    )
    environment.filters.update({"figure_text": figure_text, **dict(filters)})
    return environment
