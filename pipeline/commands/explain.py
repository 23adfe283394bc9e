"""Explain errors by id and rejected rows by reason.

    quench doctor explain Q-CONFIG-001
    quench doctor explain unknown_format

Without a name it lists all errors.
"""

import difflib
import re
from collections.abc import Mapping

from pipeline.core import errors
from pipeline.core.catalog import Problem, Reason, catalog, left_out, reasons
from pipeline.core.errors import ConfigError

# file that has reasons → the reasons, by name
REASONS_OF = {"data/rejects.jsonl": reasons, "reports/labels.json": left_out}


def main(wanted: str | None) -> None:
    """Print the problem, area or reason `wanted` (None: all problems). Raises `ConfigError` if there is
    none.
    """
    name = (wanted or "").lower()
    explained = [
        line
        for file, known in REASONS_OF.items()
        if name in known()
        for line in _sentences(known()[name], file)
    ]
    if explained:
        print(*explained, sep="\n")
        return
    name = (wanted or "").upper()
    shown = [problem for problem in catalog().values() if not name or name in (problem.id, problem.area)]
    if not shown:
        raise ConfigError(
            "Q-COMMANDS-033", f"no error, area or reason is called {wanted!r}: {_nearest(name)}"
        )
    if len(shown) > 1:
        print(*(f"{problem.id}  {problem.when}" for problem in shown), sep="\n")
    else:
        print(f"{shown[0].id} (exit code {exit_code(shown[0])})")
        print(f"When: {shown[0].when}\nWhat to do: {errors.of_this_installation(shown[0].remedy)}")


def _sentences(reason: Reason, file: str) -> list[str]:
    """Return the lines on a reason: its meaning, an example and the remedy."""
    meaning = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", reason.meaning)  # text of a link
    return [
        f"{reason.name} (a reason in {file})",
        f"Meaning: {meaning}.",
        f"Example: {reason.example}",
        f"What to do: {reason.remedy}",
    ]


def _nearest(name: str) -> str:
    """Return a sentence with the id, area or reason nearest to `name` (in capitals)."""
    areas = {problem.area for problem in catalog().values()}
    spelled = {known.upper(): known for known in (*catalog(), *sorted(areas), *reasons(), *left_out())}
    near = difflib.get_close_matches(name, spelled, n=1)
    if not near:
        return "`quench doctor explain` lists all errors, docs/data-formats.md all reasons"
    return f"did you mean {spelled[near[0]]}?"


def exit_code(problem: Problem) -> str:
    """Return the exit code of the error's class. An error that passes on a failed stage's error has that
    stage's exit code.
    """
    kind = getattr(errors, problem.error)
    return "2 to 6" if kind is errors.QuenchError else str(kind.exit_code)


def reasons_table(of: Mapping[str, Reason]) -> str:
    """Return a table of reasons in docs/data-formats.md, without its head."""
    rows = ((reason.name, reason.meaning.replace("|", "\\|")) for reason in of.values())
    return "".join(f"| `{name}` | {meaning} |\n" for name, meaning in rows)
