"""Build the site: the pages in a folder of their own, and Zensical's run over it.

A build is kept under the hash of what it is made from, so the manual is built once for each version.
"""

import fcntl
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from pipeline.core.errors import ToolError
from pipeline.core.extra_packages import install_command
from pipeline.core.locks import locked
from pipeline.core.places import own_folder, resource
from pipeline.core.publish import publishing, remove, unwritable
from pipeline.extras.manual.reference import commands_page, settings_page
from pipeline.extras.manual.sources import DOCS, HOME, groups, hand_written
from pipeline.extras.manual.stage_pages import stage_pages

GENERATOR = "zensical"
CONFIG = Path(__file__).with_name("zensical.toml")
NAV = "nav = []"
KEPT = own_folder() / ".quench" / "manual"
COLOR = re.compile(r"\x1b\[[0-9;]*m")
PROBLEM = re.compile(r"(?:Warning|Error): (?P<problem>.*)\n[^\n]*\[ (?P<place>\S+) \]")


@dataclass(frozen=True)
class Manual:
    """All pages with what they show, by place, and the pages of each group of the navigation."""

    pages: Mapping[str, bytes]
    groups: Mapping[str, Sequence[str]]


def manual() -> Manual:
    """Return the manual: the hand-written pages and those that are made from the code."""
    written = hand_written()
    stages = stage_pages()
    reference = {"settings.md": settings_page(), "commands.md": commands_page()}
    made = {place: text.encode("utf-8") for place, text in {**stages, **reference}.items()}
    return Manual(
        {**written, **made}, {**groups(written), "Stages": list(stages), "Reference": list(reference)}
    )


def built_site() -> Path:
    """Return the first page of the manual, which is built if it was not yet.

    Raises `ToolError` if the generator is not installed or reports a problem.
    """
    need_generator()
    made = manual()
    config = _config(made)
    key = sha256(f"{version(GENERATOR)}\n{config}".encode())
    for place, content in made.pages.items():
        key.update(f"{place}\n{len(content)}\n".encode() + content)
    site = KEPT / key.hexdigest()[:16]
    if not site.is_dir():
        _build_once(site, made)
    return site / "site" / "index.html"


def _build_once(site: Path, made: Manual) -> None:
    """Build the site unless another process just did, and remove those of other versions.

    Raises `MachineError` if nothing can be written there.
    """
    try:
        with locked(KEPT / "lock", fcntl.LOCK_EX):
            if site.is_dir():
                return
            with publishing(site) as aside:
                build(aside, made)
            for other in KEPT.iterdir():
                if other.is_dir() and other != site:
                    remove(other)
    except OSError as error:
        raise unwritable(error, KEPT) from error


def need_generator() -> None:
    """Raise `ToolError` if the generator is not installed."""
    if find_spec(GENERATOR) is None:
        raise ToolError(
            "Q-MANUAL-001",
            f"the package zensical, which builds the manual, is not installed: `{install_command('docs')}`; "
            f"most of its pages are in {resource(DOCS)}, as text",
        )


def build(folder: Path, made: Manual) -> None:
    """Write the pages and the configuration into `folder`, and build `site` there.

    Raises `ToolError` with the generator's own words if it finds anything wrong, such as a broken link.
    """
    for place, content in made.pages.items():
        target = folder / "docs" / place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    (folder / "zensical.toml").write_text(_config(made), encoding="utf-8")
    command = [sys.executable, "-m", GENERATOR, "build", "--strict", "--config-file", "zensical.toml"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode or not (folder / "site" / "index.html").is_file():
        raise ToolError("Q-MANUAL-002", f"the manual was not built: {_problem(done.stdout + done.stderr)}")


def _problem(said: str) -> str:
    """Return the first problem that the generator names, with its place, or else its last words."""
    text = COLOR.sub("", said)
    named = PROBLEM.search(text)
    if named:
        return f"{named['problem']} ({named['place']})"
    return " ".join(text.split())[-500:]


def _config(made: Manual) -> str:
    """Return the generator's configuration with the navigation."""
    entries = [json.dumps(HOME)]
    for name, pages in made.groups.items():
        entries.append(f"{{{json.dumps(name)} = {json.dumps(list(pages))}}}")
    return CONFIG.read_text(encoding="utf-8").replace(NAV, f"nav = [{', '.join(entries)}]")
