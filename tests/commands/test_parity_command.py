"""quench parity: the last report as lines, its exit code, and a report that is not there."""

import json
from pathlib import Path
from typing import Any

import pytest
from parity_inputs import failed_report, parity_report

from pipeline.commands.parity import explained, main, show
from pipeline.core.errors import DataError


def write(root: Path, report: Any) -> Path:
    (root / "reports").mkdir(exist_ok=True)
    (root / "reports" / "parity.json").write_text(json.dumps(report), encoding="utf-8")
    return root


def test_every_check_is_a_line_and_the_verdict_is_the_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(write(tmp_path, parity_report()), as_json=False) == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if line.strip().startswith("demo-F16 → Q4_K_M")]
    assert line.split()[-5:] == ["0.000888", "0.5", "nats", "✓", "pass"]
    assert lines[-1].startswith(
        "No parity check failed, but not all were measured (depth standard). 18 of 19"
    )
    assert any("was not measured: parity.depth is standard" in line for line in lines)
    assert sum("✓ pass" in line for line in lines) == 18


def test_a_failed_check_is_exit_5_with_its_difference_and_cause(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(write(tmp_path, failed_report()), as_json=False) == 5
    output = capsys.readouterr().out
    assert (
        "Weights of the merged model → demo-F16 failed: 1 against limit 0; blk.3.attn_q.weight differs from "
        "row 17 on."
    ) in output
    assert "The first that failed is “Weights of the merged model → demo-F16”" in output
    assert (
        "  Likely cause: Its rows are the merged model's in another order: run `snakemake --force convert`."
    ) in output


def test_a_warning_is_exit_0_and_says_what_judges_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = parity_report()
    report["checks"]["outputs_q4_k_m"] |= {"verdict": "warn", "figure": 1.09, "cause": "Take more bits."}
    assert main(write(tmp_path, report), as_json=False) == 0
    output = capsys.readouterr().out
    assert "▲ warn" in output and "Take more bits." in output
    assert "report.gate" in output.splitlines()[-1]


def test_a_verdict_of_fail_is_exit_5_without_a_failed_check(tmp_path: Path) -> None:
    assert main(write(tmp_path, parity_report() | {"verdict": "fail"}), as_json=True) == 5


def test_as_json_it_is_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(write(tmp_path, failed_report()), as_json=True)
    assert json.loads(capsys.readouterr().out) == failed_report()


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
    with pytest.raises(DataError, match=id) as error:
        main(tmp_path, as_json=False)
    assert error.value.exit_code == 3


def test_what_an_older_report_lacks_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    show(
        {
            "verdict": "fail",
            "checks": {
                "merge_logits": {"title": "Merge [red]", "figure": 2, "limit": None, "verdict": "fail"}
            },
        }
    )
    output = capsys.readouterr().out
    assert output.count("Merge [red]") == 3  # no markup of the terminal's
    assert "Other" in output
    assert "None" not in output
    assert list(explained([{"title": "A", "verdict": "not measured"}])) == ["A was not measured."]
