"""Rows as public bug reports of other tools describe them; README.md here says how to add a case."""

import io
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from curating import TOKENS, Project

ROWS = Path(__file__).parent / "rows"
KEYS = {
    "input",
    "report",
    "why",
    "rows",
    "rejected",
    "changes",
    "formats",
    "notes",
    "settings",
    "source",
    "tokens",
}


def cases() -> list[Any]:
    """Return every case of every folder as a parameter of pytest, named by its folder and input."""
    found = []
    for file in sorted(ROWS.glob("*/cases.yaml")):
        for number, case in enumerate(yaml.safe_load(file.read_text(encoding="utf-8")), start=1):
            name = f"{file.parent.name}/{number}-{case['input']}"
            found.append(pytest.param(file.parent, case, id=name))
    return found


def selected(given: Any, wanted: Any) -> Any:
    """Return of `given` what `wanted` speaks of: the keys of an outer object, all of everything inside it."""
    return {key: given.get(key) for key in wanted}


def place_of(entry: dict[str, Any]) -> int | str:
    """Return the line of a rejected row, or LINE~NUMBER if the line gives several."""
    within = entry.get("source", "").rpartition(":")[2]
    return within or entry["line"] or 0


def content_of(path: Path) -> bytes:
    """Return a file's bytes; of a folder an archive of what lies in it."""
    if path.is_file():
        return path.read_bytes()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(path.rglob("*")):
            if file.is_file():
                archive.write(file, file.relative_to(path).as_posix())
    return packed.getvalue()


@pytest.mark.parametrize(("folder", "case"), cases())
def test_an_input_after_a_public_report(folder: Path, case: dict[str, Any], tmp_path: Path) -> None:
    assert not case.keys() - KEYS, "a key that README.md does not name"
    content = content_of(folder / case["input"])
    project = Project(tmp_path, {case["input"]: content}, tokens=case.get("tokens", TOKENS))
    report = project.run(**{"drop_duplicates": "none", **case.get("settings", {})})

    rejected = {place_of(entry): entry["reason"] for entry in project.rejects()}
    assert rejected == case.get("rejected", {}), project.rejects()

    rows = project.rows()
    wanted = case.get("rows", [])
    assert [selected(row, expected) for row, expected in zip(rows, wanted, strict=False)] == wanted
    assert len(rows) == len(wanted), rows[len(wanted) :]

    file = report["files"].get(case["input"], {})
    assert file.get("formats") == case.get("formats", file.get("formats"))
    notes = file.get("notes", {})
    assert selected(notes, case.get("notes", {})) == case.get("notes", {})

    changed = {change["rule"] for change in project.changes()}
    assert changed == set(case.get("changes", []))
    assert report["rows_read"] == report["rows_accepted"] + report["rows_rejected"]


def test_every_input_has_a_case() -> None:
    described = {folder / case["input"] for folder, case in (case.values for case in cases())}
    lying = {path for path in ROWS.glob("*/*") if path.name != "cases.yaml"}
    assert lying == described
