"""Show the verdict: on the terminal as a table of at most 100 columns and a sentence, and as the page
`reports/judge.html` with the plot of score against memory and answers side by side.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.commands.terminal import plain_table, wide_console
from pipeline.core.units import MEMORY_GB, memory_gb
from pipeline.metrics.score import references
from pipeline.metrics.tool_calls import CALLS, EXPECTED, answer_text
from pipeline.pages.differences import clipped
from pipeline.pages.formats import number, percent, points, size
from pipeline.pages.plots import ACCENT, INK, MUTED, WARM, Place, axes_of, put_labels, put_point, svg_of
from pipeline.pages.templating import fill

FITS = {True: "yes", False: "no", None: "not known"}
SHOWN = 8  # rows whose answers are shown side by side
LONGEST = 1500  # characters of an answer, a prompt or a reference
INCHES = (7.6, 4.1)
# A limit that is this many times above all files is left out: it would press them against the left edge.
FAR = 3.0
Answers = Mapping[str, Sequence[Mapping[str, Any]]]  # answers of each file, in one order of rows


def show(report: Mapping[str, Any], page: Path) -> None:
    """Print the table, the sentence and the path of the page."""
    from rich.markup import escape

    console = wide_console()
    compared = any("kld" in file["divergence"] for file in report["files"].values())
    headings = ("size", "bpw", "memory GB", "fits", "tok/s", "score", "95 %", "right")
    table = plain_table("file", *headings, *(["KLD"] if compared else []), numbers=range(1, 10))
    for name, file in report["files"].items():
        task = file["task"]
        served = file["served"]
        table.add_row(
            escape(name),
            size(file["bytes"]),
            number(file["bits_per_weight"]),
            number(file["memory"]["total_bytes"] / MEMORY_GB),
            FITS[file["memory"]["fits"]],
            "disturbed" if served["disturbed"] else number(served["generation_tok_s"]["median"], 1),
            points(task["score"]),
            f"{points(task['score_low'])}–{points(task['score_high'])}",
            percent(task["perfect"]),
            *([number(file["divergence"].get("kld"), 4)] if compared else []),
            style="bold" if name in report["verdict"]["alike"] else None,
        )
    console.print(table)
    notes = [f"Beware: {note}" for note in report["verdict"]["notes"]]
    for line in (report["verdict"]["sentence"], *notes):
        console.print(line, markup=False)
    console.print(f"The page: {page}", markup=False, soft_wrap=True)


def render(report: Mapping[str, Any], answers: Answers) -> str:
    """Return the page as HTML."""
    alike = {name: answers[name] for name in report["verdict"]["alike"]}
    places = most_apart(answers, alike if len(alike) > 1 else answers)
    return fill(
        "judge.html.jinja",
        report=report,
        files=report["files"],
        plot=score_plot(report),
        rows=[side_by_side(answers, place) for place in places[:SHOWN]],
        apart=len(places),
    )


def most_apart(answers: Answers, first: Answers) -> list[int]:
    """Return the numbers of the rows that files score differently. Rows with the largest spread among the
    files `first` come first, then those with the largest spread among all.
    """
    spreads = sorted(
        (-near, -far, place)
        for place, (near, far) in enumerate(zip(_spreads(first), _spreads(answers), strict=True))
    )
    return [place for _, far, place in spreads if far]


def _spreads(answers: Answers) -> list[float]:
    """Return the spread of the scores of each row."""
    rows = zip(*answers.values(), strict=True)
    scores = [[answer["score"] for answer in row if answer["score"] is not None] for row in rows]
    return [max(row) - min(row) if row else 0.0 for row in scores]


def side_by_side(answers: Answers, place: int) -> dict[str, Any]:
    """Return one row's question, its reference and each file's answer."""
    row = next(iter(answers.values()))[place]
    return {
        "id": str(row["id"]),
        "prompt": clipped(row["prompt"], LONGEST),
        "reference": clipped(answer_text("\nor: ".join(references(row)), row.get(EXPECTED)), LONGEST),
        "answers": [
            {
                "file": name,
                "text": clipped(answer_text(rows[place]["answer"], rows[place].get(CALLS)), LONGEST),
                "score": rows[place]["score"],
                "stopped": rows[place]["stopped"],
            }
            for name, rows in answers.items()
        ],
    }


def score_plot(report: Mapping[str, Any]) -> str:
    """Return an SVG of each file's mean score, with its 95 % interval, against its memory when served.

    The file that the verdict recommends is colored: the best, or the smallest of those that are not
    measurably worse. A file that does not fit is hollow.
    """
    files = report["files"]
    room = report["room_bytes"] / MEMORY_GB
    verdict = report["verdict"]
    named = verdict["best"] if len(verdict["alike"]) < 2 else verdict["smallest"]
    fits = {name: file["memory"]["fits"] is not False for name, file in files.items()}
    colors = {name: INK if fits[name] else MUTED for name in files}
    if named in colors:
        colors[named] = ACCENT
    places = [
        Place(
            name,
            file["memory"]["total_bytes"] / MEMORY_GB,
            *(100 * file["task"][key] for key in ("score", "score_low", "score_high")),
        )
        for name, file in files.items()
    ]
    figure, axes = axes_of("memory where it is served, GB", "score, points", INCHES)
    figure.set_dpi(72)  # one pixel per point
    widest = max(place.size for place in places)
    shown = room <= FAR * widest
    for place in places:
        put_point(axes, place, colors[place.model], hollow=not fits[place.model])
    if shown:
        axes.axvline(room, color=WARM, linewidth=1.3, linestyle=(0, (4, 3)))
        axes.annotate(
            memory_gb(report["room_bytes"]),
            (room, 1.0),
            xycoords=axes.get_xaxis_transform(),
            xytext=(-4, -2),
            textcoords="offset points",
            ha="right",
            va="top",
            color=WARM,
            fontweight="bold",
        )
    least = min(place.low for place in places)
    most = max(place.high for place in places)
    spare = 0.16 * max(most - least, 5)
    axes.set_xlim(0, max(widest, room if shown else 0) * 1.14)
    axes.set_ylim(least - spare, most + spare)
    axes.yaxis.get_major_locator().set_params(nbins=6)
    figure.draw_without_rendering()  # The layout fixes the position of each value.
    put_labels(axes, places, colors, named)
    words = "; ".join(
        f"{at.model} {at.size:.3g} GB, {at.value:.1f} ({at.low:.1f} to {at.high:.1f})" for at in places
    )
    return svg_of(
        figure,
        "judge",
        "Score against memory",
        f"Score in points by memory: {words}. The limit is {memory_gb(report['room_bytes'])}.",
    )
