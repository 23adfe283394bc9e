"""quench model parity: the last report as lines, its exit code, and a report that is not there."""

import json
from pathlib import Path
from typing import Any

import pytest
from golden import Golden
from make import quench
from parity_inputs import failed_report, parity_report


def write(root: Path, report: Any) -> Path:
    (root / "reports").mkdir(exist_ok=True)
    (root / "reports" / "parity.json").write_text(json.dumps(report), encoding="utf-8")
    return root


def warned() -> Any:
    report = parity_report()
    report["checks"]["outputs_q4_k_m"] |= {"verdict": "warn", "figure": 1.09, "cause": "Take more bits."}
    return report


def older() -> Any:
    """Return an older report: parts are missing, and a title looks like terminal markup but is none."""
    check = {"title": "Merge [red]", "figure": 2, "limit": None, "verdict": "fail", "unit": "", "detail": ""}
    return {"verdict": "fail", "checks": {"merge_logits": check}, "files": {}}


@pytest.mark.parametrize(
    ("report", "code"),
    [(parity_report(), 0), (failed_report(), 5), (warned(), 0), (older(), 5)],
    ids=["passed", "failed", "warned", "older"],
)
def test_every_check_is_a_line_and_the_verdict_is_the_last(
    tmp_path: Path, report: Any, code: int, snapshot: Any
) -> None:
    shown = quench("model", "parity", "--root", write(tmp_path, report))
    assert (shown.exit_code, shown.stdout) == (code, snapshot(extension_class=Golden))


def test_a_verdict_of_fail_is_exit_5_without_a_failed_check(tmp_path: Path) -> None:
    write(tmp_path, parity_report() | {"verdict": "fail"})
    assert quench("model", "parity", "--json", "--root", tmp_path).exit_code == 5


def test_as_json_it_is_the_report(tmp_path: Path) -> None:
    shown = quench("model", "parity", "--json", "--root", write(tmp_path, failed_report()))
    assert json.loads(shown.stdout) == failed_report()


NO_REPORTS = (
    "{",
    '{"checks": []}',
    "[]",
    "[" * 100_000,
    '{"checks": {"a": 1}, "verdict": "pass"}',
    '{"checks": {"a": {}}, "verdict": "pass"}',
)


@pytest.mark.parametrize(
    ("content", "id"), [(None, "Q-CORE-001"), *((text, "Q-CORE-006") for text in NO_REPORTS)]
)
def test_a_report_that_is_not_there_or_not_whole_is_one_sentence(
    tmp_path: Path, content: str | None, id: str
) -> None:
    if content is not None:
        (write(tmp_path, {}) / "reports" / "parity.json").write_text(content, encoding="utf-8")
    shown = quench("model", "parity", "--root", tmp_path)
    assert (shown.exit_code, f"{id}: " in shown.stderr) == (3, True)
