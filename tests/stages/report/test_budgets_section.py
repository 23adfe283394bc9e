"""The report's section on levels made to measure says which file ships, and why."""

from pathlib import Path
from typing import Any

import pytest
from golden import Golden
from html_page import lines_of, section_of
from report_inputs import answers, demo_params, evaluation, put, write_evaluation, write_inputs

from pipeline.stages.report import stage

RIVAL = {"level": "Q4_0", "bytes": 92_000_000, "kld": 0.09, "p_value": 0.001}
RIVAL |= {"difference": -0.05, "low": -0.06, "high": -0.04}
TYPES = {f"blk.{layer}.attn_v.weight": "Q8_0" for layer in range(3)} | {"token_embd.weight": "Q5_0"}
BUDGETS: dict[str, dict[str, Any]] = {"95MB": {}, "96MB": {"chosen": "level"}, "97MB": {"rival": None}}


@pytest.mark.usefixtures("plots_once")
def test_which_file_ships_and_why(tmp_path: Path, snapshot: Any) -> None:
    """The chosen types, the fixed level, and chosen types that nothing was held against."""
    write_inputs(tmp_path)
    (tmp_path / "reports/budget").mkdir()
    usual = {"chosen": "own", "most_bytes": 95_000_000, "kld": 0.04, "rows": 28}
    for text, changed in BUDGETS.items():
        record = usual | {"budget": text, "rival": RIVAL, "types": TYPES} | changed
        put(tmp_path / f"reports/budget/{text}.json", record)
        write_evaluation(tmp_path, text, evaluation("Q4_K_M") | {"model": text}, answers("Q4_K_M"))
    params = demo_params()
    models = params.evaluate.model_copy(update={"models": [*params.evaluate.models, *BUDGETS]})
    stage.main(params.model_copy(update={"evaluate": models}), tmp_path)
    page = (tmp_path / "reports/index.html").read_text(encoding="utf-8")
    assert lines_of(section_of(page, "budgets")) == snapshot(extension_class=Golden)
