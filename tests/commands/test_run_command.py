"""`quench run`: settings go to Snakemake's --config, names of jobs become files, and a stage's exit code is
passed on.
"""

import json
import os
import sys
from pathlib import Path

import pytest
from make import ended, full_params, quench
from user_project import BIN

from pipeline.core.places import PROJECT

F16_ALONE = "evaluate.models=[F16]"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The words that Snakemake is started with, instead of starting it."""
    words: list[list[str]] = []
    monkeypatch.setattr("pipeline.commands.run.main", lambda root, given: words.append(given) or 0)
    return words


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "params.yaml").write_text(full_params(), encoding="utf-8")
    return tmp_path


def test_settings_and_snakemakes_own_words_are_told_apart(started: list[list[str]], folder: Path) -> None:
    words = ["train", "train.method=dpo", "-c2", "train.preference.beta=0.5", "--quiet"]
    refused = quench("run", "--root", folder, *words, "report.html=no")
    assert refused.exit_code == 2 and "Q-CONFIG-005" in refused.stderr and not started
    done = quench("run", "--root", folder, *words)
    assert done.exit_code == 0, done.output
    assert started[0][:-1] == ["train", "-c2", "--quiet", "--logger=quench", "--config"]
    name, _, keys = started[0][-1].partition("=")
    assert (name, json.loads(keys)) == ("train", {"method": "dpo", "preference": {"beta": 0.5}})


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ([], ["--logger=quench"]),
        (["--json"], ["--logger=quench", "--logger-quench-form=json"]),
        (["-v", "-c2"], ["-c2", "--verbose", "--logger=quench"]),
        (["--logger", "rich"], ["--logger", "rich"]),
    ],
)
def test_the_view_is_quench_s_unless_another_is_named(
    started: list[list[str]], folder: Path, words: list[str], given: list[str]
) -> None:
    done = quench("run", "--root", folder, *words)
    assert done.exit_code == 0, done.output
    assert started == [given]


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (["quantize@Q4_K_M"], ["models/gguf/demo-Q4_K_M.gguf"]),
        (["quantize@q4_k_m"], ["models/gguf/demo-Q4_K_M.gguf"]),
        (["quantize@Q6_K", "quantize.levels=[Q6_K]", F16_ALONE], ["models/gguf/demo-Q6_K.gguf"]),
        (
            ["quantize", "quantize.levels=[Q4_K_M, Q6_K]", F16_ALONE],
            ["models/gguf/demo-Q4_K_M.gguf", "models/gguf/demo-Q6_K.gguf"],
        ),
        (["evaluate@F16", "-c", "2"], ["reports/eval/F16.answers.jsonl", "-c", "2"]),
        (["-c", "2", "-R", "quantize"], ["-c", "2", "-R", "quantize"]),
        (["mine", "all"], ["mine", "all"]),
        (["reports/data.html"], ["reports/data.html"]),
    ],
)
def test_names_of_jobs_become_files(
    started: list[list[str]], folder: Path, words: list[str], given: list[str]
) -> None:
    (folder / "Snakefile").write_text('include: resource("Snakefile")\n\n\nrule mine:\n    output: "x"\n')
    done = quench("run", "--root", folder, *words)
    assert done.exit_code == 0, done.output
    assert started[0][: len(given)] == given


@pytest.mark.parametrize(
    ("words", "id", "hint"),
    [
        (["trian"], "Q-WORKFLOW-019", "train"),
        (["evalute@F16", "-c", "2"], "Q-WORKFLOW-019", "evaluate"),
        (["quantize@Q4_K_X"], "Q-WORKFLOW-019", "quantize@Q4_K_M"),
        (["train@F16"], "Q-WORKFLOW-019", "train"),
        (["tuned"], "Q-WORKFLOW-021", "train.tuner"),
        (["compare_train"], "Q-WORKFLOW-021", "compare.seeds is"),
    ],
)
def test_a_name_that_no_job_has_is_refused_before_snakemake(
    started: list[list[str]], folder: Path, words: list[str], id: str, hint: str
) -> None:
    refused = quench("run", "--root", folder, *words)
    assert refused.exit_code == 2 and id in refused.stderr and not started
    assert hint in refused.stderr.replace(words[0], "", 1)


@pytest.mark.parametrize("command", ["quench", "snakemake"])
def test_a_failed_stage_has_the_last_word_and_its_exit_code(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{BIN}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    root = tmp_path / "project"
    assert quench("new", root).exit_code == 0
    (root / "data/raw/a.jsonl").write_text('{"messages": []}\n')
    run = {"quench": ["pipeline.cli", "run"], "snakemake": ["snakemake"]}[command]
    setting = {"quench": ["base.model=/nowhere"], "snakemake": ["--config", "base={model: /nowhere}"]}
    done = ended([sys.executable, "-m", *run, "base", "-c1", *setting[command]], cwd=root)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("base: Q-BASE-")
    assert last in (root / "logs/base.log").read_text()
    assert done.returncode in (2, 3)
