"""Change the code of a room in one small place at a time, and see which changes its own unit tests find.

    python benchmarks/mutants.py ROOM [MODULE …] [--functions]      (`make mutants ROOM=gate`)

Each change (a mutant) is another comparison, operator, constant, condition, argument's default, or a
statement left out. Sentences (text with a space, f-strings) stay: tests assert ids. A change inside a
function is made in a fork of a pytest session that has collected the tests, and only tests that call the
function run; a change of what an import computes is made before pytest collects, which takes seconds for each
(`--functions` leaves these out, and the record says so). Tests that fail judge nothing, nor do those that
`--unit` skips in the rooms of `UNIT`; in the others all fast tests judge, the cheapest first until
`MOST_SECONDS` are spent on a mutant. What crashes or does not end is counted as survived.

Killed and total of each module, with the names of the survivors, go into benchmarks/results/mutants.json.
"""

import argparse
import ast
import functools
import gc
import importlib
import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.machinery import SourceFileLoader
from itertools import accumulate, count
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

PROJECT = Path(__file__).resolve().parents[1]
RECORD = "benchmarks/results/mutants.json"
CURATE, TRAIN, PARITY = (f"pipeline/stages/{stage}" for stage in ("curate", "train", "parity"))
TRAINED = f"tests/{TRAIN[9:]}/test_"
OF_MERGING = "tests/metrics/test_adapter_norms.py::test_a_bent_adapter_config_is_a_sentence"
PURE = "check hand_overs rewrites corpus conversations"  # what needs no process
OF_INPUTS = """
curate.py::test_a_glob_that_decides_for_no_file_is_refused_before_anything_is_written
curate.py::test_raw_text_holds_no_control_token_and_markup_may curate.py::test_the_report_counts_per_file
curate.py::test_nothing_to_train_or_measure_on_is_one_sentence
curate.py::test_a_missing_or_odd_base_record_is_one_sentence
curate.py::test_names_are_found_however_their_file_is_saved
contamination.py::test_a_guarded_file_that_can_not_be_read
contamination.py::test_guarded_files_of_every_container
"""
OF_BUNDLES = ["tests/ship/test_ship.py", "-k", "whatever or rights or evidence or hide or nonsense or whole"]
OF_GRAPH = "workflow/test_graphs workflow/test_record stages/curate/test_shards config/test_distilled_levels"
OF_LOCK = "workflow/test_integrity workflow/test_record"
OF_CODE = ["tests/workflow/test_code_keys.py", "-k", "not both_tools and not what_a_stage_runs"]


def named(start: str, names: str) -> list[str]:
    """Python files by the last part of their names."""
    return [f"{start}{name}.py" for name in names.split()]


