"""`quench status`: every stage, and why it is not fresh; that DVC and Snakemake agree is in
tests/workflow/test_dag.py.
"""

import json
import os
import subprocess
import sys
import time
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from make import change_params, quench, ran
from recorded_project import change_lock, put, recorded_project

from pipeline.config.params import load_params
from pipeline.core.locks import lock_file, take
from pipeline.core.places import PROJECT
from pipeline.core.progress import FOLDER as PROGRESS
from pipeline.core.progress import JobProgress, Record, recorded
from pipeline.stages.train.run import NO_PART
from pipeline.workflow.state.lockfile import outputs_hash

changed_lock = contextmanager(change_lock)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A finished project whose path has a space and a #."""
    return recorded_project(tmp_path / "my #1 project")


def status(root: Path, *words: str) -> dict[str, Any]:
    """Return the JSON that `quench status` prints."""
    done = quench("status", "--json", *words, "--root", root)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["shape"] == 1
    return found


def job(root: Path, name: str) -> dict[str, Any]:
    return next(job for job in status(root)["jobs"] if job["name"] == name)


def texts(job: dict[str, Any]) -> list[str]:
    return [cause["text"] for cause in job["causes"]]


def test_a_finished_project_is_fresh(root: Path) -> None:
    found = status(root)
    assert {job["state"] for job in found["jobs"]} == {"fresh"}
    assert found["would_run"] == [] and found["running"] == [] and found["served"] is None
    assert found["off"]["imatrix"] and found["off"]["augment"] and "train" not in found["off"]
    assert found["page"] == {"path": str(root / "reports/index.html"), "exists": True, "state": "fresh"}
    done = quench("status", "--root", root)
    assert done.exit_code == 0 and str(root / "reports/index.html") in done.stdout.splitlines()


def test_a_changed_setting_is_named_and_what_follows_is_too(root: Path) -> None:
    change_params(root, train={"r": 5})
    assert texts(job(root, "train")) == ["train.r: 16 → 5"]
    assert job(root, "train")["causes"][0]["before"] == 16
    assert job(root, "curate")["state"] == "fresh"
    assert job(root, "merge")["state"] == "stale" and texts(job(root, "merge")) == ["follows train"]
    found = status(root)
    assert found["would_run"][0] == "train" and "preprocess" not in found["would_run"]
    assert found["page"]["state"] == "stale"
    page = str(root / "reports/index.html")
    assert page not in quench("status", "--root", root).stdout.splitlines()


def test_changed_code_is_named_by_file(root: Path) -> None:
    with changed_lock(root, "train") as record:
        key = next(dep for dep in record["deps"] if dep["path"].endswith("/train.key"))
        text = (root / ".dvc/cache/files/md5" / key["md5"][:2] / key["md5"][2:]).read_text()
        line = next(line for line in text.splitlines() if line.endswith(" stages/train/loop.py"))
        key["md5"] = put(root, text.replace(line, f"{'0' * 32} stages/train/loop.py").encode())
    (cause,) = job(root, "train")["causes"]
    assert (cause["kind"], cause["files"]) == ("code", ["stages/train/loop.py"])


def test_changed_data_is_named_by_file(root: Path) -> None:
    (root / "data/raw/more.jsonl").write_text("more\n")
    (cause,) = job(root, "curate")["causes"]
    assert (cause["kind"], cause["name"], cause["files"]) == ("input", "data/raw", ["more.jsonl new"])


def test_a_missing_output_comes_back_from_the_cache_or_does_not(root: Path) -> None:
    file = root / "models/merged/file.txt"
    file.unlink()
    file.parent.rmdir()
    found = job(root, "merge")
    assert (found["state"], found["restorable"]) == ("missing", True)
    for cached in (root / ".dvc/cache/files/md5").rglob("*"):
        if cached.is_file():
            cached.unlink()
    found = job(root, "merge")
    assert (found["state"], found["restorable"]) == ("missing", False)
    assert status(root)["would_run"] == []  # No stage that runs reads it.


def test_a_damaged_output_is_named(root: Path) -> None:
    (root / "models/adapter/file.txt").write_text("other\n")
    found = job(root, "train")
    assert found["state"] == "damaged" and found["causes"][0]["files"] == ["file.txt"]


