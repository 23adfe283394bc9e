"""The data page's drawings as inline SVG, without a library: a flow (Sankey diagram) and bars.

Colours are classes of the page's style (`flow-…`, `bar-…`), so that light, dark and print follow the page; the same
input gives the same bytes. Every drawing has a title and a description; text in it is escaped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

# the flow, in units of its viewBox
LEFT, WIDTH, BRANCH, WORDS, RIGHT = 132, 170, 350, 360, 700  # names end at LEFT; branches end at BRANCH; their words begin at WORDS
THIN = 1.5  # a single row among a million is still to be seen
LETTERS = 52  # that fit between WORDS and RIGHT
# the bars
BARS_WIDTH, BARS_HEIGHT, LOW, HIGH = 560, 210, 178, 26
BARS_LEFT, BARS_RIGHT = 8, 552


@dataclass(frozen=True)
class Step:
    """One rule of the flow: rows in and out, those it took out (`lost`) and those it added; `words` and `reasons` stand at the branch."""

    name: str
    rows_in: int
    rows_out: int
    lost: int = 0
    added: int = 0
    words: str = ""
    reasons: str = ""


def flow(description: str, rows_in: str, rows_out: str, steps: Sequence[Step], splits: Mapping[str, int]) -> str:
    """A stream from top to bottom, as wide as it has rows; what a step takes out branches off to the right, at the end it parts into `splits`.

    `rows_in` and `rows_out` are the words at its two ends. Returns SVG.
    """
    unit = WIDTH / max(1, *(max(step.rows_in, step.rows_out) for step in steps), sum(splits.values()))
    parts = [_text(LEFT, 16, rows_in, "flow-end")]
    y = 28.0
    stays = (steps[0].rows_in if steps else sum(splits.values())) * unit
    for step in steps:
        y, stays = _step(parts, step, unit, y)
    parts.append(_rect(LEFT, y, stays, 22, "flow-stream"))
    parts.append(_text(LEFT - 12, y + 26, rows_out, "flow-end", anchor="end"))
    bottom = _fan(parts, splits, unit, y + 22)
    return _svg("flow", "flow", RIGHT, bottom, "What became of the rows", description, parts)


def bars(name: str, title: str, description: str, items: Sequence[tuple[str, int]], *,
         edges: bool = False, marks: Sequence[tuple[str, float]] = ()) -> str:  # fmt: skip
    """A bar for each (label, count). `edges`: a label stands at its bar's left edge, as in a histogram.

    `marks` are (label, place) of upright lines, a place counted in bars from the left. Returns SVG, "" without items.
    """
    if not items:
        return ""
    pitch = (BARS_RIGHT - BARS_LEFT) / len(items)
    top = max(1, *(count for _, count in items))
    inner = min(pitch * (0.96 if edges else 0.8), 64.0)
    every = max(1, -(-len(items) * 44 // (BARS_RIGHT - BARS_LEFT)))  # labels need 44 units each
    parts = [f'<line class="bar-line" x1="{BARS_LEFT}" x2="{BARS_RIGHT}" y1="{LOW}" y2="{LOW}"/>']
    for place, (label, count) in enumerate(items):
        x = BARS_LEFT + place * pitch + (0 if edges else (pitch - inner) / 2)
        height = (LOW - HIGH - (22 if marks else 0)) * count / top
        if count:
            height = max(height, THIN)
            words = f"<title>{escape(label)}: {count:,}</title>"
            parts.append(f'<rect class="bar" x="{_n(x)}" y="{_n(LOW - height)}" width="{_n(inner)}" height="{_n(height)}">{words}</rect>')
        if pitch >= 44:
            parts.append(_text(x + inner / 2, LOW - height - 5, f"{count:,}", "bar-count", anchor="middle"))
        if place % every == 0:
            parts.append(_text(x, LOW + 16, label, "bar-label") if edges else _text(x + inner / 2, LOW + 16, label, "bar-label", anchor="middle"))
    for row, (label, mark) in enumerate(marks):
        x = BARS_LEFT + min(max(mark, 0.0), len(items)) * pitch
        y = 14 + 15 * row
        parts.append(f'<line class="bar-mark" x1="{_n(x)}" x2="{_n(x)}" y1="{y + 4}" y2="{LOW}"/>')
        late = x > BARS_RIGHT - 130
        parts.append(_text(x - 4 if late else x + 4, y + 4, label, "bar-note", anchor="end" if late else "start"))
    return _svg(name, "bars", BARS_WIDTH, BARS_HEIGHT, title, description, parts)


def _step(parts: list[str], step: Step, unit: float, y: float) -> tuple[float, float]:
    """Draw one step from `y` down; gives where it ends and how wide the stream then is."""
    before, stays, after = step.rows_in * unit, (step.rows_in - step.lost) * unit, step.rows_out * unit
    if not step.lost and not step.added:  # it only changed rows: a short piece with a note
        parts.append(_rect(LEFT, y, before, 30, "flow-stream"))
        parts.append(f'<line class="flow-leader" x1="{_n(LEFT + before + 6)}" x2="{WORDS - 8}" y1="{_n(y + 15)}" y2="{_n(y + 15)}"/>')
        _words(parts, step, y + 15, quiet=True)
        return y + 30, after
    for rows, kind in ((step.lost, "flow-lost"), (step.added, "flow-added")):
        if not rows:
            continue
        thick = max(rows * unit, THIN)
        bottom = y + 14 + max(thick, 26)
        middle = y + 14 + max(thick, 26) / 2
        parts.append(_rect(LEFT, y, stays, bottom - y, "flow-stream"))
        high, low = middle - thick / 2, middle + thick / 2
        if kind == "flow-lost":  # turns right: starts at the stream's right part, on top
            inner, outer, edge = LEFT + stays, LEFT + stays + thick, y
            low, high = high, low  # the inner edge of the turn ends below
        else:  # comes in from the right and joins below
            inner, outer, edge = LEFT + stays, LEFT + stays + thick, bottom
        corner_outer = f"Q{_n(outer)} {_n(low)} {BRANCH} {_n(low)}"
        corner_inner = f"L{BRANCH} {_n(high)} Q{_n(inner)} {_n(high)} {_n(inner)} {_n(edge)}"
        parts.append(f'<path class="{kind}" d="M{_n(outer)} {_n(edge)} {corner_outer} {corner_inner} Z"/>')
        if kind == "flow-lost" or not step.lost:
            _words(parts, step, middle)
        y, stays = bottom, after if kind == "flow-added" else stays
    parts.append(_rect(LEFT, y, after, 6, "flow-stream"))
    return y + 6, after


def _words(parts: list[str], step: Step, y: float, *, quiet: bool = False) -> None:
    """The step's name on the left, what it did on the right."""
    parts.append(_text(LEFT - 12, y + 4, step.name, "flow-quiet" if quiet else "flow-name", anchor="end"))
    parts.append(_text(WORDS, y + (4 if quiet or not step.reasons else -3), step.words, "flow-quiet" if quiet else "flow-words"))
    if step.reasons and not quiet:
        parts.append(_text(WORDS, y + 13, step.reasons, "flow-quiet"))


