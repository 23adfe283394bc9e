"""Prints the strategies to ship from figures that stage compare saved, by its own statistics; strategies that
were not measured are left out.

    python benchmarks/strategies_table.py benchmarks/results/2026-11-21-strategies.jsonl
    python benchmarks/strategies_table.py reports/compare --save FILE.jsonl  # a project's, a line each
    python benchmarks/strategies_table.py FILE.jsonl --draw docs/strategies.svg  # the report's drawings

Of several files the last one counts where two have the same strategy, level and seed.
"""

import argparse
import json
import sys
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline.config.strategies import MERGED_16, STRATEGIES, title
from pipeline.core.text import plural
from pipeline.stages.compare.statistics import Scores, difference, mean_of
from pipeline.stages.compare.summary import all_right, matrix, mine, scored_rows, summarize
from pipeline.stages.report.strategies_section import strategies_values

# the page's light colors, for a picture that stands alone
COLORS = {
    "--ink": "#1f2328",
    "--muted": "#5b6470",
    "--line": "#e2ded5",
    "--accent": "#1c5f7d",
    "--paper": "#fbfaf7",
}
WIDTH, MARGIN = 548, 12


def read(place: Path) -> list[dict[str, Any]]:
    """The figures of a folder of measurements or of a file of lines."""
    if place.is_dir():
        return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(place.glob("*.json"))]
    return [json.loads(line) for line in place.read_text(encoding="utf-8").splitlines()]


def shorter(figures: dict[str, Any]) -> dict[str, Any]:
    """Figures with the scores rounded to four places, which is what a row of a few fields has."""
    return figures | {
        "points": {
            row: score if score is None else round(score, 4) for row, score in figures["points"].items()
        }
    }


def show(figures: list[dict[str, Any]], seed: int = 42) -> None:
    """Print a line a strategy and level, and under each level the differences from its merged model."""
    rows, levels = scored_rows(figures), sorted({one["level"] for one in figures})
    print(f"{len(figures)} measurements, {len(rows)} rows\n")
    print(
        f"{'':<58}{'score':>7}{'95 %':>14}{'all right':>11}{'95 %':>14}{'KLD':>8}{'same':>7}{'general':>9}{'tok/s':>7}{'bare':>7}{'shipped':>9}{'disk':>7}"  # noqa: E501
    )
    for level in levels:
        points: dict[str, Scores] = {}
        for strategy in STRATEGIES:
            if not (
                seeds := sorted(
                    one["seed"] for one in figures if (one["level"], one["strategy"]) == (level, strategy)
                )
            ):
                continue
            own, points[strategy] = (
                mine(figures, level, strategy, seeds),
                matrix(figures, rows, level, strategy, seeds),
            )
            score, perfect = mean_of(points[strategy]), mean_of(all_right(points[strategy]))
            bare = [one["speed"]["bare"]["median"] for one in own if "bare" in one["speed"]]
            size, disk = (fmean(sum(one[key].values()) for one in own) / 1e6 for key in ("shipped", "disk"))
            print(
                f"{title(strategy, level) + ', ' + plural(len(seeds), 'seed'):<58}{100 * score.value:>7.1f}{span(score.low, score.high):>14}"  # noqa: E501
                f"{100 * perfect.value:>11.1f}{span(perfect.low, perfect.high):>14}{fmean(one['kld'] for one in own):>8.4f}"  # noqa: E501
                f"{100 * fmean(one['same_top'] for one in own):>7.1f}{known(own):>9}{median(one['speed']['shipped']['median'] for one in own):>7.1f}"  # noqa: E501
                f"{f'{median(bare):.1f}' if bare else '':>7}{size:>9.1f}{disk:>7.0f}"
            )
        for strategy in points:
            if (
                strategy != MERGED_16
                and MERGED_16 in points
                and points[strategy].shape == points[MERGED_16].shape
            ):
                found = [
                    difference(of(points[MERGED_16]), of(points[strategy]), seed)
                    for of in (np.asarray, all_right)
                ]
                words = (
                    f"{one.points:+.1f} ({one.low:+.1f} to {one.high:+.1f}), p {one.p_value:.4f}"
                    for one in found
                )
                print(f"    {title(strategy, level)}: score {next(words)}; all right {next(words)}")
        print()


def draw(figures: list[dict[str, Any]], seed: int = 42) -> str:
    """The report's drawing of each level below each other, as one SVG file; strategies that lack a seed are
    left out.
    """
    levels, seeds = (
        sorted({one["level"] for one in figures if one["strategy"] != MERGED_16}),
        sorted({one["seed"] for one in figures}),
    )
    sixteen = next(one["level"] for one in figures if one["level"] not in levels)
    # figures of 2026-11-21 have no times
    figures = [{"measuring_seconds": 0.0} | one for one in figures if complete(figures, one, seeds)]
    found = summarize(figures, seeds=seeds, levels=levels, sixteen=sixteen, scorer="json_fields", seed=seed)
    parts, top = [], MARGIN
    for level in strategies_values(found)["levels"]:
        drawn = str(level["drawn"])
        height = float(drawn.partition('viewBox="0 0 ')[2].partition('"')[0].split()[1])
        parts.append(
            drawn.replace("<svg", f'<svg x="{MARGIN}" y="{top}" width="{WIDTH}" height="{height}"', 1)
        )
        top += round(height) + MARGIN
    width, height = WIDTH + 2 * MARGIN, top
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}">'
    )
    picture = "\n".join(
        [opening, '<rect width="100%" height="100%" fill="var(--paper)"/>', *parts, "</svg>\n"]
    )
    for name, color in COLORS.items():
        picture = picture.replace(f"var({name})", color)
    return picture


def complete(figures: list[dict[str, Any]], one: dict[str, Any], seeds: list[int]) -> bool:
    """Whether the strategy of `one` was measured with every seed at its level."""
    own = {
        each["seed"]
        for each in figures
        if (each["strategy"], each["level"]) == (one["strategy"], one["level"])
    }
    return own == set(seeds)


def known(own: list[dict[str, Any]]) -> str:
    """General questions right, of 100; "" where they were not asked."""
    asked = [one["general"]["score"] for one in own if one.get("general")]
    return f"{100 * fmean(asked):.1f}" if asked else ""


def span(low: float, high: float) -> str:
    """An interval in points of 100."""
    return f"{100 * low:.1f}-{100 * high:.1f}"


def main() -> None:
    """Print the table, after saving the figures where that was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("figures", type=Path, nargs="+")
    parser.add_argument("--save", type=Path)
    parser.add_argument("--draw", type=Path)
    asked = parser.parse_args()
    read_all = [one for place in asked.figures for one in read(place)]
    figures = list({(one["strategy"], one["level"], one["seed"]): one for one in read_all}.values())
    if asked.save:
        asked.save.write_text("".join(json.dumps(shorter(one)) + "\n" for one in figures), encoding="utf-8")
    if asked.draw:
        asked.draw.write_text(draw(figures), encoding="utf-8")
    show(figures)


if __name__ == "__main__":
    main()
