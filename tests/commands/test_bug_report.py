"""`quench doctor report` says what a maintainer asks for, and nothing of the user, machine or rows."""

import os
import shutil
import socket
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from graph_settings import graph_text
from make import change_params, full_params, quench

from pipeline.config.params import load_params
from pipeline.core.places import PROJECT
from pipeline.workflow.overview.states import overview
from pipeline.workflow.state.lockfile import stages_of

SECRETS = {
    "the login": "wilhelmina",
    "the name in Git": "Wilhelmina Q. Public",
    "the address in Git": "mina@example-hospital.org",
    "the host": socket.gethostname(),
    "a key": "sk-proj-abcdEFGH1234ijklMNOP5678qrstUVWX9012",
    "a token": "hf_abcdefghijklmnopqrstuvwxyzABCDEFGH",
    "a card": "4111 1111 1111 1111",
    "a person's address": "patient.zero@example-hospital.org",
    "a file of data": "patients of ward 7.jsonl",
    "its stem": "patients of ward 7",
    "a row": "My mother has been ill",
    "the model": "hospital/ward-llm-7b",
    "the project": "ward-seven-bot",
    "a folder": "/mnt/ward7-share",
    "an external scorer": "score_patients.py",
}
ERROR = (
    "Q-TRAIN-004: {home}/secret/x.jsonl and {root}/data/raw/patients of ward 7.jsonl on {host}: wilhelmina "
    "read 'My mother has been ill' from /mnt/ward7-share/x of hospital/ward-llm-7b with "
    "sk-proj-abcdEFGH1234ijklMNOP5678qrstUVWX9012 hf_abcdefghijklmnopqrstuvwxyzABCDEFGH card 4111 1111 1111 "
    "1111, tell patient.zero@example-hospital.org; the limit is 1024 tokens"
)
BUG = """
Q-TRAIN-004: an older error
Traceback (most recent call last):
  File "{root}/.venv/lib/site-packages/pipeline/stages/train/loop.py", line 12, in step
    secret_line("My mother has been ill")
torch.OutOfMemoryError: My mother has been ill
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project full of secrets, in which nothing ran."""
    root = tmp_path / "ward-seven-bot"
    (root / "data/raw").mkdir(parents=True)
    (root / "logs").mkdir()
    (root / "data/raw/patients of ward 7.jsonl").write_text("{}")
    (root / "params.yaml").write_text(full_params(), encoding="utf-8")
    change_params(
        root,
        base={"model": "hospital/ward-llm-7b", "revision": None, "file": None, "sha256": None, "places": []},
        train={"r": 12},
        convert={"name": "ward-seven-bot"},
        evaluate={
            "scorers": ["external", "rouge_l"],
            "external": {"command": ["python3", "score_patients.py"]},
        },
    )
    monkeypatch.setenv("LOGNAME", "wilhelmina")
    for words in ("init --quiet", "config user.email mina@example-hospital.org"):
        subprocess.run(["git", *words.split()], cwd=root, check=True)
    subprocess.run(["git", "config", "user.name", "Wilhelmina Q. Public"], cwd=root, check=True)
    return root


def report(root: Path) -> str:
    done = quench("doctor", "report", "--root", root)
    assert done.exit_code == 0, done.output
    assert not done.stderr
    return done.stdout


def told(text: str) -> list[str]:
    """The planted secrets that a text has."""
    secrets = SECRETS | {"the home": str(Path.home()), "its end": Path.home().name}
    return [name for name, secret in secrets.items() if secret.lower() in text.lower()]


@pytest.mark.parametrize("broken", [False, True])
def test_no_secret_no_name_and_no_path_is_told(project: Path, broken: bool) -> None:
    sentence = ERROR.format(home=Path.home(), root=project.resolve(), host=socket.gethostname())
    (project / "logs/train.log").write_text(f"{sentence}\n")
    if broken:
        with (project / "params.yaml").open("a") as file:
            file.write("evaluation: {}\n")
    said = report(project)
    assert not told(said), said
    assert "Q-TRAIN-004: " in said and "the limit is 1024 tokens" in said
    assert ("train.r: 12" in said and "base.model: (a text of 20 characters)" in said) != broken
    assert f"torch {version('torch')}" in said


def test_a_bug_is_told_by_its_place_in_the_code(project: Path) -> None:
    (project / "logs/train.log").write_text(BUG.format(root=project))
    said = report(project)
    assert not told(said), said
    assert "pipeline/stages/train/loop.py:12 step" in said and "torch.OutOfMemoryError" in said


def test_the_newest_error_counts_and_a_large_log_is_read_from_its_end(project: Path) -> None:
    (project / "logs/curate.log").write_text("Q-CURATE-001: old\n")
    os.utime(project / "logs/curate.log", (1, 1))
    with (project / "logs/merge.log").open("wb") as log:
        log.write(b"Q-MERGE-001: at the beginning\n")
        log.truncate(100 << 20)
        log.seek(0, os.SEEK_END)
        log.write(b"\nquench: Q-MERGE-002: at the end\n")
    said = report(project)
    assert "Q-MERGE-002: at the end" in said and "Q-CURATE-001" not in said and "Q-MERGE-001" not in said


def test_the_states_of_stages_are_those_of_status(project: Path) -> None:
    from dvc.repo import Repo

    Repo.init(str(project)).close()
    (project / "dvc.yaml").write_text(graph_text("merged"))
    (project / "models/adapter").mkdir(parents=True)
    params = load_params(project / "params.yaml")
    train = next(entry for name, entry in stages_of(project).items() if name == "train")
    keys = {"params.lock.yaml": {"train.r": 16}}
    outs = [{"path": path, "md5": "0"} for path in train.outs]
    record = {"cmd": train.command, "params": keys, "outs": outs}
    (project / "dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": {"train": record}}))
    said = report(project)
    jobs = overview(project, params).jobs
    assert [job.name for job in jobs if f"    {job.name}: {job.state}" not in said] == []
    assert "train: damaged (" in said and "merge: missing\n" in said
    assert not told(said), said


@pytest.mark.parametrize("text", ["train: [", "trian: {}", "train: {r: 'My mother has been ill'}"])
def test_a_broken_project_is_reported_too(project: Path, text: str) -> None:
    (project / "params.yaml").write_text(text)
    (project / "dvc.yaml").write_text("stages: [")
    (project / "dvc.lock").write_text("<<<<<<< HEAD")
    said = report(project)
    assert "Q-CONFIG-" in said and "### Last error" in said and not told(said), said


def test_the_demo_is_told_in_full(tmp_path: Path) -> None:
    shutil.copy(PROJECT / "params.yaml", tmp_path)
    said = report(tmp_path)
    assert "(a text" not in said and "evaluate.scorers: [json_fields, exact_match]" in said
