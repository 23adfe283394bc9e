"""The tables of docs/bases.md, made from what tests declare about the bases that they try.

A test that proves something of a family carries `@pytest.mark.base_cells(column, …, families=…)`:
`families` are model types, or the name of the test's argument that has them; `called` translates them.
`says` is written instead of a check mark. A test of a refusal carries
`@pytest.mark.base_refused(base, id)`. So a cell stands in the table as long as a test declares it.
"""

import importlib
import inspect
import re
import sys
from collections.abc import Container, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from families import ROWS

from pipeline.core.catalog import catalog
from pipeline.core.places import PROJECT
from pipeline.llamacpp.tools import VERSION

TESTS = PROJECT / "tests"
PAGE = PROJECT / "docs" / "bases.md"
START, END = "<!-- made by pytest --record tests/test_bases_page.py -->", "<!-- end -->"
COLUMNS = ("graph", "NF4", "merged", "levels", "adapter", "scales", "parity", "served", "Liger")
# model types in the table's order, and the published models of each
FAMILIES = {name: row.models for name, row in ROWS.items() if row.models}
LACKING = "not tested"
# columns of which each shows that a base as a folder, or as a GGUF that is trained on, comes through
FOLDER, GGUF = ("merged",), ("adapter", "scales")
RUN = re.compile(r"Run on (\S+) with ")


@dataclass(frozen=True)
class Cell:
    """The proof that a test gives of a family, in one column; `text` is "✓" or what it says instead."""

    family: str
    column: str
    text: str
    file: Path


@dataclass(frozen=True)
class Refusal:
    """A kind of base that a test sees refused with the error `id`."""

    base: str
    id: str
    file: Path


def declared() -> tuple[list[Cell], list[Refusal]]:
    """Return what all tests declare. Raises `ValueError` for a declaration that no table has a place for."""
    cells, refusals = [], []
    for file, test in marked_tests():
        for mark in test.pytestmark:
            if mark.name == "base_cells":
                cells += cells_of(mark, test.pytestmark, file)
            elif mark.name == "base_refused":
                base, error_id = mark.args
                # once in the declaration itself
                if file.read_text(encoding="utf-8").count(error_id) < 2:
                    raise ValueError(f"{file.name} declares {error_id} and does not look for it")
                refusals.append(Refusal(base, error_id, file))
    return cells, refusals


def marked_tests() -> Iterator[tuple[Path, Any]]:
    """Yield (file, function) of every test with marks, of the files that declare a base."""
    for file in sorted(TESTS.rglob("test_*.py")):
        text = file.read_text(encoding="utf-8")
        if "mark.base_cells(" not in text and "mark.base_refused(" not in text:
            continue
        if str(file.parent) not in sys.path:  # as pytest puts it there
            sys.path.insert(0, str(file.parent))
        module = importlib.import_module(file.stem)
        for name, test in inspect.getmembers(module, inspect.isfunction):
            if name.startswith("test_") and hasattr(test, "pytestmark"):
                yield file, test


def cells_of(mark: Any, marks: list[Any], file: Path) -> Iterator[Cell]:
    """Yield the cells of one declaration, whose families may be those that the test is parametrized with."""
    families = mark.kwargs["families"]
    names = parameters(families, marks) if isinstance(families, str) else families
    for name in names:
        family = mark.kwargs.get("called", {}).get(name, name)
        for column in mark.args:
            if column not in COLUMNS or family not in FAMILIES:
                raise ValueError(f"{file.name} declares {column} of {family}: name both in {__name__}")
            yield Cell(family, column, mark.kwargs.get("says", "✓"), file)


def parameters(argument: str, marks: list[Any]) -> list[str]:
    """Return the values with which a test's `argument` is parametrized."""
    for mark in marks:
        if mark.name != "parametrize":
            continue
        names = mark.args[0]
        names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
        if argument in names:
            rows = [getattr(row, "values", row) for row in mark.args[1]]
            place = names.index(argument)
            return [row if isinstance(row, str) else row[place] for row in rows]
    raise ValueError(f"no test is parametrized with {argument}")


def link(text: str, file: Path) -> str:
    """Return `text` as a link to the test's file, whose place stands below the tables."""
    return f"[{text}][{file.stem}]"


def depth(columns: Container[str]) -> str:
    """Return how far the tests follow a family in these columns: "parity", or the first stage alone."""
    return "parity" if "parity" in columns else "stage base"


def path(columns: Container[str]) -> str:
    """Return the forms of the family's base that the tests train on."""
    forms = {"folder": FOLDER, "GGUF": GGUF}
    return " and ".join(name for name, needed in forms.items() if any(map(columns.__contains__, needed)))


def run_on(page: str) -> str:
    """Return the day on which the page says that the tests ran."""
    match = RUN.search(page)
    assert match, "pytest --record tests/test_bases_page.py writes it"
    return match[1]


def tables(day: str) -> str:
    """Return both tables as Markdown, recorded on this `day`."""
    cells, refusals = declared()
    by_place = {(cell.family, cell.column): cell for cell in reversed(cells)}
    versions = f"llama-cpp-python {VERSION} and Transformers {metadata.version('transformers')}"
    lines = [f"Run on {day} with {versions}.", ""]
    titles = ("model type", "models", "path", "depth", *COLUMNS)
    lines += [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    files = {declaration.file for declaration in (*cells, *refusals)}
    for family, models in FAMILIES.items():
        row = [by_place.get((family, column)) for column in COLUMNS]
        proven = {cell.column for cell in row if cell and cell.text == "✓"}
        if proven:
            shown = [link(cell.text, cell.file) if cell else LACKING for cell in row]
            about = (f"`{family}`", models, path(proven) or "folder", depth(proven))
            lines.append(f"| {' | '.join((*about, *shown))} |")
    problems = catalog()
    lines += ["", "## What stage `base` refuses", ""]
    lines += ["| base | error | why | what to do |", "|---|---|---|---|"]
    for refusal in sorted(refusals, key=lambda refusal: (refusal.id, refusal.base)):
        problem = problems[refusal.id]
        error = link(refusal.id, refusal.file)
        lines.append(f"| {refusal.base} | {error} | {problem.when} | {problem.remedy} |")
    places = {file.stem: f"../{file.relative_to(PROJECT).as_posix()}" for file in files}
    return "\n".join([*lines, "", *(f"[{name}]: {places[name]}" for name in sorted(places))])


def page_with(made: str) -> str:
    """Return the page with these tables in the place of those that it has."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n\n{made}\n\n{END}{after}"
