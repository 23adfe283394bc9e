"""strategies_section on measured strategies, those of tests/extras/compare/measured: the page shows what was
measured of each, marks the one to take, and says how to measure where nothing was.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest
from golden import Golden
from html_page import Page, lines_of

from pipeline.config.strategies import MERGED_16, STRATEGIES, Job
from pipeline.core.errors import DataError
from pipeline.core.places import PROJECT
from pipeline.extras.compare.summary import summarize
from pipeline.pages.parity_summary import code
from pipeline.pages.templating import fill
from pipeline.stages.report.strategies_section import strategies_values

Figures = list[dict[str, Any]]
FIRST, SECOND = (f"tests/extras/compare/measured/{name}.jsonl" for name in ("adapters", "scales"))


def measured(file: str = FIRST, level: str = "Q4_0", seeds: tuple[int, ...] = (42, 43, 44)) -> Figures:
    """The figures of the 16-bit merge and of each strategy at one level, for these seeds."""
    lines = (PROJECT / file).read_text(encoding="utf-8").splitlines()
    found = [{"measuring_seconds": 60.0} | json.loads(line) for line in lines]  # older ones lack it
    return [one for one in found if one["level"] in ("F16", level) and one["seed"] in seeds]


def summary(figures: Figures, level: str = "Q4_0") -> dict[str, Any]:
    """As the file has it."""
    seeds = sorted({one["seed"] for one in figures})
    found = summarize(figures, seeds=seeds, levels=[level], sixteen="F16", scorer="json_fields")
    return dict(json.loads(json.dumps(found, sort_keys=True, allow_nan=False)))


@pytest.fixture(scope="module")
def usual() -> dict[str, Any]:
    """Four strategies on three seeds at Q4_0."""
    return summary(measured())


@pytest.fixture(scope="module")
def with_general() -> dict[str, Any]:
    """Three that learn inside the level and the 16-bit merge, on one seed, with the general ability."""
    return summary(measured(SECOND, seeds=(42,)))


def html(found: dict[str, Any] | None) -> str:
    values = strategies_values(found) if found else None
    return fill("index/strategies.html.jinja", strategies=values, code=code)


@pytest.mark.parametrize("name", ["usual", "with_general"])
def test_every_strategy_has_its_figures_and_the_best_is_marked(
    name: str, request: pytest.FixtureRequest, snapshot: Any
) -> None:
    found = request.getfixturevalue(name)
    shown = html(found)
    assert lines_of(shown) == snapshot(extension_class=Golden)
    tags = Page(shown).tags
    assert sum(tag == "tr" and attributes.get("class") == "chosen" for tag, attributes in tags) == 1
    assert any(tag == "svg" for tag, _ in tags)


def test_where_nothing_was_measured_the_page_says_how() -> None:
    shown = Page(html(None))
    assert "not measured" in shown.text and "snakemake compare" in shown.text
    assert not any(tag in ("table", "svg") for tag, _ in shown.tags)


def test_speeds_of_different_machines_are_called_so(usual: dict[str, Any]) -> None:
    figures = measured(seeds=(42,))
    figures[0]["machine"] = "Demo"
    found = summary(figures)
    assert found["machines"] == [figures[1]["machine"], "Demo"]
    assert "on different machines (AMD" in html(found)
    assert "different machines" not in html(usual)


def test_where_no_strategy_is_better_disk_decides() -> None:
    figures = measured(seeds=(42,))
    for one in figures:
        one["points"] = dict.fromkeys(one["points"], 0.5)
    level = summary(figures)["levels"]["Q4_0"]
    assert not level["decided"]
    assert not any(one["measurable"] for one in level["differences"])


def test_differences_are_from_the_first_strategy_measured(usual: dict[str, Any]) -> None:
    rows = strategies_values(usual)["levels"][0]["rows"]
    assert [row["strategy"] for row in rows] == list(STRATEGIES)[:4]
    assert [(row["difference"] or {}).get("verdict") for row in rows] == [None, "noise", "better", "better"]
    others = [one for one in measured() if one["strategy"] != MERGED_16 or one["level"] == "F16"]
    rows = strategies_values(summary(others))["levels"][0]["rows"]
    assert [row["difference"] is None for row in rows] == [True, False, False]


def test_a_row_that_a_judge_missed_once_counts_nowhere() -> None:
    figures = measured(seeds=(42,))
    figures[3]["points"][next(iter(figures[3]["points"]))] = None
    assert summary(figures)["rows"] == 199


def no_marks(figures: Figures) -> None:
    for one in figures:
        one["points"] = dict.fromkeys(one["points"])


def other_questions(figures: Figures) -> None:
    figures[0]["general"]["sha256"] = "1" * 64


@pytest.mark.parametrize(
    ("change", "error"), [(no_marks, "Q-COMPARE-004"), (other_questions, "Q-COMPARE-009")]
)
def test_what_can_not_be_compared_is_refused(change: Callable[[Figures], None], error: str) -> None:
    figures = measured(SECOND, seeds=(42,))
    change(figures)
    with pytest.raises(DataError, match=error):
        summary(figures)


def test_a_training_that_several_strategies_share_is_counted_once() -> None:
    for file, trainings in ((FIRST, 2), (SECOND, 5)):
        figures, trained = measured(file, seeds=(42,)), {}
        for one in figures:
            own = Job(one["strategy"], one["level"], one["seed"]).training
            trained |= one["training"].get("parts") or {own: one["training"]["seconds"]}
        assert len(trained) == trainings
        measuring = sum(one["measuring_seconds"] for one in figures)
        assert summary(figures)["seconds"] == pytest.approx(sum(trained.values()) + measuring, abs=0.1)
