"""Page for one kind of written rows: counts by reason, and examples next to the rows they come from."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.pages.templating import fill

TITLES = {
    "questions": "Questions in other words",
    "rejected": "Flawed answers",
    "answers": "Answers to unanswered prompts",
}


def render(report: Mapping[str, Any], examples: Sequence[Mapping[str, Any]]) -> str:
    """Return the page as one string of HTML."""
    return fill("augment.html.jinja", report=report, examples=examples, title=TITLES[report["kind"]])
