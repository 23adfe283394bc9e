"""docs/bases.md says what tests prove: every mark in its tables is a test's declaration."""

from datetime import date
from pathlib import Path

import base_table
import pytest
from base_table import COLUMNS, FAMILIES, PAGE, declared, page_with, run_on, tables


def test_the_page_has_the_tables_that_tests_declare(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--record"):
        PAGE.write_text(page_with(tables(date.today().isoformat())), encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    assert page == page_with(tables(run_on(page)))


def test_every_family_and_column_of_the_table_has_a_test() -> None:
    cells, refusals = declared()
    assert {cell.family for cell in cells} == set(FAMILIES)
    assert {cell.column for cell in cells} == set(COLUMNS)
    assert refusals


def test_a_refusal_that_its_test_does_not_look_for_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = '@pytest.mark.base_refused("A base", "Q-BASE-006")\ndef test_nothing(): ...\n'
    (tmp_path / "test_that_looks_for_nothing.py").write_text(f"import pytest\n{test}")
    monkeypatch.setattr(base_table, "TESTS", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="Q-BASE-006"):
        declared()