ROOMS: dict[str, tuple[list[str], list[str]]] = {  # modules, and the tests that judge them
    "gate": (["pipeline/gate"], ["tests/gate", "tests/metrics/test_level_limits.py"]),
    "jsonl": (["pipeline/core/jsonl.py"], ["tests/core/test_jsonl.py"]),
    "chat": (["pipeline/chat/rows.py"], ["tests/chat/test_rows.py"]),
    "metrics": (named("pipeline/metrics/", "paired score scorers text level_limits"), ["tests/metrics"]),
    "reading": (
        [f"{CURATE}/reading"],
        [
            *named(f"tests/{CURATE[9:]}/test_", "containers formats"),
            f"tests/{CURATE[9:]}/test_shards.py::test_shards_read_every_line_once_under_its_number",
        ],
    ),
    "inputs": ([f"{CURATE}/inputs.py"], [f"tests/{CURATE[9:]}/test_{name}" for name in OF_INPUTS.split()]),
    "redaction": (
        named(f"{CURATE}/rules/", "redaction secrets personal shape key_formats"),
        named(f"tests/{CURATE[9:]}/test_", "redaction secrets personal cleaning reasoning"),
    ),
    "planning": (["pipeline/planning"], ["tests/planning"]),
    "packed": (["pipeline/planning/quantized.py"], named("tests/planning/test_", "bases kinds")),  # files too
    "monitoring": ([f"{TRAIN}/monitoring", f"{TRAIN}/grpo/rules.py"], named(TRAINED, "monitor samples")),
    "gguf": (["pipeline/gguf"], ["tests/gguf", "tests/models/test_scaled_linear.py"]),
    "merging": (
        ["pipeline/models/merging"],
        [*named("tests/models/test_", "merging merging_nf4"), OF_MERGING],
    ),
    "ship": (["pipeline/ship"], ["tests/ship"]),
    "verified": (named("pipeline/ship/", "listing verification"), OF_BUNDLES),  # one test tries all damages
    "parity": (named(f"{PARITY}/", PURE), named(f"tests/{PARITY[9:]}/test_", "parity_checks")),
    "served": (named(f"{PARITY}/", "text tokens special_tokens outputs"), [f"tests/{PARITY[9:]}"]),
    "code": (named("pipeline/workflow/", "syntax package sources"), OF_CODE),
    "graph": (named("pipeline/workflow/", "stages dvc_yaml shards stage_command"), named("tests/", OF_GRAPH)),
    "workflow": (
        named("pipeline/workflow/", "cluster cleanup record"),
        named("tests/workflow/test_", "graphs cluster leftovers scraps record settings"),
    ),
    "settling": (named("pipeline/workflow/", "hashes settle ledger integrity"), named("tests/", OF_LOCK)),
}
UNIT = ("gate", "jsonl", "chat", "metrics", "planning")  # without torch, processes
MOST_SECONDS = 15  # of CPU time of tests on a mutant, in the other rooms
LEFT_OUT = "test_our_own_code"  # reads the project's sources, which a mutant changes
PAIRS = (
    "Lt LtE, Gt GtE, Eq NotEq, Is IsNot, In NotIn, And Or, Add Sub, Mult Div, BitOr BitAnd, Break Continue"
)
SWAPS: dict[type, type] = {ast.FloorDiv: ast.Mult, ast.Mod: ast.Add}
for pair in PAIRS.split(", "):
    one, other = (getattr(ast, name) for name in pair.split())
    SWAPS |= {one: other, other: one}
NOT_FOUND = {"survived": "", "no test": " (no test)", "": " (crashes or does not end)"}
SHOWN = 70  # characters of a change
Place = tuple[str, int]  # a function's qualified name and first line


@dataclass
class Mutant:
    """A module's code with one change, `words`. `place`: the innermost function around; None: at import."""

    module: str
    place: Place | None
    words: str
    code: CodeType


def others(node: Any, field: str) -> Iterator[ast.AST]:
    """What stands in a node's place in its mutants."""
    if type(node) in SWAPS:
        yield SWAPS[type(node)]()
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif field in ("test", "ifs") and not isinstance(node, ast.Compare | ast.BoolOp | ast.Constant):
        yield ast.UnaryOp(ast.Not(), node)
    elif isinstance(node, ast.Return) and not isinstance(node.value, ast.Constant | None):
        yield ast.Return(ast.Constant(None))
    elif isinstance(node, ast.AugAssign | ast.Raise) or (
        isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant)
    ):
        yield ast.Pass()
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield ast.Constant(not node.value)
        elif isinstance(node.value, int | float):
            yield ast.Constant(node.value + 1)
        elif isinstance(node.value, str | bytes) and not any(space in str(node.value) for space in " \n"):
            yield ast.Constant(node.value + ("XX" if isinstance(node.value, str) else b"XX"))


def compiled(module: str, tree: str | ast.Module) -> CodeType:
    return compile(tree, str(Path(module).absolute()), "exec")


