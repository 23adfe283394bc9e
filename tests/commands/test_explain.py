"""quench doctor explain: an error by its id, an area, everything."""

import pytest
from make import quench

from pipeline.commands.explain import reasons_table
from pipeline.core.catalog import catalog, reasons
from pipeline.core.places import PROJECT


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


def test_every_reason_is_explained_and_the_docs_have_the_same_table() -> None:
    table = (PROJECT / "docs/data-formats.md").read_text(encoding="utf-8")
    assert f"| reason | meaning, and what to do |\n| --- | --- |\n{reasons_table()}\n" in table
    for reason in reasons().values():
        assert reason.remedy.endswith(".") and not reason.meaning.endswith(".")
    shown = quench("doctor", "explain", "unknown_format").stdout
    assert reasons()["unknown_format"].example in shown and reasons()["unknown_format"].remedy in shown
    assert "](#" not in shown


def test_a_reason_that_is_spelled_nearly_right_is_named() -> None:
    shown = quench("doctor", "explain", "unknown_fromat")
    assert shown.exit_code == 2 and "did you mean unknown_format?" in shown.stderr


def test_an_unknown_id_is_an_error_with_the_nearest() -> None:
    shown = quench("doctor", "explain", "Q-CORE-0004")
    assert shown.exit_code == 2
    assert "Q-COMMANDS-033: " in shown.stderr and "Q-CORE-004" in shown.stderr
