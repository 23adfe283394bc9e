"""Which stages an edit of the code runs again: those that reach it by imports, and no other; comments and
docstrings run nothing.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
from forked import Forked

from pipeline.commands.recipes import recipe_text
from pipeline.core.errors import MachineError
from pipeline.core.places import PROJECT
from pipeline.workflow.code_keys import CODE, FOLDER, Package, key_file, stage_module, write_keys
from pipeline.workflow.dvc_yaml import dvc_text
from pipeline.workflow.stages import USERS, code_of_stages, stages_in
from pipeline.workflow.syntax import read_source

BIN = Path(sys.executable).parent
EVERY = set(code_of_stages())
MEASURING = {stage for stage in EVERY if stage.startswith(("compare_measure", "compare_unquantized"))}
SCALES = {"compare_scales", "compare_distilled"}


# ---- what a module means


def digest(text: str) -> str:
    return read_source(text.encode(), is_python=True).digest


CODE_TEXT = (
    '"""Doc."""\nimport os\n\n\ndef f(a, *, b=None):\n    """Doc."""\n    return [a, {"k": -1.5}]  '
    "# a "
    "comment\n"
)


@pytest.mark.parametrize(
    "same",
    [
        '"""Other."""\nimport os\ndef f(a, *, b=None):\n    return [a, {"k": -1.5}]\n',
        "import os\n\ndef f(\n    a,\n    *,\n    b=None,\n):\n    # why\n    return [\n        a, {'k': "
        "-1.5},\n    ]\n",
    ],
)
def test_comments_docstrings_and_layout_mean_nothing(same: str) -> None:
    assert digest(same) == digest(CODE_TEXT)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("-1.5", "-1.25"),
        ('"k"', '"K"'),
        ("b=None", "b=0"),
        ("*, b", "b"),
        ("import os", "import os.path"),
        ("return", "yield"),
        ("def f", "async def f"),
        ("f(a", "g(a"),
        ("return [a", '"text"\n    return [a'),
    ],
)
def test_everything_else_means_something(old: str, new: str) -> None:
    text = CODE_TEXT.replace(old, new, 1)
    assert text != CODE_TEXT
    assert digest(text) != digest(CODE_TEXT)


def test_one_is_not_true_and_no_float() -> None:
    assert len({digest(f"x = {value}") for value in ("1", "True", "1.0", "'1'", "b'1'")}) == 5


def test_a_text_after_the_docstring_is_code() -> None:
    assert digest('"""Doc."""\n"""Text."""\n') != digest('"""Doc."""\n')


def test_only_the_comment_of_a_key_of_params_yaml_is_no_code() -> None:
    ours = "from pipeline.config.sections.values import key\nport = key(8081, '{}')\n"
    assert digest(ours.format("a port")) == digest(ours.format("the port"))
    assert digest(ours.format("a port")) != digest(ours.replace("8081", "8082").format("a port"))
    other = "from elsewhere import key\nport = key(8081, '{}')\n"
    assert digest(other.format("a")) != digest(other.format("b"))


def test_what_is_not_python_yet_is_a_change_and_no_crash() -> None:
    assert digest("def f(:\n") != digest("def g(:\n")


def test_imports_are_absolute_for_keys_follow_no_others() -> None:
    for file in (PROJECT / "pipeline").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_bytes())):
            assert not isinstance(node, ast.ImportFrom) or node.level == 0, f"{file}:{node.lineno}"


def test_the_packages_own_init_holds_the_version_alone() -> None:
    """It is in no key: a release is no other code."""
    statements = ast.parse((PROJECT / "pipeline/__init__.py").read_bytes()).body
    assert [type(one) for one in statements] == [ast.Expr, ast.Assign]


def test_every_stage_imports_no_more_than_its_key_names() -> None:
    """Asked of Python itself: what is loaded with a stage's module is in its closure."""
    package, loaded = (
        Package(),
        "import sys, {0}; print(*(name for name in sys.modules if name.startswith('pipeline.')))",
    )
    for stage in ("quantize", "curate"):
        code = loaded.format(stage_module(stage))
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PROJECT
        )
        paths = {package.modules[name] for name in done.stdout.split()}
        assert len(paths) > 5 and paths <= package.closure(stage_module(stage)), stage


