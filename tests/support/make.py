"""Small things that tests of several rooms make."""

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner, Result

from pipeline.cli import app
from pipeline.config.params import read_params
from pipeline.config.params_text import completed
from pipeline.core.places import PROJECT


def script(path: Path, text: str) -> Path:
    """A shell script that stands in for a program; its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def full_params() -> str:
    """The demo's settings as a params.yaml of all keys."""
    demo = PROJECT / "params.yaml"
    return completed(demo.read_text(encoding="utf-8"), read_params(demo))


def change_params(root: Path, **sections: Mapping[str, Any]) -> Path:
    """Other values of some keys in the project's params.yaml; `root`."""
    params = yaml.safe_load((root / "params.yaml").read_text(encoding="utf-8"))
    for section, values in sections.items():
        params[section] |= values
    text = yaml.safe_dump(params, sort_keys=False, allow_unicode=True)
    (root / "params.yaml").write_text(text, encoding="utf-8")
    return root


def quench(*words: object, **options: Any) -> Result:
    """Run `quench` with these words, in this process."""
    return CliRunner().invoke(app, [*map(str, words)], **options)


def score_all_but_unsure(answers: list[dict[str, Any]], *given: Any, **options: Any) -> dict[str, Any]:
    """`score_answers`, but that an answer of ? has no score."""
    from pipeline.metrics.asking import score_answers

    figures = score_answers(answers, *given, **options)
    for answer in answers:
        answer["score"] = None if answer["answer"] == "?" else answer["score"]
    return figures


def until(happened: Callable[[], object], seconds: float = 400) -> None:
    """Wait until `happened` gives something true."""
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, f"not within {seconds:.0f} s"
        time.sleep(0.01)


def ended(command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command, and return the completed process with its output."""
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def ran(command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command, check that it ended well, and return the completed process with its output."""
    done = ended(command, **options)
    assert done.returncode == 0, done.stderr
    return done
