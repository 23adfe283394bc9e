"""Small things that tests of several rooms make."""

from pathlib import Path


def script(path: Path, text: str) -> Path:
    """A shell script that stands in for a program; its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path
