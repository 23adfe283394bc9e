"""The data page's drawings: rows as a flow (Sankey diagram), counts as bars.

One input always gives the same bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from pipeline.pages.plots import ACCENT, GOOD, INK, LINE, MUTED, WARM, axes_of, canvas, cut, svg_of

if TYPE_CHECKING:
    from markupsafe import Markup

# Positions of the flow, in points: names end at LEFT, branches end at BRANCH, their words begin at WORDS.
LEFT, WIDTH, BRANCH, WORDS, RIGHT = 132, 170, 350, 360, 700
TOP, END, FAN = 28.0, 30.0, 56.0  # heights above the stream, of its last piece, and of the split below it
THIN = 1.5  # A single row among a million must be visible.
LABELED = 12  # most bars with room for their counts
Point = tuple[float, float]


@dataclass(frozen=True)
class Step:
    """Effect of a rule: it removed `lost` rows or `added` some (neither: it changed some). `words` and,
    smaller, `more` describe it.
    """

    name: str
    rows_in: int
    lost: int = 0
    added: int = 0
    words: str = ""
    more: str = ""

    @property
    def rows_out(self) -> int:
        """Rows that reach the next step."""
        return self.rows_in - self.lost + self.added

    @property
    def moved(self) -> int:
        """Rows that leave the stream or join it."""
        return self.lost or self.added


def flow(
    description: str, ends: tuple[str, str], steps: Sequence[Step], splits: Mapping[str, int]
) -> "Markup":
    """Return a stream from top to bottom, as wide as it has rows. Rows that a step removes branch off to the
    right; at the end it parts into `splits`.

    `ends` are the words at its two ends. Returns SVG.
    """
    unit = WIDTH / max(1, sum(splits.values()), *(max(step.rows_in, step.rows_out) for step in steps))
    heights = [20 + max(step.moved * unit, 26) if step.moved else 30 for step in steps]
    *tops, bottom = accumulate(heights, initial=TOP)
    figure, axes = canvas(RIGHT, bottom + END + FAN + 44)
    axes.text(LEFT, 16, ends[0], color=INK, fontsize=15, fontweight="bold")
    axes.text(LEFT - 12, bottom + 26, ends[1], color=INK, fontsize=15, fontweight="bold", ha="right")
    edge = []  # the stream's right edge, from top to bottom
    for step, top, height in zip(steps, tops, heights, strict=True):
        # Lost rows leave at the top of their step, added ones join at its bottom.
        edge.append((step.rows_in, top))
        edge.append((step.rows_out, top) if step.lost else (step.rows_in, top + height))
        _step(axes, step, unit, top, top + height)
    rows = steps[-1].rows_out if steps else sum(splits.values())
    edge += [(rows, bottom), (rows, bottom + END)]
    x = [LEFT + max(rows * unit, THIN) for rows, _ in edge]
    y = [place for _, place in edge]
    stream = axes.fill([LEFT, *x, LEFT], [y[0], *y, y[-1]], color=ACCENT, alpha=0.7, linewidth=0)
    stream[0].set_gid("stream")
    _fan(axes, splits, unit, bottom + END)
    return svg_of(figure, "flow", "What became of the rows", description)


def bars(
    name: str,
    title: str,
    description: str,
    items: Sequence[tuple[str, int]],
    *,
    edges: bool = False,
    marks: Sequence[tuple[str, float]] = (),
) -> "Markup | str":
    """Return a bar for each (label, count). `edges`: a label is at its bar's left edge, as in a histogram.

    `marks` are (label, place) of vertical lines, a place counted in bars from the left. Returns SVG, ""
    without items.
    """
    if not items:
        return ""
    figure, axes = axes_of("", "", (6.4, 2.4))
    places = range(len(items))
    top = max(1, *(count for _, count in items))
    side = "left" if edges else "center"
    width = 0.96 if edges else 0.8
    least = top / 100  # A single row among a million must be visible.
    heights = [max(count, least) if count else 0 for _, count in items]
    drawn = axes.bar(places, heights, width, align="edge" if edges else "center", color=ACCENT)
    for place, bar in enumerate(drawn):
        bar.set_gid(f"tip-{place}")
    if len(items) <= LABELED:
        axes.bar_label(drawn, [f"{count:,}" for _, count in items], padding=3, color=INK)
        axes.yaxis.set_visible(False)
    else:
        axes.yaxis.get_major_locator().set_params(nbins=5, integer=True, prune="upper")
        axes.yaxis.set_major_formatter("{x:,.0f}")
    label_step = -(-len(items) // LABELED)
    axes.set_xticks(places[::label_step], [label for label, _ in items[::label_step]], ha=side)
    axes.margins(x=0.01)
    axes.set_ylim(0, top * (1.1 + 0.12 * len(marks)))
    for row, (label, mark) in enumerate(marks):
        late = mark > 0.75 * len(items)
        axes.axvline(mark, ymax=1 - 0.1 * row, color=WARM, linewidth=1.3, linestyle=(0, (3, 2)))
        axes.annotate(
            label,
            (mark, 1 - 0.1 * row),
            xycoords=axes.get_xaxis_transform(),
            xytext=(-4 if late else 4, 0),
            textcoords="offset points",
            ha="right" if late else "left",
            va="top",
            color=WARM,
            fontweight="bold",
        )
    return svg_of(figure, name, title, description, [f"{label}: {count:,}" for label, count in items])


def histogram(
    name: str,
    title: str,
    bins: Sequence[Mapping[str, Any]],
    forms: tuple[str, str] = (",", ","),
    marks: Sequence[tuple[str, float]] = (),
) -> "Markup | str":
    """Return `bars` of bins {"from", "to", "rows"}; `forms` are the formats of a bin's ends, in the
    description and as a label.
    """
    form, label = forms
    description = "; ".join(
        f"{bin['from']:{form}} to {bin['to']:{form}}: {bin['rows']:,}" for bin in bins if bin["rows"]
    )
    items = [(f"{bin['from']:{label}}", bin["rows"]) for bin in bins]
    return bars(name, title, description, items, edges=True, marks=marks)


def _step(axes: Any, step: Step, unit: float, top: float, bottom: float) -> None:
    """Draw one step's branch between `top` and `bottom`, its name on the left, its effect on the right."""
    y = (top + bottom + 8) / 2 if step.moved else top + 15
    quiet = not step.moved
    if quiet:  # The step only changed some rows: a thin line to a note.
        axes.plot([LEFT + step.rows_in * unit + 6, WORDS - 8], [y, y], color=LINE, linewidth=1)
    else:
        thick = max(step.moved * unit, THIN)
        inner = LEFT + min(step.rows_in, step.rows_out) * unit
        # The inner side of a branch that leaves turns below, of one that joins above.
        if step.lost:
            turn = top
            side = thick / 2
            color = WARM
        else:
            turn = bottom
            side = -thick / 2
            color = GOOD
        outer = inner + thick
        outside = [(outer, turn), (outer, y - side), (BRANCH, y - side)]
        inside = [(BRANCH, y + side), (inner, y + side), (inner, turn)]
        _ribbon(axes, outside, inside, color, 0.75)
    looks: dict[str, Any] = {"color": INK, "fontsize": 13, "fontweight": "bold"}
    if quiet:
        looks = {"color": MUTED, "fontsize": 12}
    axes.text(LEFT - 12, y + 4, cut(step.name, 20), ha="right", **looks)
    axes.text(WORDS, y + (-3 if step.more else 4), cut(step.words, 52), **looks)
    axes.text(WORDS, y + 13, cut(step.more, 52), color=MUTED, fontsize=12)


