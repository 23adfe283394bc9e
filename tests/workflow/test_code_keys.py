"""The stages that an edit of the code runs again: those whose code imports the file that is edited. Comments
and docstrings run nothing, and neither does plumbing.
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
from pipeline.core.extras import modules_used_by
from pipeline.core.places import PACKAGE, PROJECT
from pipeline.workflow.dvc_yaml import dvc_text
from pipeline.workflow.keys.code_keys import CODE, SETTINGS, stage_module
from pipeline.workflow.keys.imports import PLUMBING, Package, is_in, module_name, read_source
from pipeline.workflow.stages import code_of_stages, optional, stages_in, stages_of

Edit = Callable[[str], str]
IGNORED = shutil.ignore_patterns("__pycache__")
STARTS = code_of_stages()
SOURCES = Package().sources
KEYS = ".quench/code"
USERS = ("data/raw", "data/guard", "data/evaluation", "data/distill")
TRAINING = {"train", *(f"train.{method}" for method in METHODS)}


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


def test_imports_are_absolute_and_by_name_for_keys_follow_no_others() -> None:
    for file in (PROJECT / "pipeline").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0 and node.names[0].name != "*", f"{file}:{node.lineno}"


def test_the_packages_own_init_contains_only_the_version() -> None:
    """It is in no key: a release is no other code."""
    statements = ast.parse((PROJECT / "pipeline/__init__.py").read_bytes()).body
    assert [type(one) for one in statements] == [ast.Expr, ast.Assign]


def test_what_a_stage_runs_is_in_its_key(tmp_path: Path) -> None:
    """Asked of Python itself, of the two stages that need no model: each file of which a function runs."""
    (tmp_path / "data/raw").mkdir(parents=True)
    (tmp_path / "models").mkdir()
    (tmp_path / "models/base.json").write_text('{"added_tokens": ["<|im_end|>"]}')
    (tmp_path / "data/raw/chats.jsonl").write_text("".join(map(chat, range(60))), encoding="utf-8")
    settings = load_params(PROJECT / "recipes/demo.yaml")
    report = write_inputs(tmp_path / "report")
    for stage, given, root in (("curate", settings, tmp_path), ("report", demo_params(), report)):
        ran = run_of(stage, given, root)
        needed = Package().closure(*STARTS[stage])
        assert len(ran) > 20, stage
        missing = {path for path in ran - needed if not is_plumbing(path)}
        assert missing == set(), stage


def chat(number: int) -> str:
    turns = [{"role": "user", "content": f"{number}?"}, {"role": "assistant", "content": f"{number * 7}."}]
    return json.dumps({"messages": turns}) + "\n"


def is_plumbing(path: str) -> bool:
    return any(is_in(module_name(path), name) for name in PLUMBING)


def run_of(stage: str, params: Params, root: Path) -> set[str]:
    """Return the files of the package of which a stage's `main` runs a function, outside imports."""
    importing = [0]
    ran: set[str] = set()
    run = import_module(stage_module(stage)).main

    def see(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if code.co_name == "<module>":
            importing[0] += {"call": 1, "return": -1}.get(event, 0)
        elif event == "call" and not importing[0] and code.co_flags & inspect.CO_OPTIMIZED:
            file = Path(code.co_filename)
            if file.is_relative_to(PACKAGE) and file.suffix == ".py":
                ran.add(file.relative_to(PACKAGE).as_posix())

    sys.setprofile(see)
    try:
        run(params, root)
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
    assert calls == {"__main__.py", "stages/train/method.py", "core/extras.py"}
    loading = {
        path.parent.name
        for path in (PACKAGE / "stages").rglob("*.py")
        if "provider(" in path.read_text(encoding="utf-8")
    }
    assert all(set(modules_used_by(stage)) <= set(STARTS[stage]) for stage in loading)
    assert loading == {stage for stage in STARTS if modules_used_by(stage)}
    assert STARTS.keys() > TRAINING


# ---- what an edit runs again


def added(more: str) -> Edit:
    return lambda text: text + more


def replaced(old: str, new: str) -> Edit:
    return lambda text: text.replace(old, new, 1)


MORE = added("\n\ndef more() -> int:\n    return 1\n")
# none of them can change what training computes
FREE_FOR_TRAINING: dict[str, tuple[str, Edit]] = {
    "a comment": ("stages/train/stage.py", added("\n# a comment\n")),
    "a docstring": ("stages/train/stage.py", replaced('"""', '"""Edited. ')),
    "layout": ("models/qlora.py", added("\n\n\n")),
    "a key of serve": ("config/sections/shipping.py", replaced("8081", "8082")),
    "a check of settings": ("config/params.py", MORE),
    "a sentence on an error": ("core/catalog/train.yaml", added("\n# edited\n")),
    "how an artifact is published": ("core/publish.py", MORE),
    "a page's style sheet": ("pages/templates/index.css", added("\n/* edited */\n")),
    "a figure as text": ("pages/drawings.py", MORE),
    "the command line": ("cli.py", MORE),
    "a verb": ("commands/serve.py", MORE),
    "the runner of stages": ("__main__.py", MORE),
    "what is planned": ("planning/memory/parts.py", MORE),
    "when a stage is fresh": ("workflow/settle.py", MORE),
    "the gate": ("gate/rules.py", MORE),
    "an extra": ("extras/compare/stage.py", MORE),
    "how extras are found": ("core/extras.py", MORE),
    "what an extra contributes": ("extras/harness/__init__.py", MORE),
    "an observer": ("extras/trackers/observer.py", MORE),
    "a scorer": ("metrics/text_scorers.py", MORE),
    "how llama-server is started": ("llamacpp/server_command.py", MORE),
    "a rule of curation": ("stages/curate/rules/length.py", MORE),
}
# with some of the stages that they run again
EDITS: dict[str, tuple[str, Edit, set[str]]] = {
    "the loop of training": ("stages/train/loop.py", MORE, TRAINING),
    "the QLoRA model": ("models/qlora.py", MORE, {"train"}),
    "what GRPO does its own way": ("stages/train/grpo/method.py", MORE, {"train.grpo"}),
    "which linears train": ("config/targets.py", MORE, {"train", "merge"}),
    "how a chat is rendered": ("chat/rendering.py", MORE, {"preprocess", "train", "parity", "evaluate"}),
    "the rule of lengths": ("stages/curate/rules/length.py", MORE, {"curate"}),
    "an extra's stage": ("extras/compare/stage.py", MORE, {"compare"}),
    "an extra that a stage uses": ("extras/harness/process.py", MORE, {"evaluate"}),
    "a word list": ("metrics/general.jsonl", added("\n"), {"evaluate"}),
    "a program that a stage starts": ("llamacpp/converter_process.py", MORE, {"convert"}),
    "llama.cpp's build": ("llamacpp/quicker.cmake", added("\n# edited\n"), {"convert", "quantize"}),
    "the merge": ("models/merging/compute.py", MORE, {"merge"}),
    "the gate": ("gate/rules.py", MORE, {"report"}),
    "a page's style sheet": ("pages/templates/index.css", added("\n/* edited */\n"), {"report"}),
    "a section of settings": ("config/sections/training.py", MORE, {SETTINGS}),
    "a key of serve": ("config/sections/shipping.py", replaced("8081", "8082"), {SETTINGS}),
}


@pytest.mark.parametrize(("file", "edit"), FREE_FOR_TRAINING.values(), ids=FREE_FOR_TRAINING)
def test_an_edit_that_cannot_change_a_training_leaves_it_fresh(file: str, edit: Edit) -> None:
    assert not edited_stages(file, edit) & {"base", "preprocess", "train", "train.sft"}


@pytest.mark.parametrize(("file", "edit", "some"), EDITS.values(), ids=EDITS)
def test_an_edit_runs_again_what_imports_the_file(file: str, edit: Edit, some: set[str]) -> None:
    assert some <= edited_stages(file, edit)


def edited_stages(file: str, edit: Edit) -> set[str]:
    """Return the stages that an edit runs again themselves."""
    text = (PACKAGE / file).read_text(encoding="utf-8")
    assert edit(text) != text
    source = read_source(edit(text).encode(), is_python=file.endswith(".py"))
    return changed(Package(SOURCES | {file: source}))


def test_an_edit_of_grpo_trains_no_other_method_again() -> None:
    assert edited_stages("stages/train/grpo/method.py", MORE) & TRAINING == {"train.grpo"}


@cache
def keys_before() -> dict[str, str]:
    return {name: Package(SOURCES).key(*starts) for name, starts in STARTS.items()}


def changed(package: Package) -> set[str]:
    """Return the stages that have another key with these files."""
    now = {name: package.key(*starts) for name, starts in STARTS.items()}
    return {name for name, key in keys_before().items() if now[name] != key}


# ---- the files


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package that may be edited."""
    folder = tmp_path_factory.mktemp("keys") / "pipeline"
    return Path(shutil.copytree(PACKAGE, folder, ignore=IGNORED))


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("stages/curate/words.txt", {"curate"}),
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
    monkeypatch.setattr("pipeline.workflow.keys.imports.PACKAGE", package)
    try:
        assert changed(Package()) >= expected and bool(changed(Package())) == bool(expected)
    finally:
        path.unlink()


def test_what_was_read_before_is_not_parsed_again_and_any_memory_may_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = tmp_path / "of/imports.json"
    monkeypatch.setattr("pipeline.workflow.keys.imports.PACKAGE", PACKAGE / "chat")
    monkeypatch.setattr("pipeline.workflow.keys.imports.MEMORY", memory)
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
    assert {path.name.removesuffix(".key") for path in (tmp_path / KEYS).iterdir()} == STARTS.keys()


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
        return {*re.findall(r"^(\w+) +\d+\b", done.stdout, re.M)}

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
    params = load_params(root / "params.yaml")
    (root / "dvc.yaml").write_text(dvc_text(params))
    written = {path for stage in stages_in(params).values() for path in stage.written}
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


# The optional stages that the project asks for, and no job of augment, imatrix or previous.
MERGED = set(stages_of("merged", optional("merged"))) - {"augment", "imatrix", "previous"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "planned"),
    [
        ("what GRPO does its own way", set()),
        ("the rule of lengths", MERGED - {"base"}),
        ("a page's style sheet", {"report"}),
    ],
)
def test_both_tools_run_the_same_stages_after_an_edit(
    project: Project, edited: Any, name: str, planned: set[str]
) -> None:
    """Snakemake counts those that follow as well; DVC sees of them when it comes to them."""
    file, edit, _ = EDITS[name]
    stages = edited_stages(file, edit)
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
