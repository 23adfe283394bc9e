"""How much house there is: lines, statements and modules, how far what belongs together lies apart, what
freezes the inside, what a user reads.

    python benchmarks/house.py [COMMIT …]
    python benchmarks/house.py --check          exit 1 where one weighs more than `CEILINGS` (`make lint`)
    python benchmarks/house.py --where FEATURE  the modules that name a feature outside its home, and how

A column for each commit, and one for the working tree. A function's parameters count without `self` and
`cls`; a symbol is inner if tests import it and no module of another room does; a room is a folder of
pipeline/ or of pipeline/stages/. A sentence is an assertion's text of four words and more that stand by
themselves: not those of paths, names and patterns. `house_scatter.py` says what scatter is, `house_walks.py`
what climbs are.
"""

import argparse
import ast
import io
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from house_scatter import FEATURES, scatter
from house_walks import WALKS, climbs

PROJECT = Path(__file__).resolve().parents[1]
SHORT, LONG, MOST_PARAMETERS, WORDS = 60, 250, 6, 4
WORD = re.compile(r"(?<![\w./-])[A-Za-z']+(?![\w./-])")
Trees = dict[Path, ast.Module]
# what tests, benchmarks, docs and settings may weigh, tests freeze of the inside, and functions take: lower a
# number that fell
CEILINGS = {
    "modules of 250 lines and more": 0,
    "functions of more than 6 parameters": 6,
    "parameters that are dict[str, Any]": 55,
    "lines of tests": 56_667,
    "tests that import other tests": 0,
    "inner symbols that tests use": 348,
    "sentences that tests assert": 64,
    "lines of benchmarks": 4_000,
    "keys": 110,
    "lines of params.yaml": 60,
    "words of docs but troubleshooting": 18_000,
}


def parsed(folder: Path) -> Trees:
    """Every module below `folder`."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.py"))}


def nodes(trees: Trees, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
    """The nodes of these kinds in all modules."""
    return (node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, kinds))


def lines(paths: Iterable[Path]) -> int:
    """Lines of files together."""
    return sum(path.read_text(encoding="utf-8").count("\n") for path in paths)


def imported(trees: Trees) -> Iterator[tuple[Path, str, str]]:
    """(file, module of pipeline, name) of every import by name."""
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pipeline"):
                yield from ((path, str(node.module), alias.name) for alias in node.names)


def room(module: str) -> str:
    """pipeline.gate of pipeline.gate.judge, pipeline.stages.merge of pipeline.stages.merge.stage."""
    parts = module.split(".")
    return ".".join(parts[: 3 if parts[1:2] == ["stages"] else 2])


def parameters(node: ast.AST) -> list[ast.arg]:
    """A function's parameters."""
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    named = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return [argument for argument in named if argument.arg not in ("self", "cls")]


def sizes(folders: dict[str, Trees]) -> dict[str, int]:
    """Lines, statements and modules of each folder."""
    counts: dict[str, Callable[[Trees], int]] = {
        "lines": lines,
        "statements": lambda trees: sum(1 for _ in nodes(trees, ast.stmt)),
        "modules": len,
    }
    measures = [(name, *counter) for name in folders for counter in counts.items()]
    return {f"{what} of {name}": count(folders[name]) for name, what, count in measures}


