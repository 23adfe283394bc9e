"""pipeline.stages.report.stage: the files it writes, read back as their readers read them."""

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from html_page import Page, assert_accessible
from report_inputs import MODELS, change, demo_params, write_inputs

from pipeline.config.params import Params
from pipeline.core.errors import DataError
from pipeline.metrics.statistics import CHANCE
from pipeline.pages.formats import probability
from pipeline.stages.report import stage as stage
from pipeline.stages.report.training_plots import training_plots

pytestmark = pytest.mark.usefixtures("plots_once")


@pytest.fixture
def params() -> Params:
    return demo_params()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The inputs, to change."""
    return write_inputs(tmp_path)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The inputs and the report of them. Read only."""
    root = write_inputs(tmp_path_factory.mktemp("made"))
    stage.main(demo_params(), root)
    return root


@pytest.fixture(scope="module")
def page(made: Path) -> Page:
    return Page((made / "reports" / "index.html").read_text(encoding="utf-8"))


def test_the_page_is_one_small_file_that_loads_nothing(page: Page, made: Path) -> None:
    html = (made / "reports" / "index.html").read_text(encoding="utf-8")
    assert len(html) < 5_000_000
    others = html.replace("http://127.0.0.1:8081", "")  # the serve command's own address
    assert not re.findall(r"https?:|@import|src=|url\((?!#)", others)
    assert not {"link", "iframe", "img", "object"} & {tag for tag, _ in page.tags}
    policies = [each for _, each in page.tags if each.get("http-equiv") == "Content-Security-Policy"]
    (policy,) = (each["content"] or "" for each in policies)
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-")
    assert "unsafe-inline" not in policy.split("script-src")[1]


def test_what_users_wrote_is_text_not_markup(page: Page) -> None:
    assert "<script>alert('y')</script>" in page.text  # Q5_K_M's answer
    scripts = [attributes.get("type") for tag, attributes in page.tags if tag == "script"]
    assert scripts == ["application/json", None]  # the rows as data, and the page's own
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]


def test_the_page_is_accessible(page: Page) -> None:
    assert_accessible(page)
    tags = [tag for tag, _ in page.tags]
    assert tags.count("svg") == 7
    assert tags.count("table") >= 5


def test_a_long_run_is_drawn_smoothed_in_few_bytes() -> None:
    row = {"grad_norm": 0.5, "learning_rate": 1e-4, "eval_loss": ""}
    log = [row | {"step": step, "loss": 1 + 1 / step} for step in range(1, 5001)]
    plots = training_plots(log, [])
    assert plots["speed"] == ""
    assert plots["loss"].count("<path") > training_plots(log[:50], [])["loss"].count("<path")
    assert sum(map(len, plots.values())) < 1_000_000


def test_the_same_inputs_give_the_same_bytes(
    project: Path, params: Params, forget_plots: Callable[[], None]
) -> None:
    made = ("index.html", "quants.csv", "quants.json", "card.md", "Modelfile", "serve.txt")
    runs = []
    for _ in range(2):
        forget_plots()
        stage.main(params, project)
        runs.append([(project / "reports" / name).read_bytes() for name in made])
    assert runs[0] == runs[1]


def test_the_figures_as_data(made: Path) -> None:
    with (made / "reports" / "quants.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["model"]: row for row in csv.DictReader(file)}
    assert tuple(rows) == MODELS
    known = {"bytes": "105454432", "kld_mean": "0.0184", "task_score": "0.753"}
    assert rows["Q4_K_M"].items() >= known.items()
    metrics = json.loads((made / "reports" / "quants.json").read_text(encoding="utf-8"))
    assert metrics["recommended"] == "Q4_K_M"
    for model, row in rows.items():  # the same in both; the golden page has the table whole
        assert {key: str(value) for key, value in metrics[model].items() if value not in (None, "")} == {
            key: cell for key, cell in row.items() if cell and key != "model"
        }


@pytest.mark.parametrize(
    ("p", "text"),
    [
        (0.0496, "0.0496"),
        (0.04999, "0.0499"),
        (0.0494, "0.049"),
        (0.05, "0.050"),
        (0.0504, "0.050"),
        (0.0004, "< 0.001"),
    ],
)
def test_a_probability_never_reads_as_on_the_other_side_of_the_limit(p: float, text: str) -> None:
    assert probability(p) == text
    assert (p < CHANCE) == (text != "0.050")


def test_without_an_input_no_page_is_left(project: Path, params: Params) -> None:
    (project / "reports/eval/Q4_K_M.json").unlink()
    with pytest.raises(DataError, match="Q-CORE-001"):
        stage.main(params, project)
    assert not (project / "reports" / "index.html").exists()


@pytest.mark.parametrize("columns", ["80", "40"])
@pytest.mark.parametrize(("disturbed", "speed"), [(False, "98.3±1.1"), (True, "disturbed")])
def test_the_terminal_table_is_whole_however_narrow_the_terminal(
    project: Path,
    params: Params,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    columns: str,
    disturbed: bool,
    speed: str,
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    file = project / "reports/eval/Q4_K_M.json"
    found = json.loads(file.read_text(encoding="utf-8"))["speed"]
    change(file, speed=found | {"disturbed": disturbed})
    stage.main(params, project)
    *lines, last = capsys.readouterr().out.rstrip("\n").split("\n")
    assert max(len(line) for line in lines) <= 80 + disturbed
    (row,) = [line for line in lines if line.split()[:1] == ["Q4_K_M"]]
    assert row.split() == ["Q4_K_M", "105.5", "MB", "6.27", "1.16", "0.0184", "98.1", "%", speed, "75.3"]
    assert last == f"The page: {project / 'reports' / 'index.html'}"
    assert "…" not in "".join(lines)


def test_why_auto_is_not_liger_stands_beside_the_loss(project: Path, params: Params) -> None:
    reason = "olmo2 has no input_layernorm, whose place Liger's kernel would take"
    change(project / "reports/train.json", loss="chunked", loss_reason=reason)
    stage.main(params, project)
    text = Page((project / "reports" / "index.html").read_text(encoding="utf-8")).text
    assert f"chunked ({reason})" in " ".join(text.split())
