"""The parity page's drawings: the chain of hand-overs, and the divergence at each of them against its limit.

A hand-over is colored by its verdict and marked with it (✓ pass, ▲ warn, ✕ fail, ○ not measured).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.core.checks import figure_text
from pipeline.pages.formats import is_number
from pipeline.pages.parity_summary import (
    BASE,
    LORA,
    MARKS,
    MERGED,
    SCALES,
    SERVED,
    SIXTEEN,
    TUNED,
    ParityChecks,
    gravest,
    grouped,
    place_among,
)
from pipeline.pages.plots import BAD, CARD, GOOD, INK, MUTED, WARM, axes_of, canvas, cut, svg_of

Row = Mapping[str, Any]  # a parity check with its key and verdict
Point = tuple[float, float]
SOURCES = {
    "outputs_sixteen": ", 16-bit base",
    "outputs_trained": ", NF4 base",
}  # what of the two is handed over to the merged model
COLORS = {"pass": GOOD, "warn": WARM, "fail": BAD, "not measured": WARM}
LINES: dict[str, dict[str, Any]] = {
    "pass": {"linewidth": 2},
    "warn": {"linewidth": 2},
    "fail": {"linewidth": 3.5},
    "not measured": {"linewidth": 2, "linestyle": (0, (2.5, 2))},
}
# the chain, in points: boxes of BOX × HIGH, their left edges in columns, their middles from FIRST on PITCH
# apart
BOX, HIGH, FIRST, PITCH = 126.0, 46.0, 92.0, 68.0
TRAINED, MERGE, GGUF, LEVEL, SERVER = 2.0, 326.0, 606.0, 906.0, 1126.0
# without a merge, by whether scales were trained: the place that is served, what the boxes of it say
UNMERGED_BOXES = {
    False: (SERVED, "base with adapter", "Base + LoRA", "two GGUFs"),
    True: (TUNED, "scales of the base", "Tuned GGUF", "with new scales"),
}
ABOVE = 30.0  # the strand of text and tokens
TURN = 20.0  # from a box to where its lines to several others part


class _Drawing:
    """The chain in words, and on a canvas with its last column at `right` and its lowest row at `bottom`."""

    def __init__(self, right: float, bottom: float) -> None:
        self.figure, self.axes = canvas(right + BOX + 2, bottom + HIGH / 2 + 12)
        self.sentences: list[str] = []

    def hand_over(
        self,
        way: Sequence[Point],
        words: str,
        checks: Sequence[Row],
        labels: Sequence[tuple[str, str]],
        at: Point,
    ) -> None:
        """A line along `way` with an arrow, colored by the gravest of `checks`; the `labels` (verdict, words)
        stand at `at`, below each other.
        """
        verdict = gravest(checks)
        shown = [(kind, f"{MARKS[kind]} {label}") for kind, label in labels or [(verdict, verdict)]]
        self.sentences.append(f"{words}: {', '.join(label for _, label in shown)}")
        self.axes.plot(*zip(*way, strict=True), color=COLORS[verdict], **LINES[verdict])
        (before, _), (x, y) = way[-2:]
        head = (
            [(x, y), (x - 5, y - 9), (x + 5, y - 9)]
            if before == x
            else [(x, y), (x - 9, y - 5), (x - 9, y + 5)]
        )
        self.axes.fill(*zip(*head, strict=True), color=COLORS[verdict])
        for number, (kind, label) in enumerate(shown):
            # the first stands above the line, the others below it
            self.axes.text(
                at[0],
                at[1] - 7 if number == 0 else at[1] + 2 + 15 * number,
                cut(label, 34),
                color=COLORS[kind],
                fontsize=12,
                fontweight="bold" if kind == "fail" else "normal",
            )

    def box(self, at: Point, name: str, words: str) -> None:
        """A box with its left edge and its middle at `at`: a name and, smaller, what it is."""
        from matplotlib.patches import FancyBboxPatch

        x, y = at
        looks: dict[str, Any] = {
            "boxstyle": "round,pad=0,rounding_size=6",
            "facecolor": CARD,
            "edgecolor": MUTED,
            "linewidth": 1.2,
        }
        self.axes.add_patch(FancyBboxPatch((x, y - HIGH / 2), BOX, HIGH, **looks))
        middle = {"ha": "center", "fontsize": 13}
        self.axes.text(x + BOX / 2, y - 2, cut(name, 16), color=INK, fontweight="bold", **middle)
        self.axes.text(x + BOX / 2, y + 14, cut(words, 22), color=MUTED, **middle | {"fontsize": 12})

    def svg(self) -> str:
        """The drawing as SVG."""
        return svg_of(self.figure, "chain", "The chain of hand-overs", "; ".join(self.sentences) + ".")


def chain(checks: ParityChecks) -> str:
    """Trained → merged → 16-bit GGUF → levels → served; text and tokens as a strand above, the adapter as a
    GGUF of its own below. SVG.
    """
    rows, stored = _placed(checks)
    places = list(dict.fromkeys(row["place"] for row in stored))
    levels = [place for place in places if place not in ("", MERGED, SIXTEEN) and not place.endswith(LORA)]
    loras = [place for place in places if place.endswith(LORA)]
    lora_levels = [place for place in loras if place != SIXTEEN + LORA]
    y = FIRST + PITCH * max(1, len(levels))  # the adapter's own GGUF
    drawing = _Drawing(SERVER, y + PITCH * max(0, len(lora_levels) - 1) if loras else y - PITCH)
    _text_strand(drawing, rows)
    for start, end, place, words in (
        (TRAINED, MERGE, MERGED, "trained to merged"),
        (MERGE, GGUF, SIXTEEN, "merged to 16-bit GGUF"),
    ):
        drawing.hand_over(
            [(start + BOX, FIRST), (end, FIRST)], words, *_checked(stored, place), (start + BOX + 10, FIRST)
        )
    _levels(drawing, stored, levels, FIRST)
    for number, level in enumerate(levels):
        low, end = FIRST + number * PITCH, SERVER - TURN
        turns = [(end, low), (end, FIRST)] if number else []
        asked = [row for row in rows.get("Behavior", ()) if row["place"] in ("", level)]
        way = [(LEVEL + BOX, low), *turns, (SERVER, FIRST)]
        drawing.hand_over(way, f"{level} to served", asked, [_counted(asked)], (LEVEL + BOX + 8, low))
    for x, name, words in (
        (TRAINED, "Trained", "base with adapter"),
        (MERGE, "Merged", "one set of weights"),
        (GGUF, "16-bit GGUF", "of the merged"),
        *([(SERVER, "Served", "in llama-server")] if levels else []),
    ):
        drawing.box((x, FIRST), name, words)
    if loras:
        way = [(TRAINED + BOX / 2, FIRST + HIGH / 2), (TRAINED + BOX / 2, y), (GGUF, y)]
        drawing.hand_over(
            way, "adapter as a GGUF on the base's", *_checked(stored, SIXTEEN + LORA), (MERGE + BOX + 10, y)
        )
        _levels(drawing, stored, lora_levels, y)
        drawing.box((GGUF, y), "16-bit GGUF", "base with LoRA")
    return drawing.svg()


def unmerged_chain(checks: ParityChecks) -> str:
    """Where nothing is merged: trained → base GGUF with LoRA GGUF, or tuned GGUF → served; text and tokens
    above, below it the base alone, one file in both. SVG.
    """
    rows, stored = _placed(checks)
    bottom, asked = FIRST + PITCH * 1.5, rows.get("Behavior", [])
    what, trained, made, held = UNMERGED_BOXES[SCALES in checks]
    drawing = _Drawing(LEVEL, bottom)
    _text_strand(drawing, rows)
    for start, end, y, words, checked, indent in (
        (TRAINED, GGUF, FIRST, f"trained to {what}", _checked(stored, what), 110),
        (TRAINED, GGUF, bottom, f"the base in training to {BASE}", _checked(stored, BASE), 110),
        (GGUF, LEVEL, FIRST, f"{what} to served", (asked, [_counted(asked)]), 30),
    ):
        drawing.hand_over([(start + BOX, y), (end, y)], words, *checked, (start + BOX + indent, y))
    for at, name, words in (
        ((TRAINED, FIRST), "Trained", trained),
        ((GGUF, FIRST), made, held),
        ((LEVEL, FIRST), "Served", "in llama-server"),
        ((TRAINED, bottom), "Base", "in training"),
        ((GGUF, bottom), "Base GGUF", "the untouched file"),
    ):
        drawing.box(at, name, words)
    return drawing.svg()


def _placed(checks: ParityChecks) -> tuple[dict[str, list[Row]], list[Row]]:
    """The checks by group with their places, and those of weights and outputs."""
    rows: dict[str, list[Row]] = {
        name: [{**row, "place": place_among(row["key"], checks)} for row in found]
        for name, found in grouped(checks).items()
    }
    return rows, [row for group in ("Weights", "Outputs") for row in rows.get(group, ())]


def _text_strand(drawing: _Drawing, rows: Mapping[str, Sequence[Row]]) -> None:
    """Text and tokens, from the trained model above everything to the GGUF."""
    left, right, low = TRAINED + BOX / 2, GGUF + BOX / 2, FIRST - HIGH / 2
    drawing.hand_over(
        [(left, low), (left, ABOVE), (right, ABOVE), (right, low)],
        "text and tokens",
        [*rows.get("Text", ()), *rows.get("Tokens", ())],
        [_counted(rows.get(name, ()), name.lower()) for name in ("Text", "Tokens")],
        (left + 12, ABOVE),
    )


def _levels(drawing: _Drawing, stored: Sequence[Row], levels: Sequence[str], top: float) -> None:
    """The levels made from the GGUF at height `top`, each with its hand-over."""
    for number, level in enumerate(levels):
        y, start = top + number * PITCH, GGUF + BOX
        turns = [(start + TURN, top), (start + TURN, y)] if number else []
        drawing.hand_over(
            [(start, top), *turns, (LEVEL, y)],
            f"to {level}",
            *_checked(stored, level),
            (start + TURN + 10, y),
        )
        drawing.box(
            (LEVEL, y), level.removesuffix(LORA), "base with LoRA" if level.endswith(LORA) else "GGUF"
        )


def _checked(rows: Sequence[Row], place: str) -> tuple[list[Row], list[tuple[str, str]]]:
    """The parity checks at a place, and a label (verdict, words) for each."""
    there = [row for row in rows if row["place"] == place]
    return there, [(row["verdict"], _label(row)) for row in there]


def _label(row: Row) -> str:
    """What a check compares, and of outputs the divergence."""
    words = row["group"].lower() + SOURCES.get(row["key"], "")
    nats = row["group"] == "Outputs" and is_number(row.get("figure"))
    return f"{words} {figure_text(row['figure'])}" if nats else words


def _counted(rows: Sequence[Row], name: str = "") -> tuple[str, str]:
    """A label for several parity checks: how many of them passed."""
    passed = sum(row["verdict"] == "pass" for row in rows)
    counted = f"{passed} of {len(rows)}" if rows else "not measured"
    return gravest(rows), f"{name} {counted}".strip()


def divergences(checks: ParityChecks) -> str:
    """Mean KL divergence at each hand-over whose outputs were compared, and its limit, on a logarithmic
    scale; SVG, "" where all are 0.
    """
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
