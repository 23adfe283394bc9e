"""`quench status --compare`: two runs as folders and as commits, whose scores, data and settings differ."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from html_page import Page, assert_accessible
from make import quench
from report_inputs import answers, demo_params, evaluation, put, write_evaluation, write_inputs

from pipeline.core.errors import ConfigError, DataError
from pipeline.extras.runs.compare import RunComparison, compare_runs
from pipeline.extras.runs.read import read_run
from pipeline.extras.runs.show import as_record, render, sentence, verdict
from pipeline.metrics.statistics import compare_scores

SPLITS = ("train", "val", "test")


def write_run(root: Path, **settings: Any) -> Path:
    """Write a run of the small demo with other keys of the section `train`."""
    root.mkdir()
    write_inputs(root)
    params = demo_params()
    values = json.loads(params.model_dump_json(by_alias=True))
    values["train"] |= settings
    (root / "params.lock.yaml").write_text(yaml.safe_dump(values))
    put(root / "reports/metrics.json", {"score": {"Q4_K_M": 75.3}, "loss": 0.038})
    (root / "data/final").mkdir(exist_ok=True)
    for split in SPLITS:
        row = {"id": f"{SPLITS.index(split):016x}", "source": f"{split}:1", "kind": "chat", "messages": []}
        (root / f"data/final/{split}.jsonl").write_text(json.dumps(row) + "\n")
    return root


def worsen(root: Path, model: str = "Q4_K_M", rows: int = 20) -> None:
    """Let a run's model answer nonsense to some rows."""
    found = answers(model)
    for row in found[:rows]:
        row |= {
            "answer": "<script>no</script>",
            "score": 0.0,
            "scores": dict.fromkeys(row.get("scores", {}), 0.0),
        }
    write_evaluation(root, model, evaluation(model), found)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs `one` and `two`, where Q4_K_M is worse. Read only: copy to change it."""
    root = tmp_path_factory.mktemp("runs")
    write_run(root / "one")
    write_run(root / "two", r=4)
    worsen(root / "two")
    put(root / "two/reports/metrics.json", {"score": {"Q4_K_M": 51.0}, "loss": 0.038})
    return root


def compared(root: Path, first: str = "one", second: str = "two") -> RunComparison:
    return compare_runs(read_run(root, first), read_run(root, second))


def test_scores_are_compared_row_by_row_with_holms_correction(runs: Path) -> None:
    found = compared(runs)
    by_name = {model.model: model for model in found.models}
    assert set(by_name) == set(demo_params().evaluate.models)
    q4 = by_name["Q4_K_M"]
    assert q4.comparison is not None and q4.comparison.verdict == "worse"
    before = [row["score"] for row in answers("Q4_K_M")]
    after = [0.0] * 20 + before[20:]
    plain = compare_scores(before, after)
    got = q4.comparison.difference
    assert (got.points, got.low, got.high) == (plain.points, plain.low, plain.high)
    assert got.p_value == pytest.approx(min(1, plain.p_value * 3))  # of three tuned models
    assert len(q4.changed) == 20 and (q4.better, q4.worse) == (0, sum(value > 0 for value in before[:20]))
    f16 = by_name["F16"]
    assert f16.comparison is not None and f16.comparison.verdict == "noise" and f16.changed == []
    assert verdict(found) == (
        "two against one: worse, more than noise: Q4_K_M; within the noise: F16, Q5_K_M."
    )


def test_settings_and_figures_that_differ_are_listed_by_key(runs: Path) -> None:
    found = compared(runs)
    assert [(change.key, change.after) for change in found.settings] == [("train.r", 4)]
    assert [(change.key, change.before, change.after) for change in found.figures] == [
        ("score.Q4_K_M", 75.3, 51.0)
    ]
    assert found.data == [] and found.rows is not None and found.rows.same == 3


def test_a_run_compared_with_itself_differs_in_nothing(runs: Path) -> None:
    found = compared(runs, "one", "one")
    assert not (found.settings or found.data or found.figures or found.notes)
    assert all(model.comparison and model.comparison.difference.points == 0 for model in found.models)


def changed_copy(runs: Path, tmp_path: Path, change: Callable[[Path], object]) -> Path:
    for name in ("one", "two"):
        shutil.copytree(runs / name, tmp_path / name)
    change(tmp_path / "two")
    return tmp_path


def other_rows(root: Path, keep: int) -> None:
    """Let all but some held-out rows be others."""
    for model in demo_params().evaluate.models:
        found = answers(model)
        for row in found[keep:]:
            row["id"] = f"other-{row['id']}"
        write_evaluation(root, model, evaluation(model), found)


def test_only_rows_that_both_runs_held_out_count(runs: Path, tmp_path: Path) -> None:
    root = changed_copy(runs, tmp_path, lambda folder: other_rows(folder, 40))
    model = compared(root).models[0]
    assert len(model.pairs) == 40 and model.alone == (24, 24)
    assert "48 rows of one run alone left out" in sentence(model)


def test_runs_without_a_common_row_are_not_compared_by_score(runs: Path, tmp_path: Path) -> None:
    root = changed_copy(runs, tmp_path, lambda folder: other_rows(folder, 0))
    found = compared(root)
    assert all(model.comparison is None and "no held-out row" in model.why_not for model in found.models)
    assert verdict(found) == "No tuned model could be compared."
    Page(render(found))


def test_the_same_id_with_another_reference_is_another_row(runs: Path, tmp_path: Path) -> None:
    def change(folder: Path) -> None:
        found = answers("Q4_K_M")
        found[0]["reference"] = "something else"
        write_evaluation(folder, "Q4_K_M", evaluation("Q4_K_M"), found)

    root = changed_copy(runs, tmp_path, change)
    q4 = next(model for model in compared(root).models if model.model == "Q4_K_M")
    assert len(q4.pairs) == 63 and q4.alone == (1, 1)


def test_runs_scored_by_different_scorers_are_compared_by_one_that_both_have(
    runs: Path, tmp_path: Path
) -> None:
    def change(folder: Path) -> None:
        for model in demo_params().evaluate.models:
            found = [row | {"score": row["scores"]["exact_match"]} for row in answers(model)]
            figures = evaluation(model)
            figures["task"] |= {"scorer": "exact_match"}
            write_evaluation(folder, model, figures, found)

    root = changed_copy(runs, tmp_path, change)
    model = next(model for model in compared(root).models if model.model == "F16")
    assert model.scorer == "json_fields" and model.comparison is not None
    assert model.comparison.difference.points == 0


def test_models_of_one_run_alone_are_named(runs: Path, tmp_path: Path) -> None:
    root = changed_copy(runs, tmp_path, lambda folder: (folder / "reports/eval/Q5_K_M.json").unlink())
    found = compared(root)
    assert found.only == (["Q5_K_M"], []) and "Q5_K_M.json" in found.notes[0]


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "reports/eval/F16.json").write_text("{"),
        lambda folder: (folder / "reports/eval/F16.json").write_text('{"model": "F16"}'),
        lambda folder: (folder / "reports/eval/F16.answers.jsonl").write_text('{"id": "a", "sc'),
        lambda folder: (folder / "reports/eval/F16.answers.jsonl").write_bytes(b"\xff\n"),
        lambda folder: (folder / "reports/metrics.json").write_text("[]"),
        lambda folder: (folder / "data/final/val.jsonl").write_text("{"),
    ],
)
def test_a_damaged_file_is_named_and_the_rest_compared(
    runs: Path, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    found = compared(changed_copy(runs, tmp_path, damage))
    assert len(found.notes) == 1 and "two" in found.notes[0]
    assert any(model.model == "Q4_K_M" and model.comparison for model in found.models)


def test_a_run_without_any_evaluation_is_refused(runs: Path, tmp_path: Path) -> None:
    root = changed_copy(runs, tmp_path, lambda folder: shutil.rmtree(folder / "reports/eval"))
    with pytest.raises(DataError, match=r"Q-RUNS-001: two .*F16"):
        compared(root)


def test_a_folder_without_the_locked_settings_is_read_by_its_own(runs: Path, tmp_path: Path) -> None:
    def change(folder: Path) -> None:
        (folder / "params.lock.yaml").unlink()
        own = {"train": {"r": 4}, "evaluate": {"models": list(demo_params().evaluate.models)}}
        (folder / "params.yaml").write_text(yaml.safe_dump(own))

    found = compared(changed_copy(runs, tmp_path, change))
    changed = {change.key: change.after for change in found.settings}
    assert changed["train.r"] == 4 and "curate.test_fraction" not in changed  # a default of both


@pytest.mark.parametrize("left", ["params.lock.yaml", "params.yaml"])
def test_settings_that_are_not_yaml_are_refused(runs: Path, tmp_path: Path, left: str) -> None:
    def change(folder: Path) -> None:
        (folder / "params.lock.yaml").unlink()
        (folder / left).write_text("train: [")

    root = changed_copy(runs, tmp_path, change)
    with pytest.raises(DataError, match=f"Q-RUNS-002: {left} of two "):
        compared(root)


def test_the_page_is_whole_and_shows_the_answers_escaped(runs: Path) -> None:
    html = render(compared(runs))
    page = Page(html)
    assert_accessible(page)
    assert "<script>no" not in html and "&lt;script&gt;" in html
    assert page.text.count("Reference") == 12  # of the 20 that changed
    assert "worse, more than noise by json_fields" in page.text
    assert "<td>75.3</td><td>51</td>" in html


def test_json_has_every_answer_that_changed(runs: Path) -> None:
    record = json.loads(json.dumps(as_record(compared(runs)), allow_nan=False))
    assert record["settings"] == {"train.r": {"first": 16, "second": 4}}
    q4 = record["models"]["Q4_K_M"]
    assert q4["difference"]["verdict"] == "worse" and len(q4["answers"]) == 20
    assert q4["answers"][0]["second"] == "<script>no</script>"


@pytest.fixture(scope="module")
def commits(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with the revisions `empty`, `one` and `two`; workspace at `two`. Copy it to change it."""
    from dvc.repo import Repo

    root = tmp_path_factory.mktemp("commits") / "a project #1"
    root.mkdir()

    def commit(tag: str) -> None:
        for words in (["add", "--all"], ["commit", "--quiet", "--message", tag], ["tag", tag]):
            subprocess.run(["git", *words], cwd=root, check=True, capture_output=True)

    subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)
    with Repo.init(str(root)):
        pass
    outs = [
        "reports/eval",
        "reports/data.json",
        "reports/metrics.json",
        *(f"data/final/{one}.jsonl" for one in SPLITS),
    ]
    (root / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"all": {"cmd": "true", "outs": outs}}}))
    (root / ".gitignore").write_text("/reports\n/data\n")
    commit("empty")
    for name in ("one", "two"):
        for path in (*outs, "params.lock.yaml"):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            if (runs / name / path).is_dir():
                shutil.rmtree(root / path, ignore_errors=True)
                shutil.copytree(runs / name / path, root / path)
            else:
                (root / path).unlink(missing_ok=True)
                shutil.copy(runs / name / path, root / path)
        with Repo(str(root)) as repo:
            repo.commit(force=True)
        commit(name)
    return root


