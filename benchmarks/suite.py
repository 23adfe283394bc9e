"""What the tests cost and what they name: read from pytest's reports and from their text.

    python benchmarks/suite.py durations [--record]
    python benchmarks/suite.py names [--all]

`durations` prints the slowest tests of each tier as `make test`, `make unit` and CI saw them last (they leave
.pytest_cache/TIER.xml); `--record` puts them into benchmarks/results/durations.json. A test's seconds are
those of its fixtures too: the first that needs a finished project pays for it.

`names` prints the keys of params.yaml, verbs of the command line and error ids that no test function names
(`--all`: how many name each of them). These are names, not effects: a test counts if it, or what it uses of
its file, has the key's last part as a word of its own, a command line that begins with the verb, or the id.
"""

import argparse
import ast
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from benchmarks.junit import counts_of, suite_of
from pipeline.cli import app
from pipeline.config.params import Params
from pipeline.config.sections.values import group_of, keys_of
from pipeline.core.catalog import catalog
from pipeline.core.places import PROJECT

RECORD = PROJECT / "benchmarks/results/durations.json"
SLOWEST = 80
VERBS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
GROUPS = "|".join(name for name, verb in VERBS.items() if hasattr(verb, "commands"))


def durations(report: Path) -> dict[str, Any]:
    """A JUnit report of pytest's as the record holds it; the name of its suite is the commit."""
    suite = suite_of(report)
    cases = sorted(((float(case.get("time", 0)), case) for case in suite), key=lambda case: -case[0])
    return {
        "seen": suite.attrib["timestamp"][:16],
        "commit": suite.attrib["name"],
        "cores": os.cpu_count(),
        "minutes": round(float(suite.attrib["time"]) / 60, 1),
        **counts_of(suite),
        "seconds_of_all": round(sum(seconds for seconds, _ in cases)),
        "slowest": {
            f"{case.get('file')}::{case.get('name')}": round(seconds, 1) for seconds, case in cases[:SLOWEST]
        },
    }


def named(file: Path) -> Iterator[set[str]]:
    """What each test function of a file says: texts and names of arguments, the words of the texts, and
    `quench VERB` of its command lines.
    """
    said: dict[str, set[str]] = {}  # by the names that the file binds: what stands there, and the names used
    used: dict[str, set[str]] = {}
    for statement in ast.parse(file.read_text(encoding="utf-8")).body:
        nodes = list(ast.walk(statement))
        names = {str(getattr(node, "id", getattr(node, "arg", ""))) for node in nodes} - {""}
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement]
        targets = [target.target if isinstance(target, ast.AnnAssign) else target for target in targets]
        for name in {getattr(target, "id", getattr(target, "name", "")) for target in targets} - {""}:
            said.setdefault(name, set()).update(*map(words, nodes))
            used.setdefault(name, set()).update(names)
    for test in (name for name in said if name.startswith("test_")):
        reached, waiting = {test}, [test]
        while waiting:
            new = used[waiting.pop()] & said.keys() - reached
            reached |= new
            waiting += new
        yield set().union(*(said[name] for name in reached))


def words(node: ast.AST) -> set[str]:
    """What one node says by itself."""
    match node:
        case ast.keyword(arg=str(name)):
            return {name}
        case ast.Constant(value=str(text)):
            typed = re.findall(rf"\bquench ((?:(?:{GROUPS}) )?[a-z-]+)|^([a-z-]+) --", text)
            verbs = {f"quench {inside or first}" for inside, first in typed}
            return {text, *(word.strip(".") for word in re.findall(r"[\w.-]+", text)), *verbs}
        case ast.List(elts=items) | ast.Tuple(elts=items) if len(items) > 1:
            line = [item.value for item in items if isinstance(item, ast.Constant)]
        case ast.Call(func=ast.Name(id="invoke"), args=items) | ast.Call(args=[_, ast.List(elts=items)]):
            line = [item.value for item in items if isinstance(item, ast.Constant)]
        case _:
            return set()
    line = line[1 + line.index("pipeline.cli") :] if "pipeline.cli" in line else line
    return {f"quench {line[0]}"} if line and isinstance(line[0], str) else set()


def counts_by_name() -> dict[str, dict[str, int]]:
    """How many test functions name each key, verb and error id."""
    files = sorted((PROJECT / "tests").rglob("test_*.py"))
    tests = [said for file in files for said in named(file)]
    keys = [place for place, key in keys_of(Params) if not group_of(key)]
    wanted = {
        "keys": {".".join(key): [{key[-1]}, {".".join(key)}] for key in keys},
        "verbs": dict(verbs()),
        "error ids": {id: [{id}] for id in catalog()},
    }
    return {
        kind: {name: sum(any(way <= said for way in ways) for said in tests) for name, ways in names.items()}
        for kind, names in wanted.items()
    }


def verbs() -> Iterator[tuple[str, list[set[str]]]]:
    """Each verb of `quench` with what names it; one of a group also by texts that a test puts together."""
    for name, command in VERBS.items():
        inner = getattr(command, "commands", {})
        yield from (
            (f"{name} {verb}", [{f"quench {name} {verb}"}, {f"quench {name}", verb}]) for verb in inner
        )
        if not inner or command.invoke_without_command:
            yield name, [{f"quench {name}"}]


def main() -> int:
    """Print what is wanted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("what", choices=["durations", "names"])
    parser.add_argument("--record", action="store_true", help="durations: keep them in benchmarks/results")
    parser.add_argument("--all", action="store_true", help="names: those too that a test names")
    given = parser.parse_args()
    if given.what == "durations":
        found = {path.stem: durations(path) for path in sorted((PROJECT / ".pytest_cache").glob("*.xml"))}
        print(json.dumps(found, indent=2))
        if given.record:
            record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
            RECORD.write_text(json.dumps(record | found, indent=2) + "\n", encoding="utf-8")
        return 0
    for kind, counts in counts_by_name().items():
        unnamed = [name for name, tests in counts.items() if not tests]
        print(f"{len(unnamed)} of {len(counts)} {kind} are named by no test")
        print("".join(f"{tests:6} {name}\n" for name, tests in counts.items() if given.all or not tests))
    return 0


if __name__ == "__main__":
    sys.exit(main())
