"""Which stages an edit of the code runs again: those that use what is edited, and no other; comments and
docstrings run nothing.
"""

import ast
import inspect
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import chdir
from functools import cache
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from forked import Forked
from make import ended, full_params
from report_inputs import demo_params, write_inputs
from user_project import BIN

from pipeline.__main__ import main
from pipeline.config.methods import METHODS
from pipeline.config.params import Params, load_params
from pipeline.core.places import PACKAGE, PROJECT
from pipeline.workflow.code_keys import CODE, SETTINGS, SETTINGS_MODULE, stage_module
from pipeline.workflow.dvc_yaml import dvc_text
from pipeline.workflow.package import Package
from pipeline.workflow.sources import read_source
from pipeline.workflow.stages import code_of_stages, stages_in

IGNORED = shutil.ignore_patterns("__pycache__")
# the settings in effect are written again by any edit of a section; DVC compares them by value
STARTS = {name: starts for name, starts in code_of_stages().items() if name != SETTINGS}
EVERY = set(STARTS)
SOURCES = Package().sources
KEYS = ".quench/code"
USERS = ("data/raw", "data/guard", "data/evaluation", "data/distill")
MEASURING = {"compare_unquantized", "compare_measure"}
ALL_SECTIONS = set(Params.model_fields)


# ---- what a module means


def digest(text: str) -> str:
    return read_source(text.encode(), is_python=True).digest


CODE_TEXT = """
import os


def f(a, *, b=None):
    'Doc.'
    return [a, {"k": -1.5}]  # a comment
"""


@pytest.mark.parametrize(
    "same",
    [
        '"""Other."""\nimport os\ndef f(a, *, b=None):\n    return [a, {"k": -1.5}]\n',
        CODE_TEXT.replace("(a, *, b=None)", "(\n    a,\n    *,\n    b=None,\n)").replace(
            "[a,", "[\n        a,"
        ),
    ],
)
def test_comments_docstrings_and_layout_mean_nothing(same: str) -> None:
    assert digest(same) == digest(CODE_TEXT)


CHANGED = [
    *[("-1.5", other) for other in ("-1.25", "True", "1", "1.0", "'1'", "b'1'")],
    *[("def f", other) for other in ("async def f", "def g", "def f(:", "def g(:")],  # two are no Python yet
    ('"k"', '"K"'),
    ("b=None", "b=0"),
    ("*, b", "b"),
    ("import os", "import os.path"),
    ("import os", "'Doc.'\n'A text after it.'\nimport os"),
    ("return", "yield"),
    ("return [a", '"text"\n    return [a'),
]


def test_everything_else_means_something() -> None:
    texts = [CODE_TEXT, *(CODE_TEXT.replace(old, new, 1) for old, new in CHANGED)]
    assert len({*texts}) == len({digest(text) for text in texts}) == len(texts)


def test_only_the_comment_of_a_key_of_params_yaml_is_no_code() -> None:
    ours = "from pipeline.config.sections.values import key\nport = key(8081, '{}')\n"
    assert digest(ours.format("a port")) == digest(ours.format("the port"))
    assert digest(ours.format("a port")) != digest(ours.replace("8081", "8082").format("a port"))
    other = "from elsewhere import key\nport = key(8081, '{}')\n"
    assert digest(other.format("a")) != digest(other.format("b"))


def test_imports_are_absolute_and_by_name_for_keys_follow_no_others() -> None:
    for file in (PROJECT / "pipeline").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0 and node.names[0].name != "*", f"{file}:{node.lineno}"


def test_the_packages_own_init_holds_the_version_alone() -> None:
    """It is in no key: a release is no other code."""
    statements = ast.parse((PROJECT / "pipeline/__init__.py").read_bytes()).body
    assert [type(one) for one in statements] == [ast.Expr, ast.Assign]


def test_what_a_stage_runs_is_in_its_key(tmp_path: Path) -> None:
    """Asked of Python itself, of the two stages that need no model: each function that runs."""
    (tmp_path / "data/raw").mkdir(parents=True)
    (tmp_path / "models").mkdir()
    (tmp_path / "models/base.json").write_text('{"added_tokens": ["<|im_end|>"]}')
    (tmp_path / "data/raw/chats.jsonl").write_text("".join(map(chat, range(60))), encoding="utf-8")
    settings = load_params(PROJECT / "recipes/demo.yaml")
    report = write_inputs(tmp_path / "report")
    for stage, given, root in (("curate", settings, tmp_path), ("report", demo_params(), report)):
        ran, reached = run_of(stage, given, root), Package().closure(stage_module(stage))
        assert len(ran) > 50, stage
        assert {(path, name) for path, name in ran if name not in reached.get(path, ())} == set(), stage