def mutants(module: str, text: str) -> Iterator[Mutant]:
    """Every change of a module; types, decorators, sentences and `zip`'s own check stay."""
    tree, original = ast.parse(text), compiled(module, text)

    def below(node: ast.AST, place: Place | None, line: int) -> Iterator[Mutant]:
        for field, value in ast.iter_fields(node):
            literal = isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal"
            if literal or field in ("annotation", "returns", "decorator_list"):
                continue
            inside = place
            if isinstance(node, ast.FunctionDef) and field == "body":
                inside = node.name, min(part.lineno for part in (node, *node.decorator_list))
            elif isinstance(node, ast.Lambda) and field == "body":
                inside = "<lambda>", node.lineno
            for index, child in enumerate(value) if isinstance(value, list) else ((None, value),):
                put = partial(setattr, node, field) if index is None else partial(value.__setitem__, index)
                strict = isinstance(child, ast.keyword) and child.arg == "strict"
                if strict or isinstance(child, ast.JoinedStr) or not isinstance(child, ast.AST):
                    continue
                there = getattr(child, "lineno", line)
                whole = isinstance(node, ast.expr | ast.keyword | ast.AugAssign)
                before = ast.unparse(node) if whole else ""
                if not 0 < len(before) <= SHOWN and not isinstance(child, tuple(SWAPS)):
                    whole, before = False, ast.unparse(child)
                for after in others(child, field):
                    put(after)
                    code = compiled(module, ast.fix_missing_locations(tree))
                    words = f"{before[:SHOWN]} -> {ast.unparse(node if whole else after)[:SHOWN]}"
                    put(child)
                    if code != original:
                        name = inside[0] if inside else "<module>"
                        yield Mutant(module, inside, f"{name}:{there} {words}", code)
                yield from below(child, inside, there)

    yield from below(tree, None, 0)