def verbs(root: Path) -> int:
    """The verbs of `quench`: a group of commands is one, as is each command of a topic without a name."""
    count = 0
    for node in ast.parse((root / "pipeline/cli.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.For | ast.Expr) and "add_typer(" in (text := ast.unparse(node)):
            topics = re.findall(r"\w+", text.partition("\n")[0].partition(" in ")[2]) or [text]
            if "name=" in text:
                count += len(topics)
            else:
                files = [root / f"pipeline/commands/topics/{topic}.py" for topic in topics]
                count += sum(file.read_text(encoding="utf-8").count("@app.command(") for file in files)
    return count


def measured(root: Path) -> dict[str, int]:
    """Every figure of the project at `root`."""
    pipeline, tests, benchmarks = (parsed(root / name) for name in ("pipeline", "tests", "benchmarks"))
    names = {path: ".".join(path.relative_to(root).with_suffix("").parts) for path in pipeline}
    uses = list(imported(pipeline))
    # `from pipeline.stages.parity import text` imports a module
    importers = {
        module: len({path for path, source, name in uses if module in (source, f"{source}.{name}")})
        for module in names.values()
    }
    outside = {(source, name) for path, source, name in uses if room(names[path]) != room(source)}
    tested = {(source, name) for _, source, name in imported(tests)}
    functions = [parameters(node) for node in nodes(pipeline, ast.FunctionDef, ast.AsyncFunctionDef)]
    texts = (
        str(part.value)
        for check in nodes(tests, ast.Assert)
        for part in ast.walk(check)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    )
    away = scatter(root / "pipeline", pipeline)
    docs = [path for path in root.glob("docs/*.md") if path.name != "troubleshooting.md"]
    return {
        **sizes({"pipeline": pipeline, "tests": tests, "benchmarks": benchmarks}),
        **{f"scatter of {name}": len(modules) for name, modules in away.items()},
        **{f"climbs of {name}": climbs(root, pipeline, walk) for name, walk in WALKS.items()},
        f"modules under {SHORT} lines with one importer": sum(
            importers[name] == 1 and path.name != "__init__.py" and lines([path]) < SHORT
            for path, name in names.items()
        ),
        f"modules of {LONG} lines and more": sum(lines([path]) >= LONG for path in pipeline),
        f"functions of more than {MOST_PARAMETERS} parameters": sum(
            len(found) > MOST_PARAMETERS for found in functions
        ),
        "parameters that are dict[str, Any]": sum(
            ast.unparse(argument.annotation) == "dict[str, Any]"
            for found in functions
            for argument in found
            if argument.annotation
        ),
        "tests that import other tests": sum(
            ast.unparse(node).split()[1].startswith("test_")
            for node in nodes(tests, ast.Import, ast.ImportFrom)
        ),
        "inner symbols that tests use": len(tested - outside),
        "sentences that tests assert": sum(len(WORD.findall(text)) >= WORDS for text in texts),
        "verbs": verbs(root),
        "keys": sum(
            isinstance(node, ast.Call) and ast.unparse(node.func) == "key"
            for node in nodes(parsed(root / "pipeline/config/sections"), ast.Call)
        ),
        "lines of params.yaml": lines([root / "params.yaml"]),
        "lines of graphs/stages.yaml": lines([root / "graphs/stages.yaml"]),
        "lines of README.md": lines([root / "README.md"]),
        "words of docs but troubleshooting": sum(
            len(path.read_text(encoding="utf-8").split()) for path in docs
        ),
    }


def at(commit: str) -> dict[str, int]:
    """The figures of a commit."""
    packed = subprocess.run(["git", "archive", commit], cwd=PROJECT, capture_output=True, check=True).stdout
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
        return measured(Path(folder))


def check(figures: dict[str, int]) -> int:
    """Print each figure above its ceiling; the exit code."""
    over = {name: most for name, most in CEILINGS.items() if figures[name] > most}
    for name, most in over.items():
        print(f"{name}: {figures[name]:,}, and {most:,} are allowed (benchmarks/house.py, CEILINGS)")
    return 1 if over else 0


def main() -> int:
    """Print a line for each figure; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("commits", nargs="*", metavar="COMMIT")
    parser.add_argument("--check", action="store_true", help="only whether tests keep to their ceilings")
    parser.add_argument("--where", choices=FEATURES, help="only the modules that name it outside its home")
    asked = parser.parse_args()
    if asked.check:
        return check(measured(PROJECT))
    if asked.where:
        folder = PROJECT / "pipeline"
        for module, names in scatter(folder, parsed(folder))[asked.where].items():
            print(f"{module}: {', '.join(names)}")
        return 0
    commits = asked.commits
    columns = [at(commit) for commit in commits] + [measured(PROJECT)]
    print(f"{'':48}" + "".join(f"{name[:9]:>10}" for name in [*commits, "now"]))
    for figure in columns[-1]:
        print(f"{figure:48}" + "".join(f"{column[figure]:>10,}" for column in columns))
    return 0


if __name__ == "__main__":
    sys.exit(main())
