"""Make a project: `quench new my-assistant`, or the next round of one: `quench new NEXT --from PROJECT`.

Writes a folder with params.yaml, dvc.yaml, a Snakefile that includes the installed workflow, Snakemake's
profiles and empty folders for data, and initializes Git and DVC there. It contains no code: the keys of the
installed code are in .quench/code (`pipeline.workflow.project`). Nothing is written if the folder has
content.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from pipeline.commands.next_round import begin, need_no_recipe, need_trained
from pipeline.commands.recipes import name_for, recipe_file, recipe_text
from pipeline.config.params import Params, load_params
from pipeline.config.sections import Base
from pipeline.core.errors import ConfigError, ToolError
from pipeline.core.git import ask_git
from pipeline.core.places import IS_CHECKOUT, expanded, resource
from pipeline.core.publish import publishing, remove
from pipeline.llamacpp.stamp import is_built
from pipeline.llamacpp.tools import DEFAULT_HOME
from pipeline.workflow.dvc_yaml import dvc_text
from pipeline.workflow.keys.code_keys import FOLDER, LOCK
from pipeline.workflow.project import check_path, take_over
from pipeline.workflow.state.settings import lock_text

SNAKEFILE = """\
# The stages are those of the installed Quench: `quench config graph` writes them into dvc.yaml too.
#   snakemake            everything            snakemake -n         what it would do
#   snakemake train      up to the adapter     snakemake -c2        with two cores
from pipeline.core.places import IS_CHECKOUT, resource
from pipeline.workflow.remote import finish_workflow


include: resource("Snakefile")


# Snakemake takes these from this file alone: what jobs of a cluster did is recorded
onsuccess:
    finish_workflow(failed=False)


onerror:
    finish_workflow(failed=True)


rule everything:  # the first rule here, so what `snakemake` makes
    input:
        rules.all.input,
"""
README = """\
# {name}

Data, settings and results of a model; the code is that of an installed Quench.

    eval "$(quench doctor env)"      # once per shell: puts dvc and snakemake on PATH
    dvc add data/raw                 # after you have put your chats there
    quench run                       # runs what is out of date
    quench status --open