def test_raw_data_that_changed_under_its_date_is_damaged(root: Path) -> None:
    status(root)  # which caches the hashes
    raw = root / "data/raw/chats.jsonl"
    (root / "data/raw.dvc").touch()
    os.utime(raw, (1, 1))
    time.sleep(0.2)  # A file that has just changed is not cached.
    status(root)
    raw.write_text("a chaT\n")
    os.utime(raw, (1, 1))
    found = job(root, "curate")
    assert found["state"] == "damaged"
    assert {"kind": "damage", "files": ["data/raw/chats.jsonl"]}.items() <= found["causes"][-1].items()


def test_a_project_that_never_ran_has_everything_ahead(tmp_path: Path) -> None:
    root = recorded_project(tmp_path / "new")
    (root / "dvc.lock").unlink()
    for file in (root / "models", root / "reports"):
        subprocess.run(["rm", "-r", file], check=True)
    found = status(root)
    assert found["jobs"][0]["state"] == "missing"
    assert found["would_run"] == [job["name"] for job in found["jobs"]] and found["without_time"]


def test_a_training_at_work_says_how_far_it_is(root: Path) -> None:
    lock = take(lock_file("train", root))
    with lock, recorded(root, "train"):
        far = JobProgress("step 5 of 20", 0.25, 45, is_part=False)
        Record(root / PROGRESS / "train.json").write(far)
        found = status(root)
        (running,) = found["running"]
        assert (running["job"], running["process"], running["share"]) == ("train", str(os.getpid()), 0.25)
        assert running["seconds_left"] == 45
        assert job(root, "train")["state"] == "running"
        assert "step 5 of 20" in quench("status", "--root", root).stdout
        # A record that is older than the process is of another run.
        os.utime(root / PROGRESS / "train.json", (1, 1))
        assert status(root)["running"][0]["share"] is None


def stop_training(root: Path, **changed: Any) -> None:
    """As if a training with the project's settings, but for `changed`, had been stopped after step 7."""
    change_params(root, train={"r": 5})
    checkpoints = root / "models/checkpoints"
    (checkpoints / "checkpoint-7").mkdir(parents=True, exist_ok=True)
    settings = load_params(root / "params.yaml").training.model_dump(mode="json", exclude=NO_PART)
    record = {"record": {"settings": settings | changed}, "finished": False}
    (checkpoints / "run.json").write_text(json.dumps(record))


def test_a_stopped_training_names_its_checkpoint(root: Path) -> None:
    stop_training(root, max_steps=8)
    done = quench("status", "--root", root).stdout
    assert "after step 7" in done and "train.max_steps (8 →" in done and "train.r (" not in done
    stop_training(root)
    assert "goes on from checkpoint-7" in quench("status", "--root", root).stdout


