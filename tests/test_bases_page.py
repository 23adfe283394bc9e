"""docs/bases.md says what tests prove: every mark in its tables is a test's declaration."""

import pytest
from base_table import COLUMNS, FAMILIES, PAGE, declared, page_with, tables


def test_the_page_has_the_tables_that_tests_declare(request: pytest.FixtureRequest) -> None:
    made = page_with(tables())
    if request.config.getoption("--record"):
        PAGE.write_text(made, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == made


def test_every_family_and_column_of_the_table_has_a_test() -> None:
    cells, refusals = declared()
    assert {cell.family for cell in cells} == set(FAMILIES)
    assert {cell.column for cell in cells} == set(COLUMNS)
    assert refusals
