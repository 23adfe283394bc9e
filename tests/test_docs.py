"""Docs can't lie: every link, path, command, option, key and stage in them is looked up in the project."""

import ast
import re
import shlex
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import dvc  # noqa: F401  its logger keeps the stderr of its first import, and a test's ends with the test
import pytest
import typer
from make import quench
from typer.core import TyperGroup

from pipeline.__main__ import main as run_stage
from pipeline.cli import app
from pipeline.config.params import Params
from pipeline.config.scorers import SPELLINGS
from pipeline.core.places import PROJECT
from pipeline.llamacpp.tools import VERSION
from pipeline.workflow.stages import table

STAGES = table().stages
README = (PROJECT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (PROJECT / "Makefile").read_text(encoding="utf-8")
PAGES = [PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", *sorted((PROJECT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# Typer has a copy of Click of its own
MistakenUse = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "UsageError")
pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@cache
def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return BLOCK.sub("", page.read_text(encoding="utf-8"))


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page: small letters, spaces as hyphens, no other
    marks; -1, -2 … behind one that comes again.
    """
    found: list[str] = []
    for heading in re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found.append(f"{name}-{found.count(name)}" if name in found else name)
    return set(found)


def commands(page: Path, *names: str) -> list[tuple[list[str], bool]]:
    """(words, in a block) of each command in a page that starts with one of `names`."""
    text = page.read_text(encoding="utf-8")
    blocks = [line for kind, block in BLOCK.findall(text) if kind == "sh" for line in block.splitlines()]
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"^#.*$", "", prose(page), flags=re.MULTILINE))
    lines = [(line, True) for line in blocks] + [(line, False) for line in inline if "…" not in line]
    return [
        (shlex.split(line, comments=True), block)
        for line, block in lines
        if re.match(rf"({'|'.join(names)})(?![\w-])", line)
    ]


def test_readme_leads_to_all_other_pages() -> None:
    linked = set(re.findall(r"\]\(([^)#]+)", README))
    assert [page.name for page in PAGES[1:] if str(page.relative_to(PROJECT)) not in linked] == []


def test_readmes_tree_and_the_layers_of_architecture_name_what_is_there() -> None:
    tree = re.search(r"## The tree\n\n```text\n(.*?)```", README, re.DOTALL)
    assert tree
    shown = [path for line in tree[1].splitlines() for path in line[:22].replace(",", " ").split()]
    assert [path for path in shown if not list(PROJECT.glob(path))] == []
    layers = (PROJECT / "docs/architecture.md").read_text(encoding="utf-8").partition("## Layers")[2]
    packages = {file.parent.name for file in (PROJECT / "pipeline").glob("*/__init__.py")}
    assert packages <= set(re.findall(r"\w+", layers.partition("All layers but")[0]))


@pages
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)\s]+)\)", prose(page))
    targets = [
        (
            link,
            (page.parent / link.partition("#")[0]).resolve() if link[0] != "#" else page,
            link.partition("#")[2],
        )
        for link in links
    ]
    assert [link for link, target, _ in targets if not target.exists()] == []
    assert [link for link, target, anchor in targets if anchor and anchor not in anchors(target)] == []


@pytest.mark.parametrize("page", PAGES[2:], ids=lambda page: page.name)
def test_a_page_of_docs_begins_with_what_one_types(page: Path) -> None:
    before, block, _ = page.read_text(encoding="utf-8").partition("```sh\n")
    assert block and before.count("\n") < 10 and "\n## " not in before


@pages
def test_paths_of_the_code_exist(page: Path) -> None:
    paths = re.findall(
        r"`((?:pipeline|tests|docs|benchmarks|examples|graphs|recipes|profiles)/[\w./-]+)`", prose(page)
    )
    assert [path for path in paths if not (PROJECT / path).exists()] == []


@pages
def test_keys_exist(page: Path) -> None:
    sections = {name: field.annotation for name, field in Params.model_fields.items()}
    named = re.findall(rf"`({'|'.join(sections)})\.([a-z_]\w*)", prose(page))
    assert [
        f"{name}.{key}"
        for name, key in named
        if key not in {*getattr(sections[name], "model_fields", {}), "json", "jsonl", "sh"}
    ] == []


def parse(words: list[str], *, complete: bool) -> None:
    """Parse a command line as `quench` would, running nothing. Raises `MistakenUse`; for arguments that are
    missing only if `complete`.
    """
    command: Any = typer.main.get_command(app)
    context = command.context_class(command, info_name="quench")
    while isinstance(command, TyperGroup):
        if not words and (not complete or command.invoke_without_command):
            return
        if words and any(words[0] in option.opts for option in command.params):
            return  # an option of the group: to parse --install-completion is to run it
        name, command, words = command.resolve_command(context, words)
        context = command.context_class(command, info_name=name, parent=context, **command.context_settings)
    try:
        command.parse_args(context, list(words))
    except MistakenUse as error:
        if complete or type(error).__name__ != "MissingParameter":
            raise


@pages
def test_quenchs_commands_parse(page: Path) -> None:
    for words, block in commands(page, "quench"):
        try:
            parse(words[1:], complete=block)
        except MistakenUse as error:
            pytest.fail(f"{shlex.join(words)}: {error}")


def test_a_wrong_command_would_be_found() -> None:
    for line in (
        "serv",
        "serve --smok 8",
        "config plan --vram much",
        "data chek x",
        "data export x --to csv",
    ):
        with pytest.raises(MistakenUse):
            parse(line.split(), complete=True)


@pages
def test_pytests_files_and_tests_exist(page: Path) -> None:
    for words, _ in commands(page, "pytest tests"):
        tested = [PROJECT / word for word in words if word.startswith("tests/")]
        files = [file for path in tested for file in (path.rglob("test_*.py") if path.is_dir() else [path])]
        names = [
            name for file in files for name in re.findall(r"def (test_\w+)", file.read_text(encoding="utf-8"))
        ]
        wanted = words[words.index("-k") + 1].split(" or ") if "-k" in words else ["test_"]
        assert [part for part in wanted if not any(part in name for name in names)] == [], words


def test_the_workflow_tools_commands_parse(capsys: pytest.CaptureFixture[str]) -> None:
    from dvc.cli import DvcParserError
    from dvc.cli.parser import get_main_parser
    from snakemake.cli import get_argument_parser

    parsers = {"snakemake": get_argument_parser(), "dvc": get_main_parser()}
    for page in PAGES:
        for words, block in commands(page, *parsers):
            if words[1:] or block:
                try:
                    parsed = parsers[words[0]].parse_args(words[1:])
                except (SystemExit, DvcParserError):
                    pytest.fail(f"{page.name}: {shlex.join(words)}: {capsys.readouterr().err}")
                assert {
                    target for target in getattr(parsed, "targets", None) or () if words[0] == "snakemake"
                } <= {*STAGES}, words


@pages
def test_makes_and_pythons_commands_exist(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verbs = {word for line in re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE) for word in line.split()}
    variables = set(re.findall(r"^(\w+) *[?:]?=", MAKEFILE, re.MULTILINE))
    for words, _ in commands(page, "make"):
        assert {word for word in words[1:] if "=" not in word} <= verbs, words
        assert {word.partition("=")[0] for word in words[1:] if "=" in word} <= variables, words
    with pytest.raises(SystemExit):
        run_stage(["--help"])
    options = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    for words, _ in commands(page, "python -m pipeline"):
        stage, _, item = words[3].partition("@")
        assert stage == "STAGE" or (stage in STAGES and bool(item) == bool(STAGES[stage].each)), words
        assert {word for word in words if word.startswith("--")} <= options, words
    for words, _ in commands(page, r"python benchmarks/\w+\.py"):
        script = ast.parse((PROJECT / words[1]).read_text(encoding="utf-8"))
        known = {
            node.value
            for node in ast.walk(script)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        assert {word for word in words if word.startswith("--")} <= known, words


def test_the_pages_name_every_stage_recipe_scorer_and_tool() -> None:
    workflow, evaluation, gpu = (
        PROJECT.joinpath("docs", name).read_text(encoding="utf-8")
        for name in ("workflow.md", "evaluation.md", "gpu.md")
    )
    assert [
        stage for stage in STAGES if not re.search(rf"^\| .*`{stage}`.* \|", workflow, re.MULTILINE)
    ] == []
    named = re.findall(r"^\| (`[^|]+`) \|", README.partition("## Recipes")[2], re.MULTILINE)
    assert sorted(path.stem for path in (PROJECT / "recipes").glob("*.yaml")) == sorted(
        re.findall(r"`([\w.-]+)`", " ".join(named))
    )
    scorers = re.findall(r"^\| `([^`]+)` \|", evaluation.partition("## Scorers")[2], re.MULTILINE)
    assert sorted(scorers) == sorted(re.split(", | or ", SPELLINGS))
    assert f".tools/llama.cpp/{VERSION}/" in gpu


def test_the_layers_in_architecture_are_those_that_lint_checks() -> None:
    page = (PROJECT / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawing = page.partition("## Layers")[2].partition("```text\n")[2].partition("```")[0]
    drawn = [line.split("│")[1].split() for line in drawing.splitlines() if "│" in line]
    lint = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers = next(contract["layers"] for contract in lint["contracts"] if contract["id"] == "layers")
    assert drawn == [layer.split(" : ") for layer in layers]


def test_the_sections_in_architecture_are_in_the_modules_that_it_names() -> None:
    page = (PROJECT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `pipeline/config/sections/(\w+)\.py` \| ([^|]+) \|$", page, re.MULTILINE)
    shown = {section: module for module, sections in rows for section in sections.split(", ")}
    assert shown == {
        name: str(getattr(field.annotation, "__module__", "")).rpartition(".")[2]
        for name, field in Params.model_fields.items()
    }


def test_the_table_of_methods_is_made_from_what_is_enforced() -> None:
    page = (PROJECT / "docs" / "methods.md").read_text(encoding="utf-8")
    shown = page.partition("<!-- quench config methods --markdown -->\n")[2].partition("<!-- end -->")[0]
    assert shown == quench("config", "methods", "--markdown").stdout, "quench config methods --markdown"


def test_ci_does_the_two_commands_of_the_readme() -> None:
    ci = (PROJECT / ".ci" / "run").read_text(encoding="utf-8")
    told = re.findall(r"^make \w+", README, re.MULTILINE)[:2]
    done = [line for line in re.findall(r"^make \w+$", ci, re.MULTILINE) if line in told]
    assert told == done == ["make demo", "make test"]


def test_no_page_holds_a_place_to_be_filled_in() -> None:
    assert [page.name for page in PAGES if "MEASURED" in page.read_text(encoding="utf-8")] == []
