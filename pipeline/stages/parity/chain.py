"""The way from training to serving: each hand-over with the verdicts on it, and the divergences' chart."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.core.checks import figure_text
from pipeline.pages.formats import is_number
from pipeline.pages.parity_summary import (
    BASE,
    LORA,
    MARKS,
    MERGED,
    SIXTEEN,
    ParityChecks,
    grouped,
    most_severe,
    place_of,
    served_unmerged,
)
from pipeline.pages.plots import BAD, GOOD, INK, WARM, axes_of, cut, svg_of

Row = Mapping[str, Any]  # a parity check with its key, group and verdict
Label = tuple[str, str]  # a verdict, and what it is about
TRAINED, AT_SERVER = "trained", "served"
COLORS = {"pass": GOOD, "warn": WARM, "fail": BAD, "not measured": WARM}
# what of the two is handed over to the merged model
SOURCES = {"outputs_sixteen": ", 16-bit base", "outputs_trained": ", NF4 base"}


@dataclass(frozen=True)
class HandOver:
    """What goes from `start` to `end`; without `labels` no parity check judged it."""

    start: str
    end: str
    labels: Sequence[Label]

    @property
    def verdict(self) -> str:
        """The most severe of the labels' verdicts."""
        return most_severe(verdict for verdict, _ in self.labels)

    @property
    def marked(self) -> list[str]:
        """The labels as text, each behind the mark of its verdict."""
        labels = self.labels or [(self.verdict, self.verdict)]
        return [f"{MARKS[verdict]} {words}" for verdict, words in labels]


def chain(checks: ParityChecks) -> list[HandOver]:
    """Every hand-over, in order: text and tokens, what is stored and said, the answers of llama-server."""
    groups = grouped(checks)
    stored = [row for group in ("Weights", "Outputs") for row in groups.get(group, ())]
    texts = [_counted(groups.get(name, ()), name.lower()) for name in ("Text", "Tokens")]
    answers = [_counted(groups.get("Behavior", ()), "answers")]
    if served := served_unmerged(checks):
        return [
            HandOver(TRAINED, served, texts),
            HandOver("base in training", BASE, _judged(stored, BASE)),
            HandOver(TRAINED, served, _judged(stored, served)),
            HandOver(served, AT_SERVER, answers),
        ]
    places = [place for place in dict.fromkeys(map(place_of, stored)) if place not in ("", MERGED, SIXTEEN)]
    levels = [place for place in places if not place.endswith(LORA)]
    loras = [place for place in places if place.endswith(LORA)]
    with_lora = f"base's {SIXTEEN} with LoRA"
    return [
        HandOver(TRAINED, SIXTEEN, texts),
        HandOver(TRAINED, MERGED, _judged(stored, MERGED)),
        HandOver(MERGED, SIXTEEN, _judged(stored, SIXTEEN)),
        *(HandOver(SIXTEEN, level, _judged(stored, level)) for level in levels),
        *(HandOver(level, AT_SERVER, answers) for level in levels),
        *([HandOver(TRAINED, with_lora, _judged(stored, SIXTEEN + LORA))] if loras else []),
        *(
            HandOver(with_lora, f"the same at {place.removesuffix(LORA)}", _judged(stored, place))
            for place in loras
            if place != SIXTEEN + LORA
        ),
    ]


def _judged(rows: Sequence[Row], place: str) -> list[Label]:
    """A label for each parity check at a place: what it compares, and of outputs the divergence."""
    return [(row["verdict"], _words(row)) for row in rows if place_of(row) == place]


def _words(row: Row) -> str:
    words = row["group"].lower() + SOURCES.get(row["key"], "")
    nats = row["group"] == "Outputs" and is_number(row.get("figure"))
    return f"{words} {figure_text(row['figure'])}" if nats else words


def _counted(rows: Sequence[Row], name: str) -> Label:
    """A label for several parity checks: how many of them passed."""
    passed = sum(row["verdict"] == "pass" for row in rows)
    counted = f"{passed} of {len(rows)}" if rows else "not measured"
    return most_severe(row["verdict"] for row in rows), f"{name} {counted}"


def divergences(checks: ParityChecks) -> str:
    """Mean KL divergence at each hand-over compared, and its limit, on a log scale; SVG, "" if all are 0."""
    rows = [row for row in grouped(checks).get("Outputs", ()) if is_number(row.get("figure"))]
    figures = [(float(row["figure"]), float(row.get("limit") or 0)) for row in rows]
    positive = [value for both in figures for value in both if value > 0]
    if not positive:
        return ""
    low = 10.0 ** math.floor(math.log10(min(positive)) - 0.2)
    high = 10.0 ** math.ceil(math.log10(max(positive)) + 0.1)
    figure, axes = axes_of("nats", "", (9.6, 0.6 + 0.3 * len(rows)), grid="x")
    axes.set(xscale="log", xlim=(low, high), ylim=(len(rows) - 0.4, -0.6))
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    for place, (row, (value, limit)) in enumerate(zip(rows, figures, strict=True)):
        color, failed = COLORS[row["verdict"]], row["verdict"] == "fail"
        end = max(value, low)  # 0 is at the left edge
        axes.plot([low, end], [place, place], color=color, linewidth=2, clip_on=False)
        axes.plot(end, place, "o", color=color, markersize=8, clip_on=False, gid=f"figure-{place}")
        if limit > 0:
            axes.plot(limit, place, "|", color=INK, markersize=16, markeredgewidth=2, gid=f"tip-{place}")
        looks = {"color": color, "fontweight": "bold" if failed else "normal", "va": "center"}
        axes.text(
            1.02,
            place,
            f"{MARKS[row['verdict']]} {figure_text(row['figure'])}",
            transform=axes.get_yaxis_transform(),
            **looks,
        )
    axes.set_yticks(range(len(rows)), [cut(row["title"], 56) for row in rows])
    axes.tick_params(axis="y", colors=INK)
    limits = [f"limit {figure_text(row.get('limit'))}" for row in rows]
    words = "; ".join(
        f"{row['title']} {figure_text(row['figure'])}, {limit}, {row['verdict']}"
        for row, limit in zip(rows, limits, strict=True)
    )
    return svg_of(figure, "divergences", "Mean KL divergence at each hand-over", f"{words}.", limits)