def chat(number: int) -> str:
    turns = [{"role": "user", "content": f"{number}?"}, {"role": "assistant", "content": f"{number * 7}."}]
    return json.dumps({"messages": turns}) + "\n"


def run_of(stage: str, params: Params, root: Path) -> set[tuple[str, str]]:
    """(file in the package, definition) of each function that a stage's `main` runs here, outside imports."""
    main, importing, ran = import_module(stage_module(stage)).main, [0], set()
    parts = {path: source.parts for path, source in Package().sources.items()}

    def see(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if code.co_name == "<module>":
            importing[0] += {"call": 1, "return": -1}.get(event, 0)
        elif event == "call" and not importing[0] and code.co_filename.startswith(f"{PACKAGE}/"):
            path = Path(code.co_filename).relative_to(PACKAGE).as_posix()
            names = code.co_qualname.split(".")
            name = ".".join(names[:2]) if ".".join(names[:2]) in parts[path] else names[0]
            # a template has no parts; a class's body, and a lambda in a table, have no name of their own
            is_named = path.endswith(".py") and not name.startswith("<")
            if code.co_flags & inspect.CO_OPTIMIZED and is_named:
                ran.add((path, name))

    sys.setprofile(see)
    try:
        main(params, root)
    finally:
        sys.setprofile(None)
    return ran


def test_code_that_is_imported_by_a_name_put_together_starts_a_key_of_its_own() -> None:
    """No closure follows such a name."""
    calls = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if re.search(r"import_module\(|__import__\(", path.read_text(encoding="utf-8"))
    }
    assert calls == {"__main__.py", "stages/train/learner.py"}
    assert {f"train.{method}" for method in METHODS} < EVERY


@pytest.mark.parametrize(
    ("body", "reached"),
    [
        ("return train.grpo.rewards", {"grpo"}),
        ("return [train][0].grpo", {"grpo"}),
        ("train.note.grpo = 1", {"grpo"}),
        ("return train.beta", {"beta", "preference"}),
        ("return train.method", set()),
    ],
)
def test_a_groups_users_take_an_attribute_of_its_name(body: str, reached: set[str]) -> None:
    text = f"from pipeline.config.sections import Train\ndef main(train: Train):\n    {body}\n"
    package = Package(SOURCES | {"main.py": read_source(text.encode(), is_python=True)})
    parts = package.closure("pipeline.main")["config/sections/training.py"]
    assert {part.removeprefix("Train.") for part in parts if "." in part} == reached


def test_who_takes_a_module_as_such_takes_all_of_it() -> None:
    text = "from pipeline.core import units\n\n\ndef f(name):\n    return getattr(units, name)\n"
    reached = Package(SOURCES | {"fresh.py": read_source(text.encode(), is_python=True)})
    assert reached.closure("pipeline.fresh")["core/units.py"] == SOURCES["core/units.py"].parts.keys()


@pytest.mark.parametrize(
    ("body", "sections"),
    [
        ("return params.serve.port", {"serve"}),
        ("return params.model_dump()['serve']", set()),
        ("return g(params)", {"report"}),
        ("return TABLE['g'](params)", {"report"}),
        ("chosen = g\n    return chosen(params)", {"report"}),
        ("return [lambda params: params.merge]", {"merge"}),
        ("return params.training", {"train", "base", "convert", "machine"}),
        ("Params.model_validate({})", set()),
        ("return Params.model_validate({})", ALL_SECTIONS),
        ("return h(params)", ALL_SECTIONS),
        ("return [params]", ALL_SECTIONS),
        ("return getattr(params, 'serve')", ALL_SECTIONS),
        ("chosen = params\n    return chosen.serve", ALL_SECTIONS),
    ],
)
def test_who_is_handed_all_settings_uses_the_sections_that_it_takes(body: str, sections: set[str]) -> None:
    text = f"""
from pipeline.config.params import Params
def f(params: Params):
    {body}
def g(params: Params):
    return params.report
def h(anything):
    return anything.report
TABLE = {{"g": g}}
"""
    main = "from pipeline.fresh import f\ndef main(params):\n    return f(params)\n"
    sources = {"fresh.py": text, "main.py": main}
    package = Package(
        SOURCES | {path: read_source(code.encode(), is_python=True) for path, code in sources.items()}
    )
    reached = package.closure("pipeline.main")["config/params.py"]
    assert {name.partition(".")[2] for name in reached if "." in name} & ALL_SECTIONS == sections


