"""pipeline.stages.report.last_run: what the page says of the run before, and that a second report of the same
run says the same.
"""

import json
from pathlib import Path

import pytest
from html_page import lines_of, section_of
from report_inputs import change, demo_params, write_inputs

from pipeline.config.params import Params
from pipeline.core.jsonl import read_rows, write_rows
from pipeline.stages.report import stage
from pipeline.stages.report.last_run import FILE, KEPT

pytestmark = pytest.mark.usefixtures("plots_once")


def since(root: Path) -> str:
    html = (root / "reports/index.html").read_text(encoding="utf-8")
    return lines_of(section_of(html, "since"))


def longer(steps: int) -> Params:
    params = demo_params()
    return params.model_copy(update={"train": params.train.model_copy(update={"max_steps": steps})})


def better(root: Path) -> None:
    """Q4_K_M is right on ten more rows."""
    file = root / "reports/eval/Q4_K_M.answers.jsonl"
    rows = list(read_rows(file))
    for row in rows[20:30]:
        row["score"] = 1.0
    write_rows(file, rows)
    report = root / "reports/eval/Q4_K_M.json"
    task = json.loads(report.read_text(encoding="utf-8"))["task"]
    change(report, task=task | {"score": 0.789})


def test_settings_and_scores_of_the_same_rows_are_compared(tmp_path: Path) -> None:
    root = write_inputs(tmp_path)
    stage.main(demo_params(), root)
    assert "no earlier run" in since(root)
    better(root)
    stage.main(longer(80), root)
    told = since(root)
    assert "train.max_steps 40 → 80" in told
    assert "Q4_K_M: score 75.3 → 78.9" in told
    assert "better, more than noise" in told
    assert "Q5_K_M" not in told
    again = (root / "reports/index.html").read_bytes()
    stage.main(longer(80), root)
    assert (root / "reports/index.html").read_bytes() == again


def test_scores_of_other_rows_are_not_compared(tmp_path: Path) -> None:
    root = write_inputs(tmp_path)
    stage.main(demo_params(), root)
    better(root)
    for file in (root / "reports/eval").glob("*.answers.jsonl"):
        rows = list(read_rows(file))
        rows[0]["id"] = "another"
        write_rows(file, rows)
    stage.main(demo_params(), root)
    assert "(on other rows)" in since(root)


def test_a_damaged_record_is_no_run_and_few_are_kept(tmp_path: Path) -> None:
    root = write_inputs(tmp_path)
    (root / FILE).parent.mkdir(exist_ok=True)
    (root / FILE).write_text('{"at": "x"}\nno JSON\n{"at"', encoding="utf-8")
    stage.main(demo_params(), root)
    assert "no earlier run" in since(root)
    (line,) = (root / FILE).read_text(encoding="utf-8").splitlines()
    record = json.loads(line)
    runs = [record | {"steps": number} for number in range(KEPT + 5)]
    (root / FILE).write_text("".join(f"{json.dumps(run)}\n" for run in runs), encoding="utf-8")
    stage.main(demo_params(), root)
    kept = [json.loads(line)["steps"] for line in (root / FILE).read_text(encoding="utf-8").splitlines()]
    assert kept == [*range(6, KEPT + 5), 50]


def test_a_folder_that_takes_no_record_still_gets_its_page(tmp_path: Path) -> None:
    root = write_inputs(tmp_path)
    (root / FILE).mkdir(parents=True)
    stage.main(demo_params(), root)
    assert "no earlier run" in since(root)
