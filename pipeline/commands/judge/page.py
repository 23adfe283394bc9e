"""The verdict as one page, `reports/judge.html`: the sentence, the table, the picture, and answers side by
side.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.commands.judge.plot import score_plot
from pipeline.pages.differences import clipped
from pipeline.pages.formats import FILTERS
from pipeline.pages.templating import DATA_FILTERS, fill

SHOWN = 8  # rows whose answers stand side by side
LONGEST = 1500  # characters of an answer, a prompt, a reference
Answers = Mapping[str, Sequence[Mapping[str, Any]]]  # of each file, in one order of rows


def render(report: Mapping[str, Any], answers: Answers) -> str:
    """The page as one string of HTML."""
    alike = {name: answers[name] for name in report["verdict"]["alike"]}
    apart = most_apart(answers, alike if len(alike) > 1 else answers)
    return fill(
        "judge.html.jinja",
        DATA_FILTERS | FILTERS,
        report=report,
        files=report["files"],
        plot=score_plot(report),
        rows=[side_by_side(answers, place) for place in apart[:SHOWN]],
        apart=len(apart),
    )


def most_apart(answers: Answers, first: Answers) -> list[int]:
    """The rows (by number) that files score differently on: those that lie furthest apart among the files
    `first`, then among all, come first.
    """
    spreads = sorted(
        (-near, -far, place)
        for place, (near, far) in enumerate(zip(_spreads(first), _spreads(answers), strict=True))
    )
    return [place for _, far, place in spreads if far]


def _spreads(answers: Answers) -> list[float]:
    """How far the scores of each row lie apart."""
    rows = zip(*answers.values(), strict=True)
    scores = [[one["score"] for one in row if one["score"] is not None] for row in rows]
    return [max(row) - min(row) if row else 0.0 for row in scores]


def side_by_side(answers: Answers, place: int) -> dict[str, Any]:
    """One row's question, its reference and what each file answered."""
    asked = next(iter(answers.values()))[place]
    return {
        "id": str(asked["id"]),
        "prompt": clipped(asked["prompt"], LONGEST),
        "reference": clipped(asked["reference"], LONGEST),
        "answers": [
            {
                "file": name,
                "text": clipped(rows[place]["answer"], LONGEST),
                "score": rows[place]["score"],
                "stopped": rows[place]["stopped"],
            }
            for name, rows in answers.items()
        ],
    }