# ---- a table of edits


Edit = Callable[[str], str]


def added(text: str) -> Edit:
    return lambda old: old + text


def replaced(old: str, new: str) -> Edit:
    def edit(text: str) -> str:
        assert text.count(old) == 1, old
        return text.replace(old, new)

    return edit


def other(definition: str) -> Edit:
    """A function or a class with something more in it."""
    return lambda text: re.sub(
        rf"(^(?:async )?(?:def|class) {definition}\b.*?:\n)(    \"\"\".*?\"\"\"\n)?",
        r"\1\2    more = 1\n",
        text,
        count=1,
        flags=re.M | re.S,
    )


LEARNERS = {f"train.{method}" for method in METHODS}
JUDGED = {f"train.{method}" for method, learning in METHODS.items() if "accuracy" in learning.measures}
COMPARED = {"compare_nf4", "compare_train"}
TRAINING = {"train", "distill", *COMPARED}
CURATING = {"curate", "augment", "distill", "compare_train"}  # these curate what they learn from
SCORING = {*MEASURING, "augment", "evaluate", "train.grpo"}
MERGING = {"merge", "compare_train", *MEASURING}
CONVERTING = {"convert", "compare_train", *MEASURING}  # whether the base's GGUF is made depends on much
WITH_PREPROCESS = {"preprocess", "distill", "compare_train"}

