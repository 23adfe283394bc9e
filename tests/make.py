"""Small things that tests of several rooms make."""

from pathlib import Path

from pipeline.config.params import read_params
from pipeline.config.text import completed
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
