"""The data page's drawings as inline SVG, without a library: a flow (Sankey diagram) and bars.

Colors are classes of the page's style (`flow-…`, `bar-…`), so that light, dark and print follow the page; the
same input gives the same bytes. Every drawing has a title and a description; text in it is escaped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from pipeline.pages.svg import short, svg, text

# the flow, in units of its viewBox
LEFT, WIDTH, BRANCH, WORDS, RIGHT = (
    132,
    170,
    350,
    360,
    700,
)  # names end at LEFT; branches end at BRANCH; their words begin at WORDS
THIN = 1.5  # a single row among a million is still to be seen
# the bars
BARS_WIDTH, BARS_HEIGHT, LOW, HIGH = 560, 210, 178, 26
BARS_LEFT, BARS_RIGHT = 8, 552


@dataclass(frozen=True)
class Step:
    """What a rule did: it took `lost` rows out or put `added` ones in (neither: it changed some); `words`
    and, smaller, `more` say so.
    """

    name: str
    rows_in: int
    lost: int = 0
    added: int = 0
    words: str = ""
    more: str = ""

    @property
    def rows_out(self) -> int:
        """Rows that go on to the next step."""
        return self.rows_in - self.lost + self.added


def flow(description: str, ends: tuple[str, str], steps: Sequence[Step], splits: Mapping[str, int]) -> str:
    """A stream from top to bottom, as wide as it has rows; what a step takes out branches off to the right,
    at the end it parts into `splits`.

    `ends` are the words at its two ends. Returns SVG.
    """
    unit = WIDTH / max(1, sum(splits.values()), *(max(step.rows_in, step.rows_out) for step in steps))
    parts, y = [text(LEFT, 16, ends[0], "flow-end")], 28.0
    edge = []  # the stream's right edge, from top to bottom
    for step in steps:
        edge.append((LEFT + step.rows_in * unit, y))
        y = _step(parts, edge, step, unit, y)
    wide = (steps[-1].rows_out if steps else sum(splits.values())) * unit
    edge += [(LEFT + wide, y), (LEFT + wide, y + 30)]
    outline = " L".join(f"{short(max(x, LEFT + THIN))} {short(at)}" for x, at in edge)
    parts.append(f'<path class="flow-stream" d="M{LEFT} 28 L{outline} L{LEFT} {short(y + 30)} Z"/>')
    parts.append(text(LEFT - 12, y + 26, ends[1], "flow-end", anchor="end"))
    return svg(
        "flow",
        "flow",
        (RIGHT, _fan(parts, splits, unit, y + 29.5)),
        "What became of the rows",
        description,
        parts,
    )


def bars(
    name: str,
    title: str,
    description: str,
    items: Sequence[tuple[str, int]],
    *,
    edges: bool = False,
    marks: Sequence[tuple[str, float]] = (),
) -> str:
    """A bar for each (label, count). `edges`: a label stands at its bar's left edge, as in a histogram.

    `marks` are (label, place) of upright lines, a place counted in bars from the left. Returns SVG, ""
    without items.
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
            parts.append(
                f'<rect class="bar" x="{short(x)}" y="{short(LOW - height)}" width="{short(inner)}" '
                f'height="{short(height)}">{words}</rect>'
            )
        if pitch >= 44:
            parts.append(text(x + inner / 2, LOW - height - 5, f"{count:,}", "bar-count", anchor="middle"))
        if place % every == 0:
            parts.append(
                text(x, LOW + 16, label, "bar-label")
                if edges
                else text(x + inner / 2, LOW + 16, label, "bar-label", anchor="middle")
            )
    for row, (label, mark) in enumerate(marks):
        x = BARS_LEFT + min(max(mark, 0.0), len(items)) * pitch
        y = 14 + 15 * row
        parts.append(f'<line class="bar-mark" x1="{short(x)}" x2="{short(x)}" y1="{y + 4}" y2="{LOW}"/>')
        late = x > BARS_RIGHT - 130
        parts.append(
            text(x - 4 if late else x + 4, y + 4, label, "bar-note", anchor="end" if late else "start")
        )
    return svg(name, "bars", (BARS_WIDTH, BARS_HEIGHT), title, description, parts)


def _step(parts: list[str], edge: list[tuple[float, float]], step: Step, unit: float, y: float) -> float:
    """Draw one step's branch and words from `y` down, add to the stream's right edge; gives where the step
    ends.
    """
    rows = step.lost or step.added
    if not rows:  # it only changed some: a short piece with a note
        start = LEFT + step.rows_in * unit + 6
        parts.append(
            f'<line class="flow-leader" x1="{short(start)}" x2="{WORDS - 8}" y1="{short(y + 15)}" '
            f'y2="{short(y + 15)}"/>'
        )
        _sentence(parts, step, y + 15, quiet=True)
        return y + 30
    thick = max(rows * unit, THIN)
    middle = y + 14 + max(thick, 26) / 2
    bottom = y + 14 + max(thick, 26) + 6
    inner = LEFT + min(step.rows_in, step.rows_out) * unit
    # lost rows leave at the top and turn right: the inner side of the turn ends below; added ones come in and
    # join at the bottom
    (turn, outer_y, inner_y), kind = (
        ((y, -thick / 2, thick / 2), "flow-lost")
        if step.lost
        else ((bottom, thick / 2, -thick / 2), "flow-added")
    )
    outer, outer_y, inner_y = inner + thick, middle + outer_y, middle + inner_y
    there = f"M{short(outer)} {short(turn)} Q{short(outer)} {short(outer_y)} {BRANCH} {short(outer_y)}"
    back = f"L{BRANCH} {short(inner_y)} Q{short(inner)} {short(inner_y)} {short(inner)} {short(turn)}"
    parts.append(f'<path class="{kind}" d="{there} {back} Z"/>')
    edge += [(LEFT + step.rows_out * unit, y)] if step.lost else [(LEFT + step.rows_in * unit, bottom)]
    _sentence(parts, step, middle)
    return bottom


def _sentence(parts: list[str], step: Step, y: float, *, quiet: bool = False) -> None:
    """The step's name on the left, what it did on the right."""
    parts.append(text(LEFT - 12, y + 4, step.name, "flow-quiet" if quiet else "flow-name", anchor="end"))
    parts.append(
        text(WORDS, y + (-3 if step.more else 4), step.words, "flow-quiet" if quiet else "flow-words")
    )
    if step.more:
        parts.append(text(WORDS, y + 13, step.more, "flow-quiet"))


def _fan(parts: list[str], splits: Mapping[str, int], unit: float, y: float) -> float:
    """The stream's end, parted into the splits; gives the drawing's height."""
    start, place, deep = float(LEFT), float(LEFT), 56
    for name, rows in splits.items():
        thick = max(rows * unit, THIN if rows else 0.0)
        middle = y + deep / 2
        down = (
            f"C{short(start)} {short(middle)} {short(place)} {short(middle)} {short(place)} {short(y + deep)}"
        )
        up = (
            f"C{short(place + thick)} {short(middle)} {short(start + thick)} {short(middle)} "
            f"{short(start + thick)} {short(y)}"
        )
        if rows:
            parts.append(
                f'<path class="flow-{escape(name)}" d="M{short(start)} {short(y)} {down} '
                f'L{short(place + thick)} {short(y + deep)} {up} Z"/>'
            )
        parts.append(text(place, y + deep + 18, f"{rows:,}", "flow-words"))
        parts.append(text(place, y + deep + 34, name, "flow-quiet"))
        start += rows * unit
        place = max(place + thick + 36, place + 96)
    return y + deep + 44