EDITS: dict[str, tuple[str, Edit, set[str]]] = {
    # what means nothing
    "a comment": ("stages/train/stage.py", added("\n# a comment\n"), set()),
    "a docstring": (
        "stages/curate/rules/length.py",
        lambda text: text.replace('"""', '"""Edited. ', 1),
        set(),
    ),
    "layout": ("core/publish.py", replaced("DISK_MARGIN = 1.2 ", "DISK_MARGIN = (\n    1.2\n) "), set()),
    "a comment in params.yaml": (
        "config/sections/shipping.py",
        replaced("port on 127.0.0.1", "the port on 127.0.0.1"),
        set(),
    ),
    "a sentence on an error": ("core/catalog/train.yaml", added("\n# edited\n"), set()),
    "the version": ("__init__.py", lambda text: re.sub(r'"\d.*"$', '"9.9"', text, flags=re.M), set()),
    # what no stage runs
    "the command line": ("cli.py", added("\nMORE = 1\n"), set()),
    "the runner of stages": ("__main__.py", other("run"), set()),
    "the launcher of processes": ("core/launch.py", other("launch"), set()),
    "when a stage is fresh": ("workflow/settle.py", other("settle"), set()),
    "a function that nobody calls": ("core/publish.py", added("\n\ndef more():\n    pass\n"), set()),
    "the root's check": ("core/publish.py", other("need_folder"), set()),
    "what is seen before training": ("stages/train/preflight.py", other("disk_plan"), set()),
    "an exported form": ("commands/data/export.py", other("to_alpaca"), set()),
    # settings: checks run nothing again, a section whoever takes from it
    "settings that don't fit together": (
        "config/params.py",
        replaced("if needed not in self.evaluate.models:", "if not needed in self.evaluate.models:"),
        set(),
    ),
    "settings of train that don't": ("config/training_problems.py", other("training_problems"), set()),
    "how params.yaml is read": ("config/params.py", other("read_params"), set()),
    "section curate": ("config/sections/data.py", other("CurateKeys"), CURATING),
    # what answers and logits are read with follows the length of rows
    "section preprocess": (
        "config/sections/data.py",
        other("Preprocess"),
        {"curate", "augment", *WITH_PREPROCESS, *MEASURING, "merge", "evaluate", "compare"},
    ),
    "section merge": ("config/sections/models.py", other("Merge"), MERGING),
    "section parity": ("config/sections/measuring.py", other("Parity"), {"parity", *CONVERTING}),
    "section report": ("config/sections/shipping.py", other("Report"), {"report"}),
    "section report.gate": ("config/sections/shipping.py", other("Gate"), {"report"}),
    "section distill": ("config/sections/models.py", other("Distill"), {"distill", "compare_train"}),
    "section train": (
        "config/sections/training.py",
        other("Train"),
        {*TRAINING, *LEARNERS, *MEASURING, "preprocess", "merge", "parity", "evaluate"},
    ),
    # methods of training
    "section train.grpo": (
        "config/sections/method_groups.py",
        other("Grpo"),
        {"train.grpo", *WITH_PREPROCESS, *COMPARED, *MEASURING},  # these plan the disk that it takes
    ),
    "section train.preference": ("config/sections/method_groups.py", other("Preference"), JUDGED),
    "a method's own beta": ("config/sections/training.py", replaced(".beta or 0.0", ".beta or 0.1"), JUDGED),
    "the loss of GRPO": ("stages/train/grpo/losses.py", other("correction"), {"train.grpo"}),
    "rollouts in llama-server": ("stages/train/grpo/rollouts.py", other("complete"), {"train.grpo"}),
    "the guards of GRPO": (
        "stages/train/grpo/rules.py",
        replaced("SAME = 0.8", "SAME = 0.7"),
        {"train.grpo"},
    ),
    "losses of pairs": ("models/preference_losses.py", other("pair_losses"), JUDGED),
    "the loss of distilling": ("models/distill_loss.py", other("distill_loss"), {"train.distill"}),
    "the trainer": ("stages/train/trainer.py", other("QuenchTrainer"), TRAINING | LEARNERS),
    "processes that share a training": ("stages/train/several/group.py", other("open_group"), TRAINING),
    "the adapter": ("models/tuners/__init__.py", other("put_tuner"), TRAINING),
    "what an adapter is proven to be": ("models/tuners/lora.py", other("check_saved"), TRAINING | LEARNERS),
    "a usual rate": ("config/tuners.py", replaced("2.0e-4 is", "3.0e-4 is"), TRAINING | LEARNERS),
    "what a tuner is in words": ("config/tuners.py", replaced('"an adapter"', '"LoRA"'), set()),
    # what several stages share
    "publishing": ("core/publish.py", other("remove"), EVERY),
    "scoring": ("metrics/text.py", other("exact_match"), SCORING),
    "a server, as a program": ("llamacpp/server_process.py", other("main"), SCORING | {"parity"}),
    "the importance matrix": ("stages/imatrix/stage.py", other("main"), {"imatrix"}),
    "the rule of lengths": ("stages/curate/rules/length.py", other("Length"), CURATING),
    "the plan of memory": ("planning/memory.py", other("plan_memory"), set()),
    # programs and data files
    "the trained model's answers": ("stages/compare/reference.py", other("main"), MEASURING),
    "lm-evaluation-harness": ("stages/evaluate/harness_process.py", other("main"), {"evaluate"}),
    "general questions": ("metrics/general.jsonl", added("\n"), {"evaluate", *MEASURING}),
    "a style sheet": ("pages/templates/index.css", added("\n/* edited */\n"), {"report"}),
    "a template that is named by parts": (
        "pages/templates/index/answers.html.jinja",
        added("\n<!-- edited -->\n"),
        {"report"},
    ),
    "the labels' style sheet": ("pages/templates/labels.css", added("\n/* edited */\n"), WITH_PREPROCESS),
}


def keys(package: Package) -> dict[str, str]:
    return {name: package.key(*starts) for name, starts in STARTS.items()}


@pytest.mark.parametrize(("file", "edit", "expected"), EDITS.values(), ids=EDITS)
def test_an_edit_changes_the_keys_of_what_reaches_it(file: str, edit: Edit, expected: set[str]) -> None:
    text = (PACKAGE / file).read_text(encoding="utf-8")
    assert edit(text) != text
    source = read_source(edit(text).encode(), is_python=file.endswith(".py"))
    assert changed(Package(SOURCES | {file: source})) == expected


@pytest.mark.parametrize("section", ["Train", "Grpo", "Machine"])
def test_an_edit_of_any_section_writes_the_settings_in_effect_again(section: str) -> None:
    (file,) = (path for path, source in SOURCES.items() if section in source.parts and "sections/" in path)
    text = (PACKAGE / file).read_text(encoding="utf-8")
    source = read_source(other(section)(text).encode(), is_python=True)
    before, after = Package(SOURCES), Package(SOURCES | {file: source})
    assert before.key(SETTINGS_MODULE) != after.key(SETTINGS_MODULE)


@cache
def keys_before() -> dict[str, str]:
    return {name: Package(SOURCES).key(*starts) for name, starts in STARTS.items()}


def changed(package: Package) -> set[str]:
    before, after = keys_before(), keys(package)
    return {name for name in before if before[name] != after[name]}