def forked(judge: Callable[[], str], seconds: float) -> str:
    """What `judge` says in a fork of this process; nothing if it crashes or takes more CPU time than this."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(reader)
            resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 1))
            resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
            os.write(writer, judge().encode())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writer)
    said = b""
    while select.select([reader], [], [], 60 + 4 * seconds)[0] and (part := os.read(reader, 1 << 16)):
        said += part
    os.kill(pid, signal.SIGKILL)  # who has written all is not waited for
    os.waitpid(pid, 0)
    os.close(reader)
    return said.decode()


def codes(module: CodeType) -> dict[tuple[str, int, int], CodeType]:
    """The code of all that is defined in a module, by qualified name, line and number there."""
    found: dict[tuple[str, int, int], CodeType] = {}
    pending = [module]
    for code in pending:
        place = code.co_qualname, code.co_firstlineno
        found[*place, next(number for number in count() if (*place, number) not in found)] = code
        pending += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    return found


def show(mutant: Mutant, verdict: str) -> None:
    if verdict in NOT_FOUND:
        print(mutant.module, mutant.words + NOT_FOUND[verdict], flush=True)


def few_draws() -> None:
    """Hypothesis tries few examples, and the same for every mutant."""
    import draws
    import hypothesis

    draws.SHARE = 1 << 20
    phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]  # what fails need not be made small
    few = {"deadline": None, "database": None, "derandomize": True, "max_examples": draws.LEAST}
    hypothesis.settings.register_profile("mutants", phases=phases, **few)
    hypothesis.settings.load_profile("mutants")


class Session:
    """A plugin of pytest that runs the collected tests once, and then those that reach a mutant in a fork for
    each. What is left for `at_import` is in `later`, the tests that passed are in `passed`.
    """

    def __init__(self, sources: dict[str, str], changes: list[Mutant], most_seconds: float) -> None:
        self.changes, self.most_seconds = changes, most_seconds
        self.paths = {str(Path(module).absolute()): module for module in sources}
        self.code = {module: codes(compiled(module, text)) for module, text in sources.items()}
        self.reached: set[tuple[str, Place]] = set()
        self.verdicts: dict[int, str] = {}

    def see(self, frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename in self.paths:
            self.reached.add((self.paths[code.co_filename], (code.co_name, code.co_firstlineno)))

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        few_draws()

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        import unit_tier
        from _pytest.runner import runtestprotocol

        sys.settrace(None)
        gc.unfreeze()  # what is frozen is not listed
        at_import, reaching, cost = set(self.reached), {}, {}
        items = [item for item in session.items if not item.name.startswith(LEFT_OUT)]
        caches = [one for one in gc.get_objects() if isinstance(one, functools._lru_cache_wrapper)]
        caches = [one for one in caches if str(one.__module__).startswith("pipeline")]
        # the last one leaves what the session has set up, which forks then find
        for item, after in zip(items, [*items[1:], items[0] if items[1:] else None], strict=True):
            for cache in caches:
                cache.cache_clear()
            self.reached, start = set(), time.process_time()
            sys.settrace(self.see)
            threading.settrace(self.see)  # a merge computes tensors in threads
            reports = runtestprotocol(item, log=False, nextitem=after)
            sys.settrace(None)
            threading.settrace(None)
            if all(report.passed for report in reports):
                reaching[item], cost[item] = self.reached, time.process_time() - start
        self.passed = [item.nodeid for item in sorted(reaching, key=lambda item: cost[item])]
        self.files = {
            module: sorted({item.location[0] for item, those in reaching.items() if module in dict(those)})
            for module in self.code
        }
        gc.unfreeze()  # each file of tests freezes what it loaded
        functions: dict[CodeType, list[FunctionType]] = {}
        for one in gc.get_objects():
            if isinstance(one, FunctionType) and one.__code__.co_filename in self.paths:
                functions.setdefault(one.__code__, []).append(one)
        kills: dict[str, int] = {}
        unit_tier.EVENTS.discard("os.fork")
        gc.collect()
        gc.freeze()  # a fork copies what it touches, and a collection touches all
        for number, mutant in enumerate(self.changes):
            key = (mutant.module, mutant.place)
            if mutant.place is None:
                continue
            chosen = [item for item in reaching if key in reaching[item]]
            chosen.sort(key=lambda item: (-kills.get(item.nodeid, 0), cost[item]))
            spent = accumulate(cost[item] for item in chosen)
            chosen = [item for item, so_far in zip(chosen, spent, strict=True) if so_far < self.most_seconds]
            old, new = self.code[mutant.module], codes(mutant.code)

            def judge(chosen: list = chosen, old: dict = old, new: dict = new) -> str:
                unit_tier.EVENTS.add("os.fork")
                for cache in caches:
                    cache.cache_clear()
                for place, before in old.items():
                    changed = new.get(place, before)
                    for function in functions.get(before, []) if before != changed else []:
                        if before.co_freevars != changed.co_freevars:
                            return "later"
                        function.__code__ = changed
                session._setupstate.teardown_exact(chosen[0])
                for item, after in zip(chosen, [*chosen[1:], chosen[0]], strict=True):
                    if not all(report.passed for report in runtestprotocol(item, log=False, nextitem=after)):
                        return item.nodeid
                return "survived"

            verdict = forked(judge, 10 + 5 * sum(cost[item] for item in chosen)) if chosen else "no test"
            kills[verdict] = kills.get(verdict, 0) + 1
            if key in at_import and verdict in NOT_FOUND:  # what was collected may tell
                verdict = "later"
            show(mutant, verdict)
            if verdict != "later":
                self.verdicts[number] = verdict
        return True


class Chosen:
    """A plugin of pytest: the tests that passed without a mutant."""

    pytest_collection = Session.pytest_collection

    def __init__(self, passed: list[str]) -> None:
        self.passed = {nodeid: rank for rank, nodeid in enumerate(passed)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid in self.passed]
        items.sort(key=lambda item: self.passed[item.nodeid])


def run_pytest(tests: list[str], plugin: object) -> int:
    options = ["-p", "no:timeout", "-o", "addopts=-p no:hydra_pytest"]
    return pytest.main([*options, "-n0", "-qx", "-m", "not gpu and not slow", *tests], plugins=[plugin])


def at_import(mutant: Mutant, passed: list[str], tests: list[str]) -> str:
    """The verdict on a mutant with which the module is imported, in this process."""
    real = SourceFileLoader.get_code
    SourceFileLoader.get_code = lambda self, name: (  # type: ignore[method-assign]
        mutant.code if self.path == mutant.code.co_filename else real(self, name)
    )
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    return "killed" if run_pytest(tests, Chosen(passed)) else "survived"


def judged(
    tests: list[str], sources: dict[str, str], only_functions: bool, tier: list[str]
) -> list[tuple[Mutant, str]]:
    """The modules' mutants and verdicts: a test that finds it, `killed`, `survived`, `no test`, nothing."""
    changes = [mutant for module, text in sources.items() for mutant in mutants(module, text)]

    def session() -> str:
        plugin = Session(sources, changes, float("inf") if tier else MOST_SECONDS)
        here = str(Path.cwd()), str(PROJECT / "benchmarks")
        sys.settrace(plugin.see)
        run_pytest([*tier, *tests], plugin)
        libraries = [
            name
            for name, module in sys.modules.items()
            if not str(getattr(module, "__file__", None) or here[0]).startswith(here)
        ]
        return json.dumps([list(plugin.verdicts.items()), plugin.passed, plugin.files, libraries])

    verdicts, passed, files, libraries = json.loads(forked(session, 1 << 20))
    verdicts = dict(verdicts)
    for name in () if only_functions else libraries:  # once, and not in each fork
        with suppress(Exception):
            importlib.import_module(name)
    for number, mutant in enumerate(changes):
        if number in verdicts or (only_functions and not mutant.place):
            continue
        judge = partial(at_import, mutant, passed, [*tier, *(files[mutant.module] or tests)])
        verdicts[number] = "survived" if only_functions else forked(judge, 60)
        show(mutant, verdicts[number])
    return [(mutant, verdicts[number]) for number, mutant in enumerate(changes) if number in verdicts]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("room", choices=ROOMS)
    parser.add_argument("modules", nargs="*", help="only these modules of the room")
    parser.add_argument("--functions", action="store_true", help="leave out what an import computes")
    given = parser.parse_args()
    places, tests = ROOMS[given.room]
    git = ["git", "-C", str(PROJECT)]
    files = subprocess.check_output([*git, "ls-files", "-coz", "--exclude-standard"], text=True).split("\0")
    commit = subprocess.check_output([*git, "rev-parse", "--short", "HEAD"], text=True).strip()
    if subprocess.check_output([*git, "status", "--porcelain", "pipeline", "tests"]):
        commit += "-dirty"
    with tempfile.TemporaryDirectory() as folder:
        for file in filter(None, files):
            if (PROJECT / file).is_file():
                (Path(folder) / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(PROJECT / file, Path(folder) / file)
        (Path(folder) / ".tools").symlink_to(PROJECT / ".tools")  # or tests that run llama.cpp judge nothing
        os.chdir(folder)
        os.environ["PYTHONPATH"] = folder
        sys.path.insert(0, folder)
        sources = {
            str(module): module.read_text(encoding="utf-8")
            for place in map(Path, places)
            for module in (sorted(place.rglob("*.py")) if place.is_dir() else [place])
            if not given.modules or str(module) in given.modules
        }
        verdicts = judged(tests, sources, given.functions, ["--unit"] if given.room in UNIT else [])
        os.chdir(PROJECT)
    record = json.loads((PROJECT / RECORD).read_text()) if (PROJECT / RECORD).exists() else {}
    for module in sources:
        those = [(mutant.words, verdict) for mutant, verdict in verdicts if mutant.module == module]
        lived = [words + NOT_FOUND[verdict] for words, verdict in those if verdict in NOT_FOUND]
        if those:
            print(f"{module}: {len(those) - len(lived)} of {len(those)} killed")
            record[module] = {
                "killed": len(those) - len(lived),
                "total": len(those),
                "date": f"{datetime.now(UTC):%Y-%m-%d}",
                "commit": commit,
                "judged": "functions" if given.functions else "all",
                "survivors": lived,
            }
    (PROJECT / RECORD).write_text(json.dumps(record, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
