"""Docs that can't lie: every path, command, stage and error sentence in them is looked up in the project."""

import ast
import re
from pathlib import Path

import pytest

from pipeline.__main__ import PER_ITEM, STAGES
from pipeline.cli import app
from pipeline.llamacpp.tools import PROJECT, TOOLS, VERSION

README = (PROJECT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (PROJECT / "Makefile").read_text(encoding="utf-8")
PAGES = [PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", *sorted((PROJECT / "docs").glob("*.md"))]
TREE = re.search(r"## The project\n\n```text\n(.*?)```", README, re.DOTALL)


def sentences() -> list[str]:
    """Every string of the source, with … for its values, and the Makefile's own words."""
    found = [MAKEFILE]
    for module in (PROJECT / "pipeline").rglob("*.py"):
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def test_every_path_of_the_tree_exists() -> None:
    assert TREE
    paths = [line.split()[0] for line in TREE[1].splitlines()]
    assert len(paths) > 10
    assert [path for path in paths if not (PROJECT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist(page: Path) -> None:
    pieces = re.findall(r"```sh\n(.*?)```|`([^`\n]+)`", page.read_text(encoding="utf-8"), re.DOTALL)
    code = "\n".join(block or inline for block, inline in pieces)
    verbs = {word for line in re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE) for word in line.split()}
    commands = {command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands}
    groups = {group.name: group.typer_instance for group in app.registered_groups}
    for name, group in groups.items():
        inner = {command.name or getattr(command.callback, "__name__", "") for command in group.registered_commands}
        assert set(re.findall(rf"^quench {name} ([a-z]+)", code, re.MULTILINE)) <= inner
    assert set(re.findall(r"^make ([a-z]+)", code, re.MULTILINE)) <= verbs
    assert set(re.findall(r"^quench ([a-z-]+)", code, re.MULTILINE)) <= commands | groups.keys()
    assert set(re.findall(r"^snakemake ([a-z]+)", code, re.MULTILINE)) <= set(STAGES)
    stages = re.findall(r"^python -m pipeline ([a-z]+)(@?)", code, re.MULTILINE)
    assert all(stage in STAGES and bool(item) == (stage in PER_ITEM) for stage, item in stages)


def test_readme_names_every_stage_recipe_and_tool() -> None:
    assert [stage for stage in STAGES if f"`{stage}`" not in README] == []
    assert [path.stem for path in (PROJECT / "recipes").glob("*.yaml") if f"| `{path.stem}` |" not in README] == []
    assert f".tools/llama.cpp/{VERSION}/" in README
    assert " ".join(TOOLS) in README


def test_troubleshooting_quotes_what_the_program_says() -> None:
    page = (PROJECT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    quoted = re.findall(r"^### `(.+)`$", page, re.MULTILINE)
    assert len(quoted) > 20
    ours = sentences()
    assert [words for words in quoted if not any(words in sentence for sentence in ours)] == []


def test_ci_does_the_two_commands_of_the_readme() -> None:
    ci = (PROJECT / ".ci" / "run").read_text(encoding="utf-8")
    assert re.findall(r"^make \w+$", ci, re.MULTILINE)[:2] == ["make demo", "make test"] == re.findall(r"^make \w+", README, re.MULTILINE)[:2]


def test_no_page_holds_a_place_to_be_filled_in() -> None:
    assert [page.name for page in PAGES if "MEASURED" in page.read_text(encoding="utf-8")] == []