# ---- the files


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package that may be edited."""
    folder = tmp_path_factory.mktemp("keys") / "pipeline"
    return Path(shutil.copytree(PACKAGE, folder, ignore=IGNORED))


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("stages/curate/words.txt", CURATING),  # named by no module, so by all of its package
        ("stages/train/stage.py~", set()),
        ("stages/train/#stage.py#", set()),
        ("core/publish.py.orig", set()),
        ("stages/train/gone.py", set()),  # a link to nowhere
    ],
)
def test_a_file_that_comes_is_code_unless_an_editor_left_it(
    package: Path, monkeypatch: pytest.MonkeyPatch, file: str, expected: set[str]
) -> None:
    path = package / file
    if path.suffix == ".py":
        path.symlink_to("nowhere.py")
    else:
        path.write_text("text")
    monkeypatch.setattr("pipeline.workflow.package.PACKAGE", package)
    try:
        assert changed(Package()) == expected
    finally:
        path.unlink()


def test_what_was_read_before_is_not_parsed_again_and_any_memory_may_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = tmp_path / "of/syntax.json"
    monkeypatch.setattr("pipeline.workflow.package.PACKAGE", PACKAGE / "chat")
    monkeypatch.setattr("pipeline.workflow.package.MEMORY", memory)
    fresh, again = Package().sources, Package().sources
    assert fresh == again and [path.name for path in memory.parent.iterdir()] == [memory.name]
    kept = json.loads(memory.read_text())
    seen = kept | {"files": {name: ["seen", *source[1:]] for name, source in kept["files"].items()}}
    memory.write_text(json.dumps(seen))
    assert {source.digest for source in Package().sources.values()} == {"seen"}
    for text in ("", "[]", json.dumps(seen)[:99], json.dumps(seen | {"version": "other"})):
        memory.write_text(text)
        assert Package().sources == fresh, text


def test_keys_that_can_not_be_written_are_the_machines_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".quench").mkdir()
    (tmp_path / KEYS).write_text("a file where the folder belongs")
    assert main([CODE, "--root", str(tmp_path)]) == 6
    assert "Q-WORKFLOW-001" in capsys.readouterr().err


def test_a_module_that_is_imported_from_now_on_is_in_the_key() -> None:
    file = "stages/quantize/stage.py"
    text = (PACKAGE / file).read_text(encoding="utf-8")
    edited = f"{text}\n\ndef later():\n    from pipeline.fresh import X\n    return X\n"
    fresh = {"fresh.py": read_source(b"X = 1\n", is_python=True)}
    after = Package(SOURCES | fresh | {file: read_source(edited.encode(), is_python=True)})
    assert "fresh.py" in after.key(*STARTS["quantize"])
    assert "fresh.py" not in after.key(*STARTS["train"]) + Package(SOURCES | fresh).key(*STARTS["quantize"])


def test_keys_are_written_where_they_differ_and_those_of_no_stage_go(tmp_path: Path) -> None:
    assert main([CODE, "--root", str(tmp_path)]) == 0
    train, curate = (tmp_path / KEYS / f"{stage}.key" for stage in ("train", "curate"))
    right = curate.read_text()
    os.utime(train, (1, 1))
    curate.write_text("of other code\n")
    (tmp_path / KEYS / "gone.key").touch()
    assert main([CODE, "--root", str(tmp_path)]) == 0
    assert train.stat().st_mtime == 1 and curate.read_text() == right
    assert {path.name.removesuffix(".key") for path in (tmp_path / KEYS).iterdir()} == {*EVERY, SETTINGS}


# ---- both tools go by them


class Project:
    """The real graph with a copy of the package, every stage recorded with outputs that nobody made."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environment = os.environ | {
            "PYTHONPATH": str(root),
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }
        self.forked: Forked | None = None  # of the copy's code as it was first: plans go by the files

    def run(self, *command: str) -> str:
        done = ended(command, cwd=self.root, env=self.environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def plan(self) -> set[str]:
        """The stages that `snakemake -n` would run."""
        self.forked = self.forked or Forked(self.environment)
        done = self.forked.run("snakemake", "-n", cwd=self.root, environment=self.environment)
        assert done.returncode == 0, done.stdout + done.stderr
        planned = (done.stdout + done.stderr).partition("Reasons:")[0]
        return {name for name, _ in re.findall(r"^(\w+) +(\d+)$", planned, re.M)} - {"all", "total"}

    def status(self) -> set[str]:
        """The stages that `dvc status` finds changed themselves."""
        return {name.partition("@")[0] for name in self.dvc(lambda repo: repo.status())}

    def dvc(self, action: Callable[[Any], Any]) -> Any:
        from dvc.repo import Repo

        with pytest.MonkeyPatch.context() as patch, chdir(self.root), Repo(str(self.root)) as repo:
            for name in ("PYTHONPATH", "PATH"):
                patch.setenv(name, self.environment[name])
            return action(repo)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    from dvc.repo import Repo

    root = tmp_path_factory.mktemp("edits") / "project"
    shutil.copytree(PROJECT / "pipeline", root / "pipeline", ignore=IGNORED)
    for folder in ("graphs", "profiles"):
        shutil.copytree(PROJECT / folder, root / folder)
    for name in ("Snakefile", ".dvcignore"):
        shutil.copy(PROJECT / name, root)
    settings = full_params()
    # compare and distill have jobs
    jobs = {"seeds": "42", "distill": "Q4_K_M"}
    for key, value in jobs.items():
        assert f" {key}: []" in settings
        settings = settings.replace(f" {key}: []", f" {key}: [{value}]")
    (root / "params.yaml").write_text(settings, encoding="utf-8")
    (root / "dvc.yaml").write_text(dvc_text("merged"))
    written = {path for stage in stages_in("merged").values() for path in stage.written}
    folders = {path.rstrip("/") for path in written if path.endswith("/")} | {*USERS}
    Repo.init(str(root), no_scm=True).close()
    edits = Project(root)
    outputs = edits.dvc(lambda repo: {out.def_path for out in repo.index.outs}) - {KEYS}
    for path in outputs | set(USERS):
        is_folder = path in folders or path.startswith("models/compare/")
        file = root / path / "file" if is_folder else root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{path}\n")
    (root / "data/augmented").mkdir()  # into which no job writes
    for stage in (CODE, SETTINGS):
        edits.run(sys.executable, "-m", "pipeline", stage)
    edits.dvc(lambda repo: repo.add("data/raw"))
    edits.dvc(lambda repo: repo.commit(force=True))
    yield edits
    if edits.forked:
        edits.forked.close()


@pytest.fixture
def edited(project: Project) -> Iterator[Callable[[str, Edit], None]]:
    """Edits a file of the package; afterwards it is as it was."""
    kept: dict[Path, str] = {}

    def edit(file: str, change: Edit) -> None:
        path = project.root / "pipeline" / file
        kept[path] = path.read_text()
        path.write_text(change(kept[path]))

    yield edit
    for path, text in kept.items():
        path.write_text(text)


MERGED = set(stages_in("merged")) - {"augment"}  # which has no job by default


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "planned"),
    [
        ("a comment", set()),
        ("publishing", MERGED),
        ("the loss of GRPO", set()),
        ("the rule of lengths", MERGED - {"base"}),
        ("a style sheet", {"report"}),
    ],
)
def test_both_tools_run_the_same_stages_after_an_edit(
    project: Project, edited: Any, name: str, planned: set[str]
) -> None:
    """Snakemake counts those that follow as well; DVC sees of them when it comes to them."""
    file, edit, stages = EDITS[name]
    edited(file, edit)
    assert project.plan() == planned
    assert project.status() == stages & MERGED


@pytest.mark.slow
def test_dvc_alone_notices_an_edit(project: Project, edited: Any) -> None:
    """Its first stage depends on the package and writes the keys; after a comment that is all it does, and a
    restart finds nothing to do.
    """
    project.run(sys.executable, "-m", "pipeline", CODE)
    project.dvc(lambda repo: repo.commit(CODE, force=True))
    assert project.status() == set()
    edited("stages/train/stage.py", added("\n# a comment\n"))
    assert project.status() == {CODE}
    assert [stage.name for stage in project.dvc(lambda repo: repo.reproduce())] == [CODE]
    assert project.status() == set()
    edited("pages/templates/index.css", added("\n/* edited */\n"))
    project.dvc(lambda repo: repo.reproduce(CODE))
    assert project.status() == {"report"}


@pytest.mark.slow
def test_keys_that_are_gone_are_written_again_and_run_nothing(project: Project) -> None:
    """As in a clone: they are in no commit of git."""
    assert project.plan() == set()
    shutil.rmtree(project.root / ".quench")
    assert project.plan() == set()
    assert project.status() == set()