# ---- a table of edits


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package that may be edited."""
    folder = tmp_path_factory.mktemp("keys") / "pipeline"
    shutil.copytree(PROJECT / "pipeline", folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def keys(package: Path) -> dict[str, str]:
    found = Package(package, PROJECT / ".quench/syntax.json")
    return {stage: found.key(*modules) for stage, modules in code_of_stages().items()}


Edit = Callable[[str], str]


def added(text: str) -> Edit:
    return lambda old: old + text


def replaced(old: str, new: str) -> Edit:
    def edit(text: str) -> str:
        assert text.count(old) == 1
        return text.replace(old, new)

    return edit


CURATING = {"curate", "distill", "compare_distilled"}  # these curate data/distill

EDITS = [
    ("stages/train/stage.py", added("\n# a comment\n"), set()),
    ("stages/curate/rules/length.py", lambda text: text.replace('"""', '"""Edited. ', 1), set()),
    ("core/publish.py", replaced("DISK_MARGIN = 1.2 ", "DISK_MARGIN = (\n    1.2\n) "), set()),
    ("core/publish.py", replaced("DISK_MARGIN = 1.2 ", "DISK_MARGIN = 1.3 "), EVERY),
    ("stages/curate/rules/length.py", added("\nMORE = 1\n"), CURATING),
    (
        "models/distill_loss.py",
        added("\nMORE = 1\n"),
        {"train", "distill", "compare_nf4", "compare_level", *SCALES},
    ),  # imported inside functions only
    (
        "stages/compare/reference.py",
        added("\nMORE = 1\n"),
        {"compare", *MEASURING},
    ),  # started as `python -m`
    ("stages/evaluate/harness_process.py", added("\nMORE = 1\n"), {"evaluate"}),  # started by its path
    ("metrics/general.jsonl", added("\n"), {"evaluate", "compare", *MEASURING}),
    ("pages/templates/index.css", added("\n/* edited */\n"), {"report"}),
    (
        "pages/templates/index/answers.html.jinja",
        added("\n<!-- edited -->\n"),
        {"report"},
    ),  # included by a name that is put together
    (
        "pages/templates/labels.css",
        added("\n/* edited */\n"),
        {"preprocess", "distill", "compare_level", *SCALES},
    ),  # which starts preprocess
    ("stages/curate/words.txt", added("named by no module\n"), CURATING),
    ("cli.py", added("\nMORE = 1\n"), set()),
    (
        "config/sections/shipping.py",
        replaced("port on 127.0.0.1", "the port on 127.0.0.1"),
        set(),
    ),  # a comment in params.yaml
    ("stages/train/stage.py~", added("an editor's copy"), set()),
    ("stages/train/#stage.py#", added("an editor's copy"), set()),
    ("core/publish.py.orig", added("a merge's leftover"), set()),
    ("__init__.py", lambda text: re.sub(r'"\d.*"$', '"9.9"', text, flags=re.M), set()),
]


@pytest.mark.parametrize(
    ("file", "edit", "stages"), EDITS, ids=[f"{number}-{file}" for number, (file, _, _) in enumerate(EDITS)]
)
def test_an_edit_changes_the_keys_of_the_stages_that_reach_it(
    package: Path, file: str, edit: Edit, stages: set[str]
) -> None:
    before, path = keys(package), package / file
    old = path.read_text() if path.exists() else None
    path.write_text(edit(old or ""))
    after = keys(package)
    path.write_text(old) if old is not None else path.unlink()
    assert path.exists() == (old is not None) and (old is None or edit(old) != old)
    assert {stage for stage in before if before[stage] != after[stage]} == stages


def test_a_link_to_nowhere_is_no_code(package: Path) -> None:
    before, link = keys(package), package / "stages/train/gone.py"
    link.symlink_to(package / "nowhere.py")
    after = keys(package)
    link.unlink()
    assert after == before


def test_keys_that_can_not_be_written_are_the_machines_fault(tmp_path: Path) -> None:
    (tmp_path / ".quench").mkdir()
    (tmp_path / FOLDER).write_text("a file where the folder belongs")
    with pytest.raises(MachineError, match="Q-WORKFLOW-001"):
        write_keys(tmp_path, code_of_stages())


def test_a_module_that_is_imported_from_now_on_is_in_the_key(package: Path) -> None:
    (package / "fresh.py").write_text("X = 1\n")
    path = package / "stages/quantize/stage.py"
    old, before = path.read_text(), keys(package)
    path.write_text(old + "\n\ndef later() -> None:\n    from pipeline import fresh  # noqa\n")
    after = keys(package)
    path.write_text(old)
    assert "fresh.py" in after["quantize"] and "fresh.py" not in before["quantize"] + after["train"]


def test_keys_are_written_where_they_differ_and_those_of_no_stage_go(tmp_path: Path) -> None:
    assert set(write_keys(tmp_path, code_of_stages())) == EVERY
    file = tmp_path / key_file("train")
    os.utime(file, (1, 1))
    (tmp_path / key_file("curate")).write_text("of other code\n")
    (tmp_path / FOLDER / "gone.key").touch()
    assert write_keys(tmp_path, code_of_stages()) == ["curate"]
    assert file.stat().st_mtime == 1
    assert {path.stem for path in (tmp_path / FOLDER).iterdir()} == EVERY


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
        done = subprocess.run(
            command, cwd=self.root, env=self.environment, capture_output=True, text=True, check=False
        )
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

    from pipeline.workflow.locked import stages_of

    root = tmp_path_factory.mktemp("edits") / "project"
    shutil.copytree(PROJECT / "pipeline", root / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("graphs", "profiles"):
        shutil.copytree(PROJECT / folder, root / folder)
    for name in ("Snakefile", ".dvcignore"):
        shutil.copy(PROJECT / name, root)
    settings = recipe_text("demo")
    # compare, distill and budget have jobs
    jobs = {"seeds": "42", "distilled": "merged_distilled", "distill": "Q4_K_M", "budgets": "4.6bpw"}
    for key, value in jobs.items():
        assert f" {key}: []" in settings
        settings = settings.replace(f" {key}: []", f" {key}: [{value}]")
    (root / "params.yaml").write_text(settings, encoding="utf-8")
    (root / "dvc.yaml").write_text(dvc_text("merged"))
    folders = {
        path.rstrip("/")
        for stage in stages_in("merged").values()
        for path in stage.written
        if path.endswith("/")
    }
    made = {path for stage in stages_of(root).values() for path in stage.outs} - {FOLDER}
    folders |= {
        *USERS,
        *(path for path in made if path.startswith("models/compare/")),
    }
    for path in made | set(USERS):
        file = root / path / "file" if path in folders else root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{path}\n")
    found = Project(root)
    found.run(sys.executable, "-m", "pipeline", CODE)
    Repo.init(str(root), no_scm=True).close()
    found.dvc(lambda repo: repo.add("data/raw"))
    found.dvc(lambda repo: repo.commit(force=True))
    yield found
    if found.forked:
        found.forked.close()


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


MERGED = set(stages_in("merged"))


@pytest.mark.parametrize(
    ("number", "planned"),
    [
        pytest.param(0, set(), id="comment"),
        pytest.param(3, MERGED, id="publish"),
        pytest.param(4, MERGED - {"base"}, id="curation", marks=pytest.mark.slow),
        pytest.param(9, {"report"}, id="template", marks=pytest.mark.slow),
    ],
)
def test_both_tools_run_the_same_stages_after_an_edit(
    project: Project, edited: Any, number: int, planned: set[str]
) -> None:
    """Snakemake counts those that follow as well; DVC sees of them when it comes to them."""
    file, edit, stages = EDITS[number]
    edited(file, edit)
    assert project.plan() == planned
    assert project.status() == stages & MERGED


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


def test_keys_that_are_gone_are_written_again_and_run_nothing(project: Project) -> None:
    """As in a clone: they are in no commit of git."""
    assert project.plan() == set()
    shutil.rmtree(project.root / ".quench")
    assert project.plan() == set()
    assert project.status() == set()
