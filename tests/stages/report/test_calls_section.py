"""The report's section on calls of tools: figures by model, rows side by side, and nothing in arguments
leaves its place.
"""

from pathlib import Path
from typing import Any

import pytest
from html_page import lines_of, section_of
from report_inputs import MODELS, answers, demo_params, evaluation, write_evaluation, write_inputs

from pipeline.gate.evaluations import Answer
from pipeline.metrics.asking import score_answers
from pipeline.stages.report import stage
from pipeline.stages.report.answers_browser import browser_values
from pipeline.stages.report.calls_section import answer_with_calls

HOSTILE = "</pre><script>alert('&')</script>"
EXPECTED = [{"name": "find", "arguments": {"where": HOSTILE}}]
OTHER = [{"name": "find", "arguments": {"where": "here"}}]
BROKEN = [{"name": "find", "arguments": '{"where": </script>'}]


def called(model: str) -> list[dict[str, Any]]:
    """Answers of the recorded rows, all of which expect a call: the first three are called otherwise by
    Q4_K_M, the others by none.
    """
    rows = answers(model)
    for row in rows:
        row |= {"expected_calls": EXPECTED, "calls": EXPECTED, "answer": ""}
    if model == "Q4_K_M":
        rows[0]["calls"], rows[1]["calls"] = OTHER, BROKEN
        del rows[2]["calls"]
        rows[2]["answer"] = f"I would look {HOSTILE}"
    return rows


@pytest.fixture
def page(tmp_path: Path, plots_once: None) -> str:
    """A report of models that were asked for calls."""
    write_inputs(tmp_path)
    for model in MODELS:
        rows = called(model)
        figures = evaluation(model)
        figures["task"] |= score_answers(rows, ["tool_calls"])
        write_evaluation(tmp_path, model, figures, rows)
    stage.main(demo_params(), tmp_path)
    return (tmp_path / "reports/index.html").read_text(encoding="utf-8")


def test_figures_by_model_and_rows_side_by_side(page: str) -> None:
    section = section_of(page, "calls")
    text = lines_of(section)
    count = len(answers("F16"))
    (wrong,) = [line for line in text.splitlines() if line.startswith("Q4_K_M |")]
    cells = [cell.strip() for cell in wrong.split("|")][2:]
    assert cells == [*map(str, (count, count - 3, 1, 0, 0, 0, 1, 1, 0)), "0 of 0"]
    first, *_ = answers("F16")
    assert f"Row {first['id']}" in text
    for words in ("name right, arguments wrong", "text instead of a call", "not a JSON object", "all equal"):
        assert words in text


def test_arguments_are_escaped(page: str) -> None:
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in section_of(page, "calls")


def test_a_report_without_calls_has_no_such_section(tmp_path: Path, plots_once: None) -> None:
    write_inputs(tmp_path)
    stage.main(demo_params(), tmp_path)
    assert 'id="calls"' not in (tmp_path / "reports/index.html").read_text(encoding="utf-8")


def test_the_browser_shows_calls_as_answers() -> None:
    answer = Answer(id="a", score=0.0, reference="", answer="I look.", expected_calls=EXPECTED, calls=OTHER)
    assert answer_with_calls(answer) == 'I look.\nfind {"where": "here"}'
    assert answer_with_calls(answer.model_copy(update={"calls": None})) == "I look."
    found = browser_values({"F16": [answer]})
    assert found is not None
    (shown,) = found["examples"]
    assert (shown["reference"], shown["answers"][0][0]) == (
        f'find {{"where": "{HOSTILE}"}}',
        answer_with_calls(answer),
    )
    assert "</script>" not in found["json"]
