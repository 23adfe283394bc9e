"""quench doctor explain: an error by its id, an area, everything."""

import pytest
from make import quench

from pipeline.core.catalog import catalog


def test_an_id_is_explained_with_its_exit_code() -> None:
    problem = catalog()["Q-CORE-004"]
    shown = quench("doctor", "explain", "q-core-004")
    assert shown.exit_code == 0
    assert shown.stdout.splitlines() == [
        "Q-CORE-004 (exit code 6)",
        f"When: {problem.when}",
        f"What to do: {problem.remedy}",
    ]


@pytest.mark.parametrize("area", [None, "CORE", "config"])
def test_the_ids_of_an_area_or_all_are_listed(area: str | None) -> None:
    shown = quench("doctor", "explain", *([area] if area else []))
    found = [line.split()[0] for line in shown.stdout.splitlines()]
    assert found == [id for id in catalog() if area is None or id.startswith(f"Q-{area.upper()}-")]
    assert len(found) > 3


def test_an_unknown_id_is_an_error_with_the_nearest() -> None:
    shown = quench("doctor", "explain", "Q-CORE-0004")
    assert shown.exit_code == 2
    assert "Q-COMMANDS-033: " in shown.stderr and "Q-CORE-004" in shown.stderr