`params.yaml` has the settings that differ from the defaults; `quench config show` lists all.
"""
DEMO = "demo"  # the recipe of a project without another
RAW = "data/raw"  # Git contains the file in which DVC records this folder.


def main(folder: Path, recipe: str | None = None, previous: Path | None = None) -> None:
    """Make the project `folder` with `recipe` (demo if None), or to go on from the project `previous`, and
    print the next steps.

    Raises `ConfigError` for an unknown recipe, a place that is taken or a `previous` that has trained
    nothing, `ToolError` if Git or DVC fails, and `MachineError` if the folder can't be written.
    """
    if previous:
        need_no_recipe(recipe)
        previous = expanded(previous, "--from")
        need_trained(previous)
    recipe = recipe or DEMO
    recipe_file(recipe)
    folder = Path(os.path.realpath(folder))  # A link to another disk stays one. resolve() fails for a loop.
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ConfigError(
            "Q-COMMANDS-035", f"{folder} is there already, with content: name a new folder, or an empty one"
        )
    nearest = next(parent for parent in folder.parents if parent.exists())
    if not nearest.is_dir():
        raise ConfigError(
            "Q-COMMANDS-035", f"{folder} would be below {nearest}, which is not a folder: name another place"
        )
    if Path.cwd().is_relative_to(folder):
        raise ConfigError(
            "Q-COMMANDS-035", f"{folder} is the folder you are in: run this from the one above it"
        )
    check_path(folder)
    with publishing(folder) as aside:
        params = _write(aside, folder, recipe, previous)
    try:
        _initialize(folder)  # This happens in the final place, because Git records paths.
    except ToolError:
        remove(folder)
        raise
    begun = f"to go on from {previous}" if previous else f"with recipe {recipe}"
    print(f"{folder} is ready, {begun}. Next:\n")
    for step in _next_steps(folder, params.base, None if previous else recipe):
        print(f"  {step}")


def _write(folder: Path, place: Path, recipe: str, previous: Path | None) -> Params:
    """Write the files of the project that will be at `place` into `folder`, and return its settings."""
    shutil.copytree(resource("profiles"), folder / "profiles")
    name = place.name
    ignored = resource(".gitignore").read_text(encoding="utf-8")
    (folder / RAW).mkdir(parents=True)
    # These folders are empty, but in Git.
    for kept in re.findall(r"^!/(.+)/\.gitkeep$", ignored, re.MULTILINE):
        (folder / kept).mkdir(parents=True, exist_ok=True)
        (folder / kept / ".gitkeep").touch()
    if previous:
        begin(folder, place, previous)
    else:
        (folder / "params.yaml").write_text(recipe_text(recipe, name_for(name)), encoding="utf-8")
    params = load_params(folder / "params.yaml")
    texts = {
        "README.md": README.format(name=name),
        "Snakefile": SNAKEFILE,
        LOCK: lock_text(params),
        "dvc.yaml": dvc_text(params, of_project=True),
        # The repository's own .gitignore, but the keys of the code are not ignored: here they belong to the
        # project.
        ".gitignore": ignored.replace("/.quench/\n", f"/.quench/*\n!/{FOLDER}/\n"),
    }
    for file, text in texts.items():
        (folder / file).write_text(text, encoding="utf-8")
    take_over(folder)
    return params


def _initialize(folder: Path) -> None:
    """Make `folder` a DVC project in a Git repository (one around it, otherwise its own) and stage its
    files.
    """
    if ask_git(folder.parent, "rev-parse", "--is-inside-work-tree") is None:
        _do(folder, "git", "init", "--quiet")
        _do(folder, sys.executable, "-P", "-m", "dvc", "init")
    else:
        _do(folder, sys.executable, "-P", "-m", "dvc", "init", "--subdir")
    (folder / ".dvc" / "config").write_text("[core]\n    analytics = false\n    autostage = false\n")
    shutil.copyfile(resource(".dvcignore"), folder / ".dvcignore")
    _do(folder, "git", "add", "--all", ".")


def _do(folder: Path, *command: str) -> None:
    """Run a step of the initialization. Raises `ToolError` if it fails."""
    reason = _fails(folder, *command)
    if reason:
        tool = "DVC" if "dvc" in command else "Git"
        raise ToolError("Q-COMMANDS-036", f"{tool} could not initialize the project: {reason}")


def _fails(folder: Path, *command: str) -> str:
    """Run a command in `folder`. Return "" if it succeeds, otherwise its last message."""
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
        )
    except FileNotFoundError:
        return f"{command[0]} is not on PATH"
    lines = (done.stderr + done.stdout).strip().splitlines() or [f"exit status {done.returncode}"]
    errors = [line for line in lines if line.startswith("ERROR")]
    return " ".join(errors or lines[-1:]) if done.returncode else ""


def _setup(base: Base) -> list[str]:
    """Return the step that makes the installation ready for a base, or [] if it is ready."""
    needs_demo = base.source == "package" and not find_spec(base.model.replace("-", "_"))
    if is_built(DEFAULT_HOME) and not needs_demo:
        return []
    if IS_CHECKOUT:
        return ["make setup   # in the checkout of Quench"]
    options = " --demo" if needs_demo else ""
    return [f"quench doctor setup{options}   # builds llama.cpp, once for all projects"]


def _next_steps(folder: Path, base: Base, recipe: str | None) -> list[str]:
    here = Path.cwd()
    demo = " (or `quench data demo`, which writes the demo's)" if recipe and recipe.startswith("demo") else ""
    kind = "chats" if recipe else "new chats, and the old ones if they shall stay learned,"
    return [
        f"cd {shlex.quote(str(folder.relative_to(here) if folder.is_relative_to(here) else folder))}",
        *_setup(base),
        'eval "$(quench doctor env)"   # puts dvc and snakemake on PATH, once per shell',
        f"put your {kind} into data/raw{demo}",
        "dvc add data/raw",
        "quench run",
    ]