def test_without_a_project_those_below_are_named(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/params.yaml").touch()
    done = quench("status", "--root", tmp_path)
    assert done.exit_code == 2 and "Q-CONFIG-001" in done.stderr and "mine" in done.stderr


def test_the_diff_of_a_stage_names_everything(root: Path) -> None:
    change_params(root, train={"r": 5, "seed": 7, "lora_alpha": 9, "weight_decay": 0.5})
    (root / "data/raw/more.jsonl").write_text("more\n")
    done = quench("status", "--diff", "train", "--root", root)
    assert done.exit_code == 0
    assert {line.split(":")[0].strip() for line in done.stdout.splitlines()[1:]} == {
        "train.r",
        "train.seed",
        "train.lora_alpha",
        "train.weight_decay",
    }
    assert {found["name"] for found in status(root, "--diff", "evaluate")["jobs"]} > {"evaluate@F16"}
    wrong = quench("status", "--diff", "trian", "--root", root)
    assert wrong.exit_code == 2 and "Q-WORKFLOW-019" in wrong.output and "train" in wrong.output
    off = quench("status", "--diff", "imatrix", "--root", root)
    assert off.exit_code == 2 and "Q-WORKFLOW-021" in off.output


def test_history_has_a_run_for_each_record_in_git(root: Path) -> None:
    def commit(message: str) -> None:
        ran(["git", "add", "dvc.lock"], cwd=root)
        ran(["git", "commit", "--quiet", "--message", message], cwd=root)

    ran(["git", "init", "--quiet"], cwd=root)
    first = put(root, b'{"score": {"F16": 90.0}, "loss": 0.5}')
    with changed_lock(root, "report") as record:
        next(out for out in record["outs"] if out["path"] == "reports/metrics.json")["md5"] = first
    commit("first")
    with changed_lock(root, "train") as record:
        record["params"]["params.lock.yaml"]["train.r"] = 99
    commit("second")
    with changed_lock(root, "curate") as record:
        next(dep for dep in record["deps"] if dep["path"] == "data/raw")["md5"] = "0" * 32
    now, second, oldest = status(root, "--history")["runs"]
    assert (now["commit"], now["changed"]) == ("", ["data/raw"])
    assert (second["subject"], second["changed"]) == ("second", ["train.r: 16 → 99"])
    assert oldest["changed"] == [] and oldest["metrics"]["score"] == {"F16": 90.0}
    assert "train.r: 16 → 99" in quench("status", "--history", "--root", root).stdout


def test_a_project_is_found_from_a_folder_in_it(root: Path) -> None:
    with chdir(root / "data/raw"):
        done = quench("status")
        assert done.exit_code == 0 and done.stdout.splitlines()[0] == str(root)
        # a folder that is named is that folder
        assert quench("status", "--root", ".").exit_code == 2
    with chdir(root.parent):
        assert "Q-CONFIG-001" in quench("status").output


def test_the_page_is_named_if_there_is_no_browser(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("webbrowser._tryorder", [])
    done = quench("status", "--open", "--root", root)
    assert (done.exit_code, done.stdout) == (0, f"{root / 'reports/index.html'}\n")
    assert "http.server" in done.stderr
    (root / "reports/index.html").unlink()
    missing = quench("status", "--open", "--root", root)
    assert missing.exit_code == 3 and "Q-CORE-001" in missing.output


def test_figures_are_those_of_the_newest_report(root: Path) -> None:
    figures = {"Q4_K_M": {"bytes": 10**8, "task_score": 0.979, "gate": "pass"}, "recommended": "Q4_K_M"}
    (root / "reports/quants.json").write_text(json.dumps(figures))
    assert status(root)["figures"] == figures
    said = quench("status", "--root", root).stdout
    assert "Q4_K_M is recommended" in said and "97.9" in said
    (root / "reports/quants.json").write_text('{"Q4')
    assert status(root)["figures"] is None


def test_a_damaged_record_is_one_sentence(root: Path) -> None:
    (root / "dvc.lock").write_text("stages: [")
    done = quench("status", "--root", root)
    assert done.exit_code == 3 and "Q-WORKFLOW-018" in done.output


def test_a_folder_without_dvc_says_that_nothing_is_recorded(root: Path) -> None:
    for file in (".dvc", "dvc.yaml"):
        (root / file).rename(root / f"{file}.away")
    assert {job["state"] for job in status(root)["jobs"]} == {"unrecorded"}


def test_options_that_do_not_go_together_are_refused(root: Path) -> None:
    for words in (
        ["--open", "--history"],
        ["--open", "--json"],
        ["--accept", "train"],
        ["--why", "so"],
        ["--accept", "train", "--why", "so", "--json"],
    ):
        assert quench("status", *words, "--root", root).exit_code == 2, words


@pytest.mark.slow
def test_no_large_library_is_imported(root: Path) -> None:
    change_params(root, serve={"port": 65535})  # A client is imported only if something listens there.
    stop_training(root)
    program = (
        "import sys\nfrom pipeline.cli import app\n"
        "try:\n    app(['status'])\nexcept SystemExit as done:\n    assert not done.code\n"
        "print(sorted({'torch', 'transformers', 'dvc', 'snakemake', 'numpy', 'httpx'} & sys.modules.keys()))"
    )
    done = ran([sys.executable, "-c", program], cwd=root, env=os.environ | {"PYTHONPATH": str(PROJECT)})
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_records_of_an_accepted_change_are_shown(root: Path) -> None:
    lock = yaml.safe_load((root / "dvc.lock").read_text())
    given = {"why": "a new name", "what": "code", "outputs": outputs_hash(lock["stages"]["train"])}
    change_params(root, report={"accepted": {"train": given, "merge": dict(given)}})
    assert status(root)["accepted"] == {"train": given}
