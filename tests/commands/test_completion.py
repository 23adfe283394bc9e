"""Shell completion: a real Bash asks for candidates as it does at a TAB, zsh and fish by their variables."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.core.places import PROJECT

HEAVY = ("torch", "transformers", "dvc", "snakemake", "matplotlib", "scipy")
# What Bash does at a TAB: the words of the line, which it splits at "=" too, and the place of the last one.
AT_A_TAB = """
source <(_QUENCH_COMPLETE=source_bash quench)
while read -r line; do
  eval "COMP_WORDS=(quench $line)"; COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=()
  _quench_completion quench
  echo "${COMPREPLY[@]}"
done
"""


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """The environment of a shell whose PATH has `quench`, which says on stderr what it should not load."""
    program = tmp_path / "bin" / "quench"
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\n"
        "import sys\nfrom pipeline.cli import app\n"
        f"try:\n    app()\n"
        f"finally:\n    print(*(set({HEAVY!r}) & set(sys.modules)), end='', file=sys.stderr)\n"
    )
    program.chmod(0o755)
    return os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(PROJECT)}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "my #project"
    folder.mkdir()
    (folder / "params.yaml").write_text(
        "quantize: {levels: [Q4_K_M, Q6_K]}\nevaluate: {models: [base-F16, F16, Q6_K]}\n"
    )
    return folder


def at_a_tab(lines: list[str], shell: dict[str, str], folder: Path) -> list[str]:
    """Return what Bash offers at the end of each line."""
    done = subprocess.run(
        ["bash", "-c", AT_A_TAB],
        input="\n".join(lines) + "\n",
        env=shell,
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert not done.stderr
    return done.stdout.splitlines()


def test_bash_is_offered_what_fits(shell: dict[str, str], project: Path) -> None:
    offered = {
        "stat": "status",
        "run prep": "preprocess",
        "run train train.learning_ra": "train.learning_rate=0.0002",
        "run train.tuner =": "lora scales",
        "run train.tuner = sc": "scales",
        "run train.tuner = scales merg": "merge",
        "config show quantize.le": "quantize.levels",
        "config use demo-g": "demo-gguf demo-grpo",
        "ship Q": "Q4_K_M Q6_K",
        "doctor explain unknown_f": "unknown_format",
        "data export x --to sh": "sharegpt",
    }
    assert dict(zip(offered, at_a_tab([*offered], shell, project), strict=True)) == offered


def test_the_settings_and_the_folder_are_those_of_the_project(
    shell: dict[str, str], project: Path, tmp_path: Path
) -> None:
    (project / "params.lock.yaml").write_text("train: {r: 12}\n")
    assert at_a_tab([r"run --root my\\\ \\#project train.r"], shell, tmp_path) == ["train.r=12"]


def test_a_project_that_cannot_be_read_offers_nothing(shell: dict[str, str], project: Path) -> None:
    (project / "params.yaml").write_text("quantize: [")
    (project / "params.lock.yaml").write_text("train: [")
    assert not any(at_a_tab(["serve Q", "run train.r"], shell, project))


@pytest.mark.parametrize(
    ("name", "action", "offered"),
    [("fish", "get-args", "train.tuner=lora\ntrain.tuner=scales"), ("zsh", "", '"train.tuner=scales"')],
)
def test_zsh_and_fish_are_offered_entire_words(
    name: str, action: str, offered: str, shell: dict[str, str], project: Path
) -> None:
    line = {
        "_QUENCH_COMPLETE": f"complete_{name}",
        "_TYPER_COMPLETE_ARGS": "quench run train.tuner=",
        "_TYPER_COMPLETE_FISH_ACTION": action,
    }
    done = subprocess.run(
        ["quench"], env=shell | line, cwd=project, capture_output=True, text=True, check=True
    )
    assert offered in done.stdout and not done.stderr
