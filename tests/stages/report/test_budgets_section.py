"""The report's section on levels made to measure says which file ships, and why."""

from typing import Any

import pytest
from gate_inputs import evaluations_of
from golden import Golden
from html_page import lines_of

from pipeline.gate.records import Budget
from pipeline.pages.templating import fill
from pipeline.stages.report.quantizing import budget_values


def found(**changed: Any) -> Budget:
    rival = {"level": "Q4_0", "bytes": 92_000_000, "kld": 0.09, "p_value": 0.001}
    rival |= {"difference": -0.05, "low": -0.06, "high": -0.04}
    types = {f"blk.{layer}.attn_v.weight": "Q8_0" for layer in range(3)} | {"token_embd.weight": "Q5_0"}
    usual = {"budget": "95MB", "chosen": "own", "most_bytes": 95_000_000, "kld": 0.04, "rows": 28}
    return Budget.model_validate(usual | {"rival": rival, "types": types} | changed)


@pytest.mark.parametrize(
    ("changed", "on_test_rows"),
    [({}, {}), ({"chosen": "level"}, {}), ({"rival": None}, {}), ({}, {"95MB": {"kld_mean": 0.05}})],
    ids=["own", "level", "alone", "measured"],
)
def test_which_file_ships_and_why(
    changed: dict[str, Any], on_test_rows: dict[str, Any], snapshot: Any
) -> None:
    values = budget_values(found(**changed), evaluations_of(on_test_rows))
    assert lines_of(fill("index/budgets.html.jinja", budgets=[values])) == snapshot(extension_class=Golden)
