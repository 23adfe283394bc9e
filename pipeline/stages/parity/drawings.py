"""The parity page's drawings as inline SVG: the chain of hand-overs, and the divergence at each of them.

A hand-over is colored by its verdict and marked with it (✓ pass, ✕ fail, ○ not measured); colors are classes
of the page's style.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.core.checks import figure_text
from pipeline.pages.formats import is_number
from pipeline.pages.parity_summary import (
    BASE,
    LORA,
    MARKS,
    MERGED,
    SERVED,
    SIXTEEN,
    ParityChecks,
    gravest,
    grouped,
    place_of,
)
from pipeline.pages.svg import short, svg, text

Row = Mapping[str, Any]  # a parity check with its key and verdict
Point = tuple[float, float]
SOURCES = {
    "outputs_sixteen": ", 16-bit base",
    "outputs_trained": ", NF4 base",
}  # what of the two is handed over to the merged model
KINDS = {"pass": "check-pass", "fail": "check-fail", "not measured": "check-open"}
# the chain, in units of its viewBox: boxes of BOX × HIGH, their left edges in columns, their middles from
# FIRST on PITCH apart
BOX, HIGH, FIRST, PITCH = 126.0, 46.0, 92.0, 68.0
TRAINED, MERGE, GGUF, LEVEL, SERVER = 2.0, 326.0, 606.0, 906.0, 1126.0
ABOVE = 30.0  # the strand of text and tokens
TURN = 20.0  # from a box to where its lines to several others part


@dataclass
class _Drawing:
    """What is drawn so far, as SVG and in words."""

    parts: list[str] = field(default_factory=list)
    announce: list[str] = field(default_factory=list)

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
        stated = [f"{MARKS[kind]} {label}" for kind, label in labels] or [f"{MARKS[verdict]} {verdict}"]
        self.announce.append(f"{words}: {', '.join(stated)}")
        x, y = way[-1]
        down = way[-2][0] == x
        head = f"l-5 -9 h10 Z M{short(x)} {short(y)}" if down else "l-9 -5 v10 Z"
        line = " L".join(f"{short(a)} {short(b)}" for a, b in way)
        self.parts.append(
            f'<path class="{KINDS[verdict]} way" d="M{line}"/><path class="{KINDS[verdict]} head" '
            f'd="M{short(x)} {short(y)} {head}"/>'
        )
        for number, (one, (kind, _)) in enumerate(zip(stated, labels or [(verdict, "")], strict=True)):
            # the first stands above the line, the others below it
            self.parts.append(
                text(
                    at[0],
                    at[1] - 7 if number == 0 else at[1] + 2 + 15 * number,
                    one,
                    f"{KINDS[kind]} label",
                    longest=34,
                )
            )

    def box(self, at: Point, name: str, words: str) -> None:
        """A box with its left edge and its middle at `at`: a name and, smaller, what it is."""
        x, y = at
        self.parts.append(
            f'<rect class="chain-box" x="{short(x)}" y="{short(y - HIGH / 2)}" width="{short(BOX)}" '
            f'height="{short(HIGH)}" rx="6"/>'
        )
        self.parts.append(text(x + BOX / 2, y - 2, name, "chain-name", anchor="middle", longest=16))
        self.parts.append(text(x + BOX / 2, y + 14, words, "chain-quiet", anchor="middle", longest=22))


def chain(checks: ParityChecks) -> str:
    """Trained → merged → 16-bit GGUF → levels → served; text and tokens as a strand above, the adapter as a
    GGUF of its own below. SVG.
    """
    rows, stored = _placed(checks)
    places = list(dict.fromkeys(row["place"] for row in stored))
    levels = [place for place in places if place not in ("", MERGED, SIXTEEN) and not place.endswith(LORA)]
    loras = [place for place in places if place.endswith(LORA)]
    drawing = _Drawing()
    _text_strand(drawing, rows)
    for start, end, place, words in (
        (TRAINED, MERGE, MERGED, "trained to merged"),
        (MERGE, GGUF, SIXTEEN, "merged to 16-bit GGUF"),
    ):
        drawing.hand_over(
            [(start + BOX, FIRST), (end, FIRST)], words, *_checked(stored, place), (start + BOX + 10, FIRST)
        )
    bottom = _levels(drawing, stored, levels, FIRST)
    for number, level in enumerate(levels):
        y, end = FIRST + number * PITCH, SERVER - TURN
        way = (
            [(LEVEL + BOX, y), (end, y), (end, FIRST), (SERVER, FIRST)]
            if number
            else [(LEVEL + BOX, y), (SERVER, y)]
        )
        asked = [row for row in rows.get("Behavior", ()) if row["place"] in ("", level)]
        drawing.hand_over(way, f"{level} to served", asked, [_counted(asked)], (LEVEL + BOX + 8, y))
    for x, name, words in (
        (TRAINED, "Trained", "base with adapter"),
        (MERGE, "Merged", "one set of weights"),
        (GGUF, "16-bit GGUF", "of the merged"),
    ):
        drawing.box((x, FIRST), name, words)
    if levels:
        drawing.box((SERVER, FIRST), "Served", "in llama-server")
    if loras:
        y = bottom + PITCH
        way = [(TRAINED + BOX / 2, FIRST + HIGH / 2), (TRAINED + BOX / 2, y), (GGUF, y)]
        drawing.hand_over(
            way, "adapter as a GGUF on the base's", *_checked(stored, SIXTEEN + LORA), (MERGE + BOX + 10, y)
        )
        bottom = _levels(drawing, stored, [lora for lora in loras if lora != SIXTEEN + LORA], y)
        drawing.box((GGUF, y), "16-bit GGUF", "base with LoRA")
    size = (SERVER + BOX + 2, bottom + HIGH / 2 + 12)
    return svg(
        "chain", "chain", size, "The chain of hand-overs", "; ".join(drawing.announce) + ".", drawing.parts
    )


def unmerged_chain(checks: ParityChecks) -> str:
    """Where nothing is merged: trained → base GGUF with LoRA GGUF → served; text and tokens above, below it
    the base alone, one file in both. SVG.
    """
    rows, stored = _placed(checks)
    drawing, bottom = _Drawing(), FIRST + PITCH * 1.5
    _text_strand(drawing, rows)
    drawing.hand_over(
        [(TRAINED + BOX, FIRST), (GGUF, FIRST)],
        f"trained to {SERVED}",
        *_checked(stored, SERVED),
        (TRAINED + BOX + 110, FIRST),
    )
    drawing.hand_over(
        [(TRAINED + BOX, bottom), (GGUF, bottom)],
        f"the base in training to {BASE}",
        *_checked(stored, BASE),
        (TRAINED + BOX + 110, bottom),
    )
    asked = rows.get("Behavior", [])
    drawing.hand_over(
        [(GGUF + BOX, FIRST), (LEVEL, FIRST)],
        f"{SERVED} to served",
        asked,
        [_counted(asked)],
        (GGUF + BOX + 30, FIRST),
    )
    for at, name, words in (
        ((TRAINED, FIRST), "Trained", "base with adapter"),
        ((GGUF, FIRST), "Base + LoRA", "two GGUFs"),
        ((LEVEL, FIRST), "Served", "in llama-server"),
        ((TRAINED, bottom), "Base", "in training"),
        ((GGUF, bottom), "Base GGUF", "the same file, alone"),
    ):
        drawing.box(at, name, words)
    size = (LEVEL + BOX + 2, bottom + HIGH / 2 + 12)
    return svg(
        "chain", "chain", size, "The chain of hand-overs", "; ".join(drawing.announce) + ".", drawing.parts
    )


def _placed(checks: ParityChecks) -> tuple[dict[str, list[Row]], list[Row]]:
    """The checks by group with their places, and those of weights and outputs."""
    rows: dict[str, list[Row]] = {
        name: [{**row, "place": place_of(row["key"])} for row in found]
        for name, found in grouped(checks).items()
    }
    return rows, [row for group in ("Weights", "Outputs") for row in rows.get(group, ())]


def _text_strand(drawing: _Drawing, rows: Mapping[str, Sequence[Row]]) -> None:
    """Text and tokens, from the trained model above everything to the GGUF."""
    left, right, low = TRAINED + BOX / 2, GGUF + BOX / 2, FIRST - HIGH / 2
    over = [(left, low), (left, ABOVE), (right, ABOVE), (right, low)]
    labels = [_counted(rows.get(name, ()), name.lower()) for name in ("Text", "Tokens")]
    both = [*rows.get("Text", ()), *rows.get("Tokens", ())]
    drawing.hand_over(over, "text and tokens", both, labels, (left + 12, ABOVE))


def _levels(drawing: _Drawing, stored: Sequence[Row], levels: Sequence[str], top: float) -> float:
    """The levels made from the GGUF at height `top`, each with its hand-over; gives the height of the
    lowest.
    """
    for number, level in enumerate(levels):
        y, start = top + number * PITCH, GGUF + BOX
        way = (
            [(start, top), (start + TURN, top), (start + TURN, y), (LEVEL, y)]
            if number
            else [(start, y), (LEVEL, y)]
        )
        drawing.hand_over(way, f"to {level}", *_checked(stored, level), (start + TURN + 10, y))
        drawing.box(
            (LEVEL, y), level.removesuffix(LORA), "base with LoRA" if level.endswith(LORA) else "GGUF"
        )
    return top + max(0, len(levels) - 1) * PITCH


def _checked(rows: Sequence[Row], place: str) -> tuple[list[Row], list[tuple[str, str]]]:
    """The parity checks at a place, and a label (verdict, words) for each."""
    there = [row for row in rows if row["place"] == place]
    labels = []
    for row in there:
        words = row["group"].lower() + SOURCES.get(row["key"], "")
        nats = row["group"] == "Outputs" and is_number(row.get("figure"))
        labels.append((row["verdict"], f"{words} {figure_text(row['figure'])}" if nats else words))
    return there, labels


def _counted(rows: Sequence[Row], name: str = "") -> tuple[str, str]:
    """A label for several parity checks: how many of them passed."""
    passed = sum(row["verdict"] == "pass" for row in rows)
    return gravest(
        rows
    ), f"{name} {passed} of {len(rows)}".strip() if rows else f"{name} not measured".strip()
