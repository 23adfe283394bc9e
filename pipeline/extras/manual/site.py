"""Build the site: the pages in a folder of their own, and Zensical's run over it.

A build is kept under the hash of what it is made from, so the manual is built once for each version.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from pipeline.core.errors import IS_CHECKOUT, ToolError
from pipeline.core.places import own_folder
from pipeline.core.publish import publishing, remove
from pipeline.extras.manual.reference import commands_page, settings_page
from pipeline.extras.manual.sources import groups, hand_written
from pipeline.extras.manual.stage_pages import FOLDER, stage_pages

GENERATOR = "zensical"
CONFIG = Path(__file__).with_name("zensical.toml")
NAV = "nav = []"
REFERENCE = "Reference"
STAGES = "Stages"
KEPT = own_folder() / (".tools/manual" if IS_CHECKOUT else "manual")
Navigation = Mapping[str, Sequence[str]]  # the pages of each group


def manual_pages() -> dict[str, bytes]:
    """Return every page of the manual and what the pages show, by place."""
    made = {"settings.md": settings_page(), "commands.md": commands_page(), **stage_pages()}
    return {**hand_written(), **{place: text.encode("utf-8") for place, text in made.items()}}


def navigation(pages: Mapping[str, bytes]) -> dict[str, list[str]]:
    """Return the groups of the manual with their pages, each page once."""
    listed = groups(pages)
    found = {group: [page for page in listed[group] if not _is_made(page)] for group in listed}
    stages = [page for page in pages if page.startswith(f"{FOLDER}/")]
    return {**found, STAGES: stages, REFERENCE: ["settings.md", "commands.md"]}


def built_site() -> Path:
    """Return the first page of the manual, which is built if it was not yet.

    Raises `ToolError` if the generator is not installed or reports a problem.
    """
    need_generator()
    pages = manual_pages()
    config = _config(navigation(pages))
    key = sha256(f"{version(GENERATOR)}\n{config}".encode())
    for place, content in pages.items():
        key.update(f"{place}\n{len(content)}\n".encode() + content)
    site = KEPT / key.hexdigest()[:16]
    if not site.is_dir():
        with publishing(site) as aside:
            build(aside, pages, config)
        for other in KEPT.iterdir():
            if other != site:
                remove(other)
    return site / "site" / "index.html"


def need_generator() -> None:
    """Raise `ToolError` if the generator is not installed."""
    if find_spec(GENERATOR) is None:
        raise ToolError(
            "Q-MANUAL-001",
            "the package zensical, which builds the manual, is not installed: run `make dev`, or install "
            "quench[docs]; the same pages as text are in the folder docs/ of the repository",
        )


def build(folder: Path, pages: Mapping[str, bytes], config: str) -> None:
    """Write the pages and the configuration into `folder`, and build `site` there.

    Raises `ToolError` with the generator's own words if it finds anything wrong, such as a broken link.
    """
    for place, content in pages.items():
        target = folder / "docs" / place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    (folder / "zensical.toml").write_text(config, encoding="utf-8")
    command = [sys.executable, "-m", GENERATOR, "build", "--strict", "--config-file", "zensical.toml"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode or not (folder / "site" / "index.html").is_file():
        said = " ".join(f"{done.stdout}\n{done.stderr}".split())
        raise ToolError("Q-MANUAL-002", f"zensical could not build the manual: {said[-2000:]}")


def _is_made(page: str) -> bool:
    return page.startswith(f"{FOLDER}/") or page in ("settings.md", "commands.md")


def _config(groups: Navigation) -> str:
    entries = [
        '"index.md"',
        *(f"{{{json.dumps(name)} = {json.dumps(list(pages))}}}" for name, pages in groups.items()),
    ]
    return CONFIG.read_text(encoding="utf-8").replace(NAV, f"nav = [{', '.join(entries)}]")
