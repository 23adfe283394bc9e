"""pipeline.stages.report.stage: the files it writes, read back as their readers read them."""

import csv
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from html_page import Page, section_of
from parity_inputs import failed_report
from recording import read
from report_inputs import CHATML_WITH_DEFAULT, MODELS, change, demo_params, put, write_inputs

from pipeline.config.params import Params
from pipeline.core.errors import DataError
from pipeline.core.hashing import json_hash
from pipeline.core.places import PROJECT
from pipeline.gate.drops import CHANCE
from pipeline.pages.formats import probability
from pipeline.pages.parity_summary import counts
from pipeline.ship.ollama import default_system
from pipeline.stages.report import stage as stage
from pipeline.stages.report.page import samples_over_time
from pipeline.stages.report.training_plots import training_plots

pytestmark = pytest.mark.usefixtures("plots_once")

ROOT = PROJECT


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
    assert not re.findall(
        r"https?:|@import|src=|url\((?!#)", html.replace("http://127.0.0.1:8081", "")
    )  # the serve command's own address
    assert not {"link", "iframe", "img", "object"} & {tag for tag, _ in page.tags}
    (policy,) = [
        attributes["content"] or ""
        for tag, attributes in page.tags
        if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-")
    assert "unsafe-inline" not in policy.split("script-src")[1]


def test_what_users_wrote_is_text_not_markup(page: Page) -> None:
    assert "<script>alert('y')</script>" in page.text  # Q5_K_M's answer
    scripts = [attributes.get("type") for tag, attributes in page.tags if tag == "script"]
    assert scripts == ["application/json", None]  # the rows as data, and the page's own
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]


def test_the_page_is_accessible(page: Page) -> None:
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    named = [
        name for _, attributes in page.tags for name in (attributes.get("aria-labelledby") or "").split()
    ]
    inside = [
        (attributes.get("href") or "#")[1:]
        for _, attributes in page.tags
        if (attributes.get("href") or "").startswith("#")
    ]
    assert set(named + inside) <= set(ids)
    plots = [attributes for tag, attributes in page.tags if tag == "svg"]
    assert len(plots) == 7
    assert all(plot["role"] == "img" for plot in plots)
    tags = [tag for tag, _ in page.tags]
    assert tags.count("caption") == tags.count("table") >= 5
    assert all(attributes.get("scope") for tag, attributes in page.tags if tag == "th")


def section(project: Path, name: str) -> str:
    """One section's text."""
    html = (project / "reports" / "index.html").read_text(encoding="utf-8")
    return Page(section_of(html, name)).text


def test_a_check_that_was_not_measured_is_not_shown_as_passed(made: Path) -> None:
    checks = json.loads((made / "reports/parity.json").read_text(encoding="utf-8"))["checks"]
    found = counts(checks)
    assert found["pass"] and found["not measured"]
    text = section(made, "checks")
    assert text.count("✓ pass") == found["pass"]
    assert text.count("○ not measured") == found["not measured"]


def training(project: Path, params: Params) -> str:
    """The training section's text."""
    stage.main(params, project)
    return section(project, "training")


def quantization_check_report(**changed: Any) -> dict[str, Any]:
    line = {
        "title": "Scale of the NF4 weights",
        "what": "of a linear",
        "figure": 0.0057,
        "limit": 0.02,
        "unit": "",
        "verdict": "pass",
        "detail": "14",
    }
    failed = line | {"title": "Blocks <of> it", "figure": 1.59, "limit": 0.5, "verdict": "fail"}
    open_ = line | {"title": "Two adapters", "figure": None, "limit": None, "verdict": "not measured"}
    check = {"sentence": "Here NF4 keeps 5.0 MB, so at 7B 6.04 GB."}
    files = read("merged", "models/base.json")["files"]
    weights = json_hash({"model.safetensors": files["model.safetensors"]})
    lines = {"nf4_scale": line, "nf4_blocks": failed, "adapter_swap": open_}
    return {
        "verdict": "fail",
        "base_weights_sha256": weights,
        "lines": lines,
        "memory_check": check,
    } | changed


