"""What CI leaves out is listed, with its reason, and its record is kept (`benchmarks/exhaustive.py`)."""

import json
import re

from benchmarks.exhaustive import RECORD, left_out
from pipeline.core.places import PROJECT


def test_what_ci_leaves_out_is_listed_and_recorded() -> None:
    page = (PROJECT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([^`]+)`: .+ \| .+ \| .+ \|$", page, re.MULTILINE)
    assert sorted(rows) == sorted(left_out()) == sorted(json.loads(RECORD.read_text()))
