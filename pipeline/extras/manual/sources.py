"""Collect the hand-written pages, with their links turned to where the manual has the files."""

import re
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import PurePosixPath
from posixpath import normpath, relpath

from pipeline.commands.explain import exit_code
from pipeline.core.catalog import catalog
from pipeline.core.places import resource
from pipeline.extras.manual.reference import cell

HOME = "index.md"
# Files outside of docs/ by their place in the manual. Pages link to all of them.
OUTSIDE = {
    "README.md": HOME,
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "LICENSE": "LICENSE.txt",
    "recipes/sources.md": "sources.md",
    "examples/scorer.py": "examples/scorer.py",
}
DOCS = "docs"
FENCE = re.compile(r"^(```.*?^```$)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(\]\()(?!\w+:)([^)\s#]+)")
ENTRY = re.compile(r"^- (?:([A-Z]\w+): )?(.*(?:\n  .*)*)", re.MULTILINE)
TROUBLESHOOTING = "troubleshooting.md"
ALONE = "Project"  # the group of pages that README lists outside of a group


def hand_written() -> dict[str, bytes]:
    """Return the content of every hand-written page and of the files that they show, by place."""
    places = {f"{DOCS}/{file.name}": file.name for file in sorted(resource(DOCS).iterdir()) if file.is_file()}
    places |= OUTSIDE
    pages = {}
    for source, place in places.items():
        content = resource(source).read_bytes()
        if source.endswith(".md"):
            text = _with_links(content.decode("utf-8"), PurePosixPath(source), places)
            if place == TROUBLESHOOTING:
                text += errors_tables()
            content = text.encode("utf-8")
        pages[place] = content
    return pages


def groups(pages: Mapping[str, bytes]) -> dict[str, list[str]]:
    """Return the pages of the manual in the groups of README's last list, each once."""
    listed: dict[str, list[str]] = {}
    seen = {HOME}
    text = pages[HOME].decode("utf-8").partition("## More\n")[2]
    for group, links in ENTRY.findall(text):
        for _, page in LINK.findall(links):
            if page in pages and page not in seen and page.endswith(".md"):
                listed.setdefault(group or ALONE, []).append(page)
                seen.add(page)
    rest = [page for page in pages if page.endswith(".md") and page not in seen]
    listed.setdefault(ALONE, []).extend(rest)
    return listed


def errors_tables() -> str:
    """Return a table of the errors of each area, in which each can be linked to by its id."""
    text = ""
    for area, problems in groupby(catalog().values(), key=lambda problem: problem.area):
        text += f"\n### {area}\n\n| id | exit code | when | what to do |\n|---|---|---|---|\n"
        for problem in problems:
            id = f'<span id="{problem.id.lower()}">{problem.id}</span>'
            text += f"| {id} | {exit_code(problem)} | {cell(problem.when)} | {cell(problem.remedy)} |\n"
    return text


def _with_links(text: str, source: PurePosixPath, places: Mapping[str, str]) -> str:
    """Return a page with its links to files of the repository turned to their places in the manual."""
    here = str(PurePosixPath(places[str(source)]).parent)

    def turned(link: re.Match[str]) -> str:
        target = normpath(f"{source.parent}/{link[2]}")
        return link[1] + (relpath(places[target], here) if target in places else link[2])

    parts: Iterator[str] = (
        part if part.startswith("```") else LINK.sub(turned, part) for part in FENCE.split(text)
    )
    return "".join(parts)