def _fan(parts: list[str], splits: Mapping[str, int], unit: float, y: float) -> float:
    """The stream's end, parted into the splits; gives the drawing's height."""
    start, place, deep = float(LEFT), float(LEFT), 56
    for name, rows in splits.items():
        thick = max(rows * unit, THIN if rows else 0.0)
        middle = y + deep / 2
        down = f"C{_n(start)} {_n(middle)} {_n(place)} {_n(middle)} {_n(place)} {_n(y + deep)}"
        up = f"C{_n(place + thick)} {_n(middle)} {_n(start + thick)} {_n(middle)} {_n(start + thick)} {_n(y)}"
        if rows:
            parts.append(f'<path class="flow-{escape(name)}" d="M{_n(start)} {_n(y)} {down} L{_n(place + thick)} {_n(y + deep)} {up} Z"/>')
        parts.append(_text(place, y + deep + 18, f"{rows:,}", "flow-words"))
        parts.append(_text(place, y + deep + 34, name, "flow-quiet"))
        start += rows * unit
        place = max(place + thick + 36, place + 96)
    return y + deep + 44


def _svg(name: str, kind: str, width: float, height: float, title: str, description: str, parts: Sequence[str]) -> str:
    head = f'<svg class="drawing {kind}" viewBox="0 0 {_n(width)} {_n(height)}" role="img" aria-labelledby="{name}-title {name}-description">'
    words = f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-description">{escape(description)}</desc>'
    return "\n".join([head, words, *parts, "</svg>"])


def _rect(x: float, y: float, width: float, height: float, kind: str) -> str:
    # half a unit of overlap: no hairline between two pieces
    return f'<rect class="{kind}" x="{_n(x)}" y="{_n(y)}" width="{_n(max(width, THIN) if width else 0)}" height="{_n(height + 0.5)}"/>'


def _text(x: float, y: float, words: str, kind: str, *, anchor: str = "start") -> str:
    short = words if len(words) <= LETTERS else words[: LETTERS - 1].rstrip(" ,") + "…"
    return f'<text class="{kind}" x="{_n(x)}" y="{_n(y)}" text-anchor="{anchor}">{escape(short)}</text>'


def _n(value: float) -> str:
    """At most one decimal: 12, 12.5."""
    return f"{value:.1f}".removesuffix(".0")
