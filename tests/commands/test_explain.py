"""quench doctor explain: an error by its id, an area, everything."""

import ast
from pathlib import Path

import pytest
from make import quench

from pipeline.chat.tokens import NOT_LEARNED
from pipeline.commands.explain import reasons_table
from pipeline.core.catalog import catalog, left_out, reasons
from pipeline.core.places import PROJECT
from pipeline.stages.curate.comparing.decide import OUTCOMES
from pipeline.stages.preprocess.stage import TOO_LONG


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
    assert f"| reason | meaning, and what to do |\n| --- | --- |\n{reasons_table(reasons())}\n" in table
    head = "| reason | why stage preprocess leaves a row out |\n| --- | --- |\n"
    assert f"{head}{reasons_table(left_out())}\n" in table
    for reason in (*reasons().values(), *left_out().values()):
        assert reason.remedy.endswith(".") and not reason.meaning.endswith(".")
    shown = quench("doctor", "explain", "unknown_format").stdout
    assert reasons()["unknown_format"].example in shown and reasons()["unknown_format"].remedy in shown
    assert "](#" not in shown


def codes(module: Path, kinds: frozenset[str]) -> set[str]:
    """The reasons that a module gives errors of these kinds, as text or as one of its constants."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    constants = {
        node.targets[0].id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in kinds and node.args:
            first = node.args[0]
            code = first.value if isinstance(first, ast.Constant) else constants.get(getattr(first, "id", ""))
            found |= {code} if code else set()
    return found


def test_every_reason_that_the_code_gives_is_explained() -> None:
    curating = frozenset({"BadRow", "BadLine", "BrokenArchive"})
    given = {reason for _, reason in OUTCOMES.values()}
    readers = (PROJECT / "pipeline/core/jsonl.py", PROJECT / "pipeline/chat/rows.py")
    for module in (*readers, *(PROJECT / "pipeline/stages/curate").rglob("*.py")):
        given |= codes(module, curating)
    assert "no_assistant" in given and given <= reasons().keys()
    encoding = {TOO_LONG}
    for module in (PROJECT / "pipeline/chat").glob("*.py"):
        if module.name != "trial.py":  # It tries a base, and leaves out no row.
            encoding |= codes(module, frozenset({"Unrenderable"}))
    assert NOT_LEARNED in encoding and encoding == left_out().keys()
    for reason in sorted(given | encoding):
        assert quench("doctor", "explain", reason).exit_code == 0, reason


def test_a_reason_that_is_spelled_nearly_right_is_named() -> None:
    shown = quench("doctor", "explain", "unknown_fromat")
    assert shown.exit_code == 2 and "did you mean unknown_format?" in shown.stderr


def test_an_unknown_id_is_an_error_with_the_nearest() -> None:
    shown = quench("doctor", "explain", "Q-CORE-0004")
    assert shown.exit_code == 2
    assert "Q-COMMANDS-033: " in shown.stderr and "Q-CORE-004" in shown.stderr
