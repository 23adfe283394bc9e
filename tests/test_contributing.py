"""The changes that CONTRIBUTING shows: each is short, applies to the project as it is now, keeps its style,
and does what it says.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.core.places import PROJECT

PAGE = (PROJECT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SHOWN = dict(re.findall(r"^## Add a (.*?)\n.*?```diff\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE))
MOST_LINES = 15  # of a diff, headers and context included

# what the change is good for, as a program that ends in an AssertionError without it
USES = {
    "scorer": """
from pathlib import Path
from pipeline.config.params import load_params
from pipeline.config.scorers import SPELLINGS
from pipeline.metrics.scorers import parse
text = Path("params.yaml").read_text()
Path("mine.yaml").write_text(text.replace("scorers: [json_fields, exact_match]", "scorers: [starts_with]"))
assert load_params(Path("mine.yaml")).evaluate.scorer == "starts_with"
measure = parse("starts_with").measure
assert (measure("Paris", "Paris, of course.", {}).points, measure("Paris", "In Paris.", {}).points) == (1.0, 0.0)
assert all(f"| `{name}` |" in Path("docs/evaluation.md").read_text() for name in SPELLINGS.replace(" or ", ", ").split(", "))
""",  # noqa: E501
    "curation rule": """
import json
from pathlib import Path
from pipeline.stages.curate.stage import curate
from pipeline.config.params import load_params
rows = [["Where?", "https://example.org/map"], ["Where?", "Here: https://example.org/map"], ["Why?", "Because."]]
Path("data/raw").mkdir(parents=True)
Path("data/raw/chats.jsonl").write_text("".join(json.dumps({"prompt": ask, "completion": answer}) + "\\n" for ask, answer in rows))
Path("models").mkdir()
Path("models/base.json").write_text('{"added_tokens": []}')
settings = load_params(Path("params.yaml")).curate.model_copy(update={"val_fraction": 0.0, "test_fraction": 0.0})
assert curate(Path(), settings, 1)["rejected"] == {}
counts = curate(Path(), settings.model_copy(update={"garbage": True}), 1)
assert counts["rejected"] == {"garbage": 1} and counts["rows_kept"] == 2
assert [rule for rule in counts["rules"] if rule["rejected"]] == [{"rule": "links", "rows_in": 3, "rows_out": 2, "rejected": 1, "changed": 0}]
assert "nothing but a link" in Path("reports/data.html").read_text()
""",  # noqa: E501
    "quantization check": """
import numpy as np
from pipeline.commands.quantization_check.checks import compare_logits, output_lines
base = np.random.default_rng(0).normal(size=(64, 100)).astype(np.float32)
def verdict(candidate):
    line = output_lines(compare_logits([base], [candidate]), "64 positions")["output_first_five"]
    return line.verdict, line.figure
assert verdict(base) == ("pass", 1.0)
second = base.copy()
second[np.arange(64), base.argmax(axis=1)] = -9.0
assert verdict(second) == ("pass", 1.0)
assert verdict(-base) == ("fail", 0.0)
""",
}


@pytest.mark.parametrize("name", USES)
def test_a_change_that_contributing_shows_applies_and_works(tmp_path: Path, name: str) -> None:
    diff = SHOWN[name]
    assert len(diff.splitlines()) <= MOST_LINES
    for folder in ("pipeline", "docs"):
        shutil.copytree(
            PROJECT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "*.png")
        )
    for file in ("params.yaml", "pyproject.toml"):
        shutil.copy(PROJECT / file, tmp_path)

    def run(*command: str, **given: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {
            "PYTHONPATH": str(tmp_path),
            "GIT_CEILING_DIRECTORIES": str(tmp_path.parent),
        }
        return subprocess.run(
            command,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            input=given.get("input"),
        )

    applied = run("git", "apply", input=diff)
    assert applied.returncode == 0, applied.stderr
    used = run(sys.executable, "-c", USES[name] + "import sys\nassert 'torch' not in sys.modules")
    assert used.returncode == 0, used.stderr
    changed = [file for file in re.findall(r"^\+\+\+ b/(.*)$", diff, re.MULTILINE) if file.endswith(".py")]
    checked = run(sys.executable, "-m", "ruff", "check", *changed)
    assert checked.returncode == 0, checked.stdout


def test_contributing_shows_these_changes_and_no_others() -> None:
    assert set(SHOWN) == set(USES)