def _fan(axes: Any, splits: Mapping[str, int], unit: float, top: float) -> None:
    """Draw the stream's end, parted into the splits."""
    start = place = float(LEFT)
    bottom = top + FAN
    middle = top + FAN / 2
    for name, rows in splits.items():
        thick = max(rows * unit, THIN if rows else 0.0)
        left = [(start, top), (start, middle), (place, middle), (place, bottom)]
        right = [(x + thick, y) for x, y in reversed(left)]
        if rows:
            _ribbon(axes, left, right, ACCENT, 0.7 if name == "train" else 0.45)
        axes.text(place, bottom + 18, f"{rows:,}", color=INK, fontsize=13, fontweight="bold")
        axes.text(place, bottom + 34, name, color=MUTED, fontsize=12)
        start += rows * unit
        place = max(place + thick + 36, place + 96)


def _ribbon(axes: Any, there: Sequence[Point], back: Sequence[Point], color: str, alpha: float) -> None:
    """Draw the area between two Bézier curves, of three or four points each."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    curve = [{3: Path.CURVE3, 4: Path.CURVE4}[len(there)]] * (len(there) - 1)
    path = Path([*there, *back], [Path.MOVETO, *curve, Path.LINETO, *curve])
    axes.add_patch(PathPatch(path, facecolor=color, alpha=alpha, linewidth=0))
