"""The parity page's chart: the divergence at each hand-over against its limit, as inline SVG."""

import math
from collections.abc import Callable

from pipeline.core.checks import figure_text
from pipeline.pages.formats import is_number
from pipeline.pages.parity_summary import MARKS, ParityChecks, grouped
from pipeline.pages.svg import short, svg, text
from pipeline.stages.parity.drawings import KINDS, Row

# in units of the viewBox: names end left of AXIS, the scale ends at END, the figures stand behind it
CHART, AXIS, END, LINE, HEAD = 940.0, 404.0, 820.0, 26.0, 8.0


def divergences(checks: ParityChecks) -> str:
    """Mean KL divergence at each hand-over whose outputs were compared, and its limit, on a logarithmic
    scale; SVG, "" where all are 0.
    """
    rows = [row for row in grouped(checks).get("Outputs", ()) if is_number(row.get("figure"))]
    positive = [
        float(value) for row in rows for value in (row["figure"], row.get("limit")) if value and value > 0
    ]
    if not positive:
        return ""
    low, high = math.floor(math.log10(min(positive)) - 0.2), math.ceil(math.log10(max(positive)) + 0.1)

    def x(value: float) -> float:
        return AXIS + (END - AXIS) * ((math.log10(value) - low) / (high - low) if value > 0 else 0.0)

    bottom = HEAD + len(rows) * LINE
    parts = []
    for power in range(low, high + 1, max(1, -(-(high - low) // 8))):
        at = short(x(10.0**power))
        parts.append(f'<line class="chart-grid" x1="{at}" x2="{at}" y1="4" y2="{short(bottom)}"/>')
        parts.append(text(x(10.0**power), bottom + 17, f"{10.0**power:g}", "chain-quiet", anchor="middle"))
    parts.append(text(END + 16, bottom + 17, "nats", "chain-quiet"))
    for number, row in enumerate(rows):
        parts += _divergence(row, HEAD + (number + 0.5) * LINE, x)
    description = "; ".join(
        (
            f"{row['title']} {figure_text(row['figure'])}, limit {figure_text(row.get('limit'))}, "
            f"{row['verdict']}"
        )
        for row in rows
    )
    return svg(
        "divergences",
        "chart",
        (CHART, bottom + 26),
        "Mean KL divergence at each hand-over",
        description + ".",
        parts,
    )


def _divergence(row: Row, y: float, x: Callable[[float], float]) -> list[str]:
    """One line of the chart: name, way from the left edge, figure, and the limit as an upright stroke."""
    kind, end = KINDS[row["verdict"]], short(x(row["figure"]))
    parts = [
        text(AXIS - 12, y + 4, row["title"], "chain-words", anchor="end", longest=56),
        f'<line class="{kind} kld-line" x1="{short(AXIS)}" x2="{end}" y1="{short(y)}" y2="{short(y)}"/>',
        f'<circle class="{kind} dot" cx="{end}" cy="{short(y)}" r="4.5"/>',
        text(END + 16, y + 4, f"{MARKS[row['verdict']]} {figure_text(row['figure'])}", f"{kind} label"),
    ]
    if row.get("limit"):
        at = short(x(row["limit"]))
        limit = f"<title>limit {figure_text(row['limit'])}</title>"
        parts.append(
            f'<line class="chart-limit" x1="{at}" x2="{at}" y1="{short(y - 9)}" '
            f'y2="{short(y + 9)}">{limit}</line>'
        )
    return parts
