"""Run the tests that CI leaves out; keep when each file was last seen, how long it took and what came of it.

    python benchmarks/exhaustive.py [NAME …]      (`make exhaustive`)

A NAME is a file with tests of the mark `exhaustive`, or `properties`: all that Hypothesis and tables of
damage hold, of which CI draws a quarter. CONTRIBUTING.md says why each is not in CI. The record is
benchmarks/results/exhaustive.json, written after each; null is what was not seen since it is kept. Exit code
1 if a test fails.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.junit import counts_of, suite_of
from pipeline.core.places import PROJECT

RECORD = PROJECT / "benchmarks/results/exhaustive.json"
PROPERTIES = "properties"


def left_out() -> dict[str, list[str]]:
    """pytest's arguments for each thing that CI leaves out, by its name."""
    tests = sorted((PROJECT / "tests").rglob("test_*.py"))
    words = {file: file.read_text(encoding="utf-8") for file in tests}
    files = [str(file.relative_to(PROJECT)) for file, text in words.items() if "mark.exhaustive" in text]
    drawn = [str(file.relative_to(PROJECT)) for file, text in words.items() if "from draws import" in text]
    every = ["--hypothesis-profile", "exhaustive", "-m", "not gpu and not slow", *drawn]
    return {file: ["-m", "exhaustive", file] for file in files} | {PROPERTIES: every}


def seen(arguments: Sequence[str]) -> dict[str, Any]:
    """What came of pytest with these arguments, as the record holds it."""
    started = time.monotonic()
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        command = [sys.executable, "-m", "pytest", f"--junitxml={report.name}", *arguments]
        code = subprocess.run(command, cwd=PROJECT, check=False).returncode
        counts = counts_of(suite_of(Path(report.name)))
    commit = ["git", "rev-parse", "--short", "HEAD"]
    return {
        "seen": f"{datetime.now(UTC):%Y-%m-%dT%H:%MZ}",
        "minutes": round((time.monotonic() - started) / 60, 1),
        **counts,
        "exit_code": code,
        "commit": subprocess.check_output(commit, cwd=PROJECT, text=True).strip(),
    }


def main() -> int:
    """Run each in turn; 1 if one fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    jobs, failed = left_out(), False
    names = parser.parse_args().names or list(jobs)
    if unknown := [name for name in names if name not in jobs]:
        parser.error(f"{', '.join(unknown)}: give some of {', '.join(jobs)}")
    for name in names:
        record = json.loads(RECORD.read_text(encoding="utf-8"))
        record[name] = seen(jobs[name])
        failed |= bool(record[name]["exit_code"])
        RECORD.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
