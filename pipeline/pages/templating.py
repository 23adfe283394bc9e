"""The pages' templates, filled: everything that they print is escaped."""

from pathlib import Path
from typing import Any

from pipeline.core.wording import count, most, percent, plural, words
from pipeline.pages.differences import clipped, marked

TEMPLATES = Path(__file__).parent / "templates"


def fill(template: str, **values: Any) -> str:
    """One template of `templates/` as HTML."""
    from jinja2 import Environment, FileSystemLoader

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
        autoescape=True,
    )  # fmt: skip
    environment.filters.update(count=count, percent=percent, marked=marked, clipped=clipped, words=words, plural=plural, most=most)
    return environment.get_template(template).render(**values)