def test_quantization_check_is_shown_where_it_is_of_this_very_base(project: Path, params: Params) -> None:
    file = project / "reports/quantization-check.json"
    put(file, quantization_check_report())
    text = training(project, params)
    for words in (
        "Scale of the NF4 weights",
        "0.0057",
        "Blocks <of> it",
        "✕ fail",
        "1.59",
        "○ not measured",
        "so at 7B 6.04 GB",
    ):
        assert words in text, words
    assert "against its 16-bit base: not measured" not in text
    put(file, quantization_check_report(base_weights_sha256="0" * 64))  # another base's
    assert "Scale of the NF4" not in training(project, params)


def test_what_training_did_not_record_is_not_measured(project: Path, params: Params) -> None:
    (project / "reports" / "train.jsonl").unlink()
    (project / "reports" / "train.csv").write_text(
        "step,loss,learning_rate,grad_norm\n1,1.5,0.001,nan\n2,1.2,0.0009,0\n3,nan,0.0008,nan\n"
    )
    file = project / "reports" / "train.json"
    put(file, {"steps": 2, "loss_first": 1.5, "loss_last": 1.2})
    text = training(project, params)
    assert "Loss on held-out rowsnot measured" in text.replace("\n", "")
    assert text.count("○ not measured") == 2  # gradient norm and speed
    assert "from 1.500 at step 1 to 1.200 at step 2" in text
    for words in ("Checks of the run: not measured", "Samples: not measured", "Run record: not recorded"):
        assert words in text, words
    assert "None" not in text
    (project / "reports" / "train.csv").write_text("step,loss\n")
    assert training(project, params).count("○ not measured") == 4


def test_a_failed_rule_and_an_early_stop_are_shown(project: Path, params: Params) -> None:
    failed = {
        "level": "fail",
        "rule": "finite loss",
        "step": 7,
        "text": "the loss is <nan>",
        "cause": "a forward fault",
    }
    unknown = {"level": "PASS", "rule": "speed", "step": None, "text": "", "cause": ""}
    change(
        project / "reports" / "train.json",
        monitoring=[failed, unknown],
        planned_steps=80,
        adapter_step=25,
        resumed_from="checkpoint-20",
    )
    text = training(project, params)
    for words in (
        "✕ fail",
        "the loss is <nan>",
        "50 of 80: stopped early; the adapter is that of step 25",
        "resumed from checkpoint-20",
    ):
        assert words in text, words
    assert "✓ ok" not in text
    assert text.count("○ not measured") == 1  # a level that is none of ours is no ok


def test_a_record_with_gaps_is_shown_with_gaps(project: Path, params: Params) -> None:
    change(project / "reports" / "train.json", run={"git": None, "hardware": {"gpus": None, "cpu": None}})
    text = training(project, params)
    for words in ("CPUnot recorded", "GPUnot recorded", "Git commitnone"):
        assert words in text, words
    change(project / "reports" / "train.json", run={"os": "Linux"})
    assert "Linux, Python –" in training(project, params)


def test_of_many_evaluations_some_are_shown_with_the_first_and_the_last() -> None:
    asked = [{"prompt": f"p{number}", "reference": "r", "answer": "a"} for number in range(9)]
    metrics_log = [
        {"kind": "eval", "step": step, "samples": [one | {"answer": f"{step}"} for one in asked]}
        for step in range(10, 310, 10)
    ]
    found = samples_over_time(
        [{"kind": "step", "step": 1}, *metrics_log, {"kind": "eval", "step": 400, "samples": []}]
    )
    assert [one["prompt"] for one in found] == ["p0", "p1", "p2", "p3"]
    assert [answer["step"] for answer in found[0]["answers"]] == [10, 70, 130, 180, 240, 300]
    assert [answer["step"] for answer in samples_over_time(metrics_log[:2])[0]["answers"]] == [10, 20]
    assert samples_over_time([]) == []


def test_a_long_run_is_drawn_smoothed_in_few_bytes() -> None:
    log = [
        {"step": step, "loss": 1 + 1 / step, "grad_norm": 0.5, "learning_rate": 1e-4, "eval_loss": ""}
        for step in range(1, 5001)
    ]
    plots = training_plots(log, [])
    assert plots["speed"] == ""
    assert plots["loss"].count("<path") > training_plots(log[:50], [])["loss"].count("<path")
    assert sum(map(len, plots.values())) < 1_000_000


VERDICTS = [
    ("pass", "pass"),
    ("fail", "fail"),
    ("not measured", "not measured"),
    ("PASS", "not measured"),
    (None, "not measured"),
]