def test_commits_are_read_from_dvcs_cache_and_nothing_is_checked_out(commits: Path, runs: Path) -> None:
    here = {path: path.read_bytes() for path in (commits / "reports/eval").iterdir()}
    found, folders = compared(commits, "one", "two"), compared(runs)
    assert as_record(found)["models"] == as_record(folders)["models"]
    assert as_record(found)["settings"] == as_record(folders)["settings"]
    assert {path: path.read_bytes() for path in (commits / "reports/eval").iterdir()} == here


def test_the_verb_prints_tables_and_writes_the_page(commits: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(commits, tmp_path / "project"))
    done = quench("status", "--compare", "one", ".", "--root", root)
    assert done.exit_code == 0, done.output
    for words in ("train.r", "Q4_K_M", "worse, more than noise", "runs.html"):
        assert words in done.stdout
    assert max(map(len, done.stdout.splitlines()[:-1])) <= 160
    Page((root / "reports/runs.html").read_text(encoding="utf-8"))
    record = json.loads(quench("status", "--compare", "one", "two", "--json", "--root", root).stdout)
    assert (record["first"], record["second"]) == ("one", "two")


def test_what_is_no_longer_in_the_cache_is_said_with_the_remedy(commits: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(commits, tmp_path / "project"))
    shutil.rmtree(root / ".dvc/cache")
    with pytest.raises(DataError, match=r"Q-RUNS-001: one .*dvc fetch"):
        compared(root, "one", ".")


def test_what_is_no_run_is_refused(commits: Path) -> None:
    with pytest.raises(ConfigError, match="Q-COMMANDS-020: "):
        compared(commits, "nowhere", "two")
    with pytest.raises(DataError, match="Q-COMMANDS-021: "):
        compared(commits, "empty", "two")
