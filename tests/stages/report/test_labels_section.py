"""The report of a classification: what always giving the commonest label scores stands beside every model,
and a model that is not above it is not praised.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from html_page import lines_of, section_of
from report_inputs import MODELS, answers, demo_params, evaluation, write_evaluation, write_inputs

from pipeline.metrics.asking import score_answers
from pipeline.metrics.commonest import commonest_points
from pipeline.stages.report import stage

# 48 held-out rows: always saying "technical" is right in 21 of them, 43.8 points.
LABELS = ["technical"] * 21 + ["shipping"] * 12 + ["billing"] * 9 + ["returns"] * 6


def two_labels(number: int) -> str:
    """A model that knows two of four labels: 25 of 48 right, 52.1 points."""
    return "shipping" if 20 <= number < 26 else "technical"


def one_label(number: int) -> str:
    return "technical"


def nearly_all(number: int) -> str:
    return LABELS[number] if number else "Technical."


def report_of(
    root: Path,
    answered: Callable[[int], str],
    labels: Sequence[str] = LABELS,
    calls: Sequence[int] = (),
) -> str:
    """The page of models that answer so; the untuned ones answer with nothing of use. The rows of the numbers
    `calls` expect a call of a tool, with the label beside it.
    """
    write_inputs(root)
    for model in MODELS:
        rows: list[dict[str, Any]] = answers(model)[:48]
        for number, row in enumerate(rows):
            answer = "?" if model.startswith("base-") else answered(number)
            row |= {"reference": labels[number], "answer": answer, "refused": False, "stopped": True}
            if number in calls:
                row |= {"expected_calls": [{"name": "find", "arguments": {}}], "calls": []}
        figures = evaluation(model)
        figures["task"] |= score_answers(rows, ["exact_match"])
        figures["task"]["commonest"] = commonest_points(rows, ["exact_match"], root)
        write_evaluation(root, model, figures, rows)
    stage.main(demo_params(), root)
    return (root / "reports/index.html").read_text(encoding="utf-8")


def rows_of(page: str) -> list[list[str]]:
    """The cells of each row of the tables on the task."""
    task = lines_of(section_of(page, "task")).splitlines()
    return [[cell.strip() for cell in line.split("|")] for line in task]


@pytest.mark.parametrize(
    ("answered", "recommended", "gate"),
    [
        (one_label, None, "fail"),
        (two_labels, "Q4_K_M", "not decided"),
        (nearly_all, "Q4_K_M", "pass"),
    ],
)
def test_the_headline_holds_a_model_against_the_commonest_label(
    answered: Callable[[int], str], recommended: str | None, gate: str, tmp_path: Path, plots_once: None
) -> None:
    page = report_of(tmp_path, answered)
    figures = json.loads((tmp_path / "reports/quants.json").read_text(encoding="utf-8"))
    assert (figures["recommended"], figures["Q4_K_M"]["gate"]) == (recommended, gate)
    headline = page[page.index("<h1>") : page.index("</h1>")]
    assert ("Q4_K_M" in headline) == (recommended is not None)
    assert ("technical" in headline) == (gate != "pass")


def test_the_line_stands_beside_every_model_on_page_terminal_and_card(
    tmp_path: Path, plots_once: None, capsys: pytest.CaptureFixture[str]
) -> None:
    page = report_of(tmp_path, two_labels)
    line = "always saying “technical”"
    assert any(row.startswith(line) and "43.8" in row for row in lines_of(page).splitlines())
    printed = [row.strip() for row in capsys.readouterr().out.splitlines()]
    assert any(row.startswith(line) and "43.8" in row for row in printed)
    card = (tmp_path / "reports/card.md").read_text(encoding="utf-8")
    assert any(row.startswith(f"| {line}") and "43.8" in row for row in card.splitlines())


def test_points_of_each_label_and_what_was_said_in_place_of_what(tmp_path: Path, plots_once: None) -> None:
    cells = rows_of(report_of(tmp_path, nearly_all))
    assert ["technical", "21", "0.0", "0.0", "0.0", "95.2", "95.2", "95.2"] in cells
    assert ["technical", "20", "0", "0", "0", "1"] in cells  # "Technical." is another text
    assert ["returns", "0", "0", "0", "6", "0"] in cells


def test_rows_that_expect_a_call_of_a_tool_are_no_rows_of_the_label_beside_it(
    tmp_path: Path, plots_once: None
) -> None:
    page = report_of(tmp_path, nearly_all, calls=range(10))
    cells = rows_of(page)
    assert ["technical", "11", "0.0", "0.0", "0.0", "100.0", "100.0", "100.0"] in cells
    assert ["technical", "0", "11", "0", "0", "0"] in cells  # after 12 of "shipping"


def test_a_label_that_is_never_right_is_told_in_words(
    tmp_path: Path, plots_once: None, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = [*LABELS[:-2], "praise", "praise"]  # too few rows of "praise" to tell
    page = lines_of(report_of(tmp_path, two_labels, labels))
    told = "Q4_K_M got none of 9 “billing” and none of 4 “returns” right."
    assert told in page and told in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("answered", [LABELS.__getitem__, lambda number: "?"])
def test_labels_are_not_told_where_each_or_none_is_right(
    answered: Callable[[int], str], tmp_path: Path, plots_once: None
) -> None:
    assert "got none of" not in lines_of(report_of(tmp_path, answered))


def test_labels_that_begin_alike_have_names_of_their_own(tmp_path: Path, plots_once: None) -> None:
    begin = "The customer asks for the return of an article that "
    names = {"technical": f"{begin}is broken", "shipping": f"{begin}is lost", "billing": begin.strip()}
    labels = [names.get(label, label) for label in LABELS]
    cells = rows_of(report_of(tmp_path, labels.__getitem__, labels))
    rows = {row[0] for row in cells if row[1:2] in (["21"], ["12"], ["9"])}
    heads = [row for row in cells if row[-1] == "another"]
    assert len(rows) == 3
    assert heads and all(len(set(row)) == len(row) and rows <= set(row) for row in heads)
    assert "broken" in " ".join(rows) and "lost" in " ".join(rows)


def test_a_report_of_answers_that_are_not_repeated_has_no_such_table(
    tmp_path: Path, plots_once: None
) -> None:
    write_inputs(tmp_path)
    stage.main(demo_params(), tmp_path)
    assert 'id="labels"' not in (tmp_path / "reports/index.html").read_text(encoding="utf-8")