@pytest.mark.parametrize(("verdict", "kind"), VERDICTS)
def test_only_pass_counts_as_passed(verdict: str | None, kind: str) -> None:
    assert counts({"one": {"verdict": verdict}})[kind] == 1


def test_a_head_that_was_tied_is_told_with_both_copies(project: Path, params: Params) -> None:
    tied = {
        "kept": "output.weight",
        "kept_type": "Q8_0",
        "dropped": "token_embd.weight",
        "dropped_type": "Q5_0",
        "farthest_row": 0.0608,
    }
    change(project / "models" / "base.json", tied=tied)
    stage.main(params, project)
    text = Page((project / "reports" / "index.html").read_text(encoding="utf-8")).text
    for shown in ("output.weight", "Q8_0", "token_embd.weight", "Q5_0", "6.1"):
        assert shown in text


def test_a_failed_check_heads_the_page(project: Path, params: Params) -> None:
    put(project / "reports" / "parity.json", failed_report())
    stage.main(params, project)
    text = Page((project / "reports" / "index.html").read_text(encoding="utf-8")).text
    assert "2 parity checks failed: do not serve these files" in text
    assert (
        text.index("Ship nothing: parity failed")
        < text.index("2 parity checks failed")
        < text.index("Levels")
    )
    assert "Ship Q4_K_M" not in text


