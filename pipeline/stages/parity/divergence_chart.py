"""The parity page's chart: the divergence at each hand-over against its limit."""

import math

from pipeline.core.checks import figure_text
from pipeline.pages.formats import is_number
from pipeline.pages.parity_summary import MARKS, ParityChecks, grouped
from pipeline.pages.plots import INK, axes_of, cut, svg_of
from pipeline.stages.parity.drawings import COLORS


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
