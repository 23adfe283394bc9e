"""Section of the report on the strategies to ship: each strategy's size, score, divergence and speed over
seeds, and the recommended one, from `reports/strategies.json`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.config.strategies import STRATEGIES
from pipeline.pages.formats import points, signed

VERDICTS = {
    "better": "▲ better, more than noise",
    "worse": "▼ worse, more than noise",
    "noise": "○ within the noise",
}


def strategies_values(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the section's values from `reports/strategies.json`."""
    levels = summary["levels"]
    reference = summary["reference"]
    return {
        **summary,
        "levels": [level_values(level, levels[level], reference) for level in sorted(levels)],
        "few": len(summary["seeds"]) < 3,
    }


def level_values(
    level: str, level_summary: Mapping[str, Any], reference: Mapping[str, Any]
) -> dict[str, Any]:
    """Return one level: a row for each strategy, the recommended one and why, and the drawing."""
    measured = [strategy for strategy in STRATEGIES if strategy in level_summary["strategies"]]

    def from_first(key: str) -> dict[str, Any]:
        return {row["second"]: row for row in level_summary[key] if row["first"] == measured[0]}

    against = from_first("differences")
    perfect = from_first("perfect_differences")
    rows = [
        {
            "strategy": strategy,
            "chosen": strategy == level_summary["recommended"],
            **level_summary["strategies"][strategy],
            "difference": difference_cell(against.get(strategy)),
            "perfect_difference": difference_cell(perfect.get(strategy)),
            "general_change": difference_cell(level_summary["strategies"][strategy]["general_change"]),
        }
        for strategy in measured
    ]
    return {**level_summary, "level": level, "rows": rows, "drawn": strategies_plot(level, rows, reference)}


def difference_cell(difference: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the difference from the first strategy or the untuned base with verdict; None without one."""
    if difference is None:
        return None
    if not difference["measurable"]:
        verdict = "noise"
    elif difference["points"] > 0:
        verdict = "better"
    else:
        verdict = "worse"
    return {
        **difference,
        "verdict": verdict,
        "words": VERDICTS[verdict],
        "interval": f"{signed(difference['low'])} to {signed(difference['high'])}",
    }


def strategies_plot(level: str, rows: Sequence[Mapping[str, Any]], reference: Mapping[str, Any]) -> str:
    """Draw each strategy's score (SVG) on its 95 % interval with its seeds'; the 16-bit model's is a line."""
    from pipeline.pages.plots import ACCENT, INK, MUTED, axes_of, name_rows, put_interval, svg_of

    figure, axes = axes_of("score, points", "", (7.6, 0.95 + 0.42 * len(rows)), grid="x")
    axes.axvline(100 * reference["score"], color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
    for place, row in enumerate(rows):
        value, low, high = (100 * row[key] for key in ("score", "score_low", "score_high"))
        seeds = [100 * figures["score"] for figures in row["by_seed"]]
        axes.plot(seeds, [place + 0.22] * len(seeds), linestyle="none", marker="|", markersize=7, color=MUTED)
        color, marker = (ACCENT, "D") if row["chosen"] else (INK, "o")
        put_interval(axes, place, value, (low, high), color, marker)
    name_rows(axes, [row["title"] for row in rows])
    words = "; ".join(
        f"{row['title']} {points(row['score'])} ({points(row['score_low'])} to {points(row['score_high'])})"
        for row in rows
    )
    return svg_of(
        figure,
        f"strategies-{level.lower().replace('_', '-')}",
        f"Strategies to ship {level}",
        f"Score in points with 95 % interval by strategy: {words}. Merged model in {reference['level']}: "
        f"{points(reference['score'])}.",
    )