def test_a_model_no_better_than_the_base_is_said_in_the_headline(project: Path, params: Params) -> None:
    tuned = json.loads((project / "reports" / "eval" / "Q4_K_M.json").read_text(encoding="utf-8"))
    change(project / "reports" / "eval" / "base-F16.json", task=tuned["task"])
    shutil.copy(
        project / "reports" / "eval" / "Q4_K_M.answers.jsonl",
        project / "reports" / "eval" / "base-F16.answers.jsonl",
    )
    stage.main(params, project)
    text = Page((project / "reports" / "index.html").read_text(encoding="utf-8")).text
    assert "Q4_K_M, but no better than the base" in text
    assert "Ship Q4_K_M" not in text


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
    project = made
    with (project / "reports" / "quants.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["model"]: row for row in csv.DictReader(file)}
    assert tuple(rows) == MODELS
    assert (rows["Q4_K_M"]["bytes"], rows["Q4_K_M"]["kld_mean"], rows["Q4_K_M"]["task_score"]) == (
        "105454432",
        "0.0184",
        "0.753",
    )
    metrics = json.loads((project / "reports" / "quants.json").read_text(encoding="utf-8"))
    assert metrics["recommended"] == "Q4_K_M"
    assert metrics["Q5_K_M"]["same_top"] == 0.9874
    for key, value in {
        "gate": "pass",
        "all_tokens_kld_mean": 0.0184,
        "general_rows": 48,
        "serving_load_seconds": 0.41,
        "task_refused": 0.0,
        "task_score_exact_match": 0.27,
        "prompt_512_tok_s": 387.2,
    }.items():
        assert metrics["Q4_K_M"][key] == value, key
        assert rows["Q4_K_M"][key] == str(value), key
    assert rows["base-F16"]["gate"] == ""
    headline = json.loads((project / "reports" / "metrics.json").read_text(encoding="utf-8"))
    assert set(headline) == {"loss", "score", "general", "kld", "mb"}
    assert headline["general"]["Q4_K_M"] == 70.8


def mark_few(project: Path, model: str, few: int) -> None:
    """As by a judge whose marks can be read for the first few answers only."""
    folder = project / "reports" / "eval"
    task = json.loads((folder / f"{model}.json").read_text(encoding="utf-8"))["task"]
    task["scores"]["json_fields"]["measured"] = few
    change(folder / f"{model}.json", task=task)
    rows = [
        json.loads(line)
        for line in (folder / f"{model}.answers.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    lines = [
        json.dumps(row | ({} if number < few else {"score": None})) + "\n" for number, row in enumerate(rows)
    ]
    (folder / f"{model}.answers.jsonl").write_text("".join(lines), encoding="utf-8")


def test_how_many_rows_have_a_score_is_said_where_not_all_have_one(project: Path, params: Params) -> None:
    stage.main(params, project)
    assert "3 of 64" not in section(project, "task")
    mark_few(project, "Q4_K_M", 3)
    stage.main(params, project)
    text = section(project, "task")
    assert "68.8 to 81.2, 3 of 64 rows" in text
    assert "68.8 to 81.2, 3 of 40 rows" in text  # by domain
    card = (project / "reports" / "card.md").read_text(encoding="utf-8")
    assert "75.3 (68.8 to 81.2, 3 of 64 rows)" in card
    assert "75.9 (69.4 to 81.4) |" in card
    quants = json.loads((project / "reports" / "quants.json").read_text(encoding="utf-8"))
    assert (
        quants["Q4_K_M"]["task_rows"],
        quants["Q4_K_M"]["task_measured"],
        quants["F16"]["task_measured"],
    ) == (64, 3, 64)
    assert quants["Q4_K_M"]["task_measured_exact_match"] == 64


def test_a_difference_on_the_first_screen_says_of_how_many_rows_it_is(project: Path, params: Params) -> None:
    for model in MODELS:
        mark_few(project, model, 20)
    stage.main(params, project)
    assert "points on 20 rows, 95 % interval" in (project / "reports" / "index.html").read_text(
        encoding="utf-8"
    )


def test_a_score_that_was_not_measured_is_called_so_on_the_card(project: Path, params: Params) -> None:
    task = json.loads((project / "reports" / "eval" / "Q5_K_M.json").read_text(encoding="utf-8"))["task"]
    change(
        project / "reports" / "eval" / "Q5_K_M.json",
        task=task | dict.fromkeys(("score", "score_low", "score_high")),
    )
    stage.main(params, project)
    (row,) = [
        line
        for line in (project / "reports" / "card.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| Q5_K_M")
    ]
    assert row.endswith("| not measured |")


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


@pytest.mark.parametrize(("source", "base_model"), [("hub", "Qwen/Qwen2.5-7B-Instruct"), ("package", None)])
def test_the_card_names_a_base_on_the_hub_only_where_it_is_there(
    project: Path, params: Params, source: str, base_model: str | None
) -> None:
    change(
        project / "models" / "base.json", source=source, model="Qwen/Qwen2.5-7B-Instruct", revision="a" * 40
    )
    stage.main(params, project)
    _, head, body = (project / "reports" / "card.md").read_text(encoding="utf-8").split("---\n", 2)
    metadata = yaml.safe_load(head)
    assert (metadata["license"], metadata["pipeline_tag"], metadata.get("base_model")) == (
        "apache-2.0",
        "text-generation",
        base_model,
    )
    assert "| Q4_K_M (recommended) | 105.5 MB | 6.27 | 180 of 272 |" in body
    assert "0e" * 32 in body


PLAIN = CHATML_WITH_DEFAULT.replace("loop.first and", "false and")


@pytest.mark.parametrize(
    ("jinja", "expected"),
    [
        (CHATML_WITH_DEFAULT, "You are a helpful assistant"),
        (PLAIN, ""),
        (
            PLAIN.replace("message['content']", "message['content'] | trim + ' '"),
            None,
        ),  # looks like ChatML, renders otherwise
        (PLAIN.replace("im_end", "eot"), None),
        (
            PLAIN.replace("+ message['role'] +", "+ message['role'] | replace('assistant', 'model') +"),
            None,
        ),  # differs from the second turn on
        ("{{ raise_exception('no') }}", None),
        ("{% for message in tools %}{% endfor %}", None),
        ("{% broken", None),
        (None, None),
    ],
)
def test_a_go_template_only_where_rendering_proves_it(jinja: str | None, expected: str | None) -> None:
    assert default_system(jinja) == expected


def test_without_chatml_the_modelfile_says_so(project: Path, params: Params) -> None:
    (project / "models" / "adapter" / "chat_template.jinja").write_text(
        "{{ messages[0].content }}", encoding="utf-8"
    )
    stage.main(params, project)
    text = (project / "reports" / "Modelfile").read_text(encoding="utf-8")
    assert "# No TEMPLATE" in text
    assert "\nTEMPLATE" not in text


def test_without_an_input_no_page_is_left(project: Path, params: Params) -> None:
    (project / "reports/eval/Q4_K_M.json").unlink()
    with pytest.raises(DataError, match="Q-CORE-001"):
        stage.main(params, project)
    assert not (project / "reports" / "index.html").exists()


def test_without_a_scorer_there_is_still_a_whole_page(project: Path, params: Params) -> None:
    for model in MODELS:
        change(project / "reports" / "eval" / f"{model}.json", task=None, kv_cache_bytes=None)
        (project / "reports" / "eval" / f"{model}.answers.jsonl").unlink()
    stage.main(params, project)
    text = Page((project / "reports" / "index.html").read_text(encoding="utf-8")).text
    assert "there is no task score to judge by" in text
    assert "Answers side by side" not in text
    assert "None" not in text


def test_a_level_that_the_gate_refuses_is_not_recommended(
    project: Path, params: Params, capsys: pytest.CaptureFixture[str]
) -> None:
    change(project / "reports" / "eval" / "Q4_K_M.json", kld_mean=0.93)
    stage.main(params, project)
    printed = " ".join(capsys.readouterr().out.split())
    assert "The gate passes F16, Q5_K_M." in printed
    assert "The gate refuses Q4_K_M" in printed
    html = (project / "reports" / "index.html").read_text(encoding="utf-8")
    assert "<h1>Ship Q5_K_M</h1>" in html
    text = section(project, "gate")
    assert "✕ refused" in text
    assert "Q4_K_M's mean KL divergence from F16 is 0.9300 nats; at most 0.401 are allowed" in text
    assert (
        json.loads((project / "reports" / "quants.json").read_text(encoding="utf-8"))["Q4_K_M"]["gate"]
        == "fail"
    )


def test_the_harness_and_the_domains_are_shown_where_there_are_any(project: Path, params: Params) -> None:
    change(
        project / "reports" / "eval" / "F16.json",
        harness={"arc_local": {"acc": 0.4312, "acc_stderr": 0.021, "n": 60}},
    )
    stage.main(params, project)
    assert all(words in section(project, "harness") for words in ("arc_local", "acc_stderr", "0.431", "60"))
    assert all(
        words in section(project, "task")
        for words in ("text", "files", "69.4 to 81.4", "exact_match", "McNemar, exact")
    )


def test_nothing_fits(project: Path, params: Params) -> None:
    small = params.model_copy(update={"report": params.report.model_copy(update={"memory_gb": 0.01})})
    stage.main(small, project)
    assert (
        "No level fits in 0.01 GB"
        in Page((project / "reports" / "index.html").read_text(encoding="utf-8")).text
    )
    assert "# Beware: No level fits" in (project / "reports" / "serve.txt").read_text(encoding="utf-8")
    assert (
        json.loads((project / "reports" / "quants.json").read_text(encoding="utf-8"))["recommended"] is None
    )


def test_a_speed_that_other_load_spoilt_is_no_figure(project: Path, params: Params) -> None:
    file = project / "reports/eval/Q4_K_M.json"
    found = json.loads(file.read_text(encoding="utf-8"))
    change(file, speed=found["speed"] | {"other_load": 0.41, "disturbed": True})
    stage.main(params, project)
    text = Page((project / "reports/index.html").read_text(encoding="utf-8")).text
    assert text.count("disturbed") >= 2 + 4  # both columns of the levels, two lengths and two depths
    assert str(found["prompt_tok_s"]) not in text
    assert "snakemake --forcerun reports/eval/Q4_K_M.json" in text
    figures = json.loads((project / "reports/quants.json").read_text(encoding="utf-8"))["Q4_K_M"]
    assert not [key for key in figures if "tok_s" in key]
    assert figures["speed_other_load"] == 0.41
    assert figures["bytes"] == found["bytes"]


@pytest.mark.parametrize("columns", ["80", "40"])
def test_the_terminal_table_is_whole_in_80_columns(
    project: Path,
    params: Params,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    columns: str,
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    stage.main(params, project)
    *lines, last = capsys.readouterr().out.rstrip("\n").split("\n")
    assert max(len(line) for line in lines) <= 80
    (row,) = [line for line in lines if line.split()[:1] == ["Q4_K_M"]]
    expected = "Q4_K_M 105.5 MB 6.27 1.16 0.0184 98.1 % 98.3±1.1 75.3"
    assert row.split() == expected.split()
    assert last == f"The page: {project / 'reports' / 'index.html'}"
    assert "…" not in "".join(lines)


def test_without_records_they_are_not_measured(project: Path, params: Params) -> None:
    shutil.rmtree(project / ".quench/usage")
    stage.main(params, project)
    assert "Peak memory, time and disk of the stages: not measured here" in section(project, "resources")
