"""The table of exports in docs/data-formats.md: each cell is what a world case shows.

`test_world_rows.py` asserts these rows and notes on what curate makes of the inputs, so a cell can't say more
than is read. To add a source, add a folder `rows/exports-…`; `python tests/world/test_exports_table.py` then
writes the table.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml

ROWS = Path(__file__).parent / "rows"
PAGE = Path(__file__).parents[2] / "docs/data-formats.md"
BEGIN, END = "<!-- exports -->\n", "<!-- /exports -->"
COLUMNS = ("turns", "system", "tools", "reasoning", "branches", "thumbs", "attachments")
ABSENT = "—"
TURN_LISTS = ("messages", "chosen", "rejected")


def folders() -> list[Path]:
    return sorted(file.parent for file in ROWS.glob("exports-*/cases.yaml"))


def cases_of(folder: Path) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = yaml.load(
        (folder / "cases.yaml").read_text(encoding="utf-8"),
        Loader=yaml.CSafeLoader,
    )
    return cases


def cells(cases: list[dict[str, Any]]) -> dict[str, str]:
    """Return what the cases of one source show for each column."""
    rows = [row for case in cases for row in case.get("rows", [])]
    turns = [turn for row in rows for field in TURN_LISTS for turn in row.get(field, [])]
    roles = {turn["role"] for turn in turns}
    keys = {key for turn in turns for key in turn}
    notes = {name for case in cases for name in case.get("notes", {})}
    shown = {
        "turns": "kept" if {"user", "assistant"} <= roles else "",
        "system": "kept" if "system" in roles else "",
        "tools": "kept" if "tool_calls" in keys and "tool" in roles else "",
        "reasoning": "kept" if "reasoning_content" in keys else "",
        "thumbs": "pairs" if any("chosen" in row for row in rows) else "",
    }
    if not shown["thumbs"] and any("label" in row for row in rows):
        shown["thumbs"] = "kept"
    for column in COLUMNS:
        is_counted = any(name.startswith(column) for name in notes)
        shown[column] = shown.get(column) or ("counted" if is_counted else ABSENT)
    return shown


def table() -> str:
    """Return the table as docs/data-formats.md holds it."""
    lines = [f"| source | {' | '.join(COLUMNS)} |", "|" + " --- |" * (len(COLUMNS) + 1)]
    named = {cases[0]["source"]: cells(cases) for cases in map(cases_of, folders())}
    for source in sorted(named, key=str.lower):
        lines.append(f"| {source} | {' | '.join(named[source][column] for column in COLUMNS)} |")
    return "\n".join(lines) + "\n"


def test_the_table_says_what_the_cases_show() -> None:
    stated = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert stated == table(), "run `python tests/world/test_exports_table.py`"


@pytest.mark.parametrize("folder", folders(), ids=lambda folder: folder.name)
def test_each_source_shows_turns_and_is_recognized(folder: Path) -> None:
    cases = cases_of(folder)
    assert cells(cases)["turns"] == "kept"
    is_export = any(name.startswith("export_") for case in cases for name in case.get("notes", {}))
    assert is_export or any("formats" in case for case in cases), "name its export's note, or its formats"


if __name__ == "__main__":
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(before + begin + table() + END + rest.partition(END)[2], encoding="utf-8")
