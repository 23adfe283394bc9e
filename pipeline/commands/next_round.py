"""Begin a project that goes on from another one (`quench new NEXT --from PROJECT`): with the settings of that
one, what it trained as the start, its own files beside the data, and its test rows, with which no row of
training may share 13 words from now on.
"""

import os
import shutil
from pathlib import Path
from typing import Any

from pipeline.commands.recipes import name_for
from pipeline.config.overrides import override
from pipeline.config.params import load_params
from pipeline.config.sections.values import Key
from pipeline.config.tuners import trained_file
from pipeline.core.errors import ConfigError
from pipeline.core.places import expanded

TEST = "data/final/test.jsonl"
GUARD = "data/guard"
OWN_FILES = (GUARD, "data/evaluation")  # guarded texts, questions, and functions of the user's


def need_no_recipe(recipe: str | None) -> None:
    """Raise `ConfigError` if a recipe is named: the settings are those of the other project."""
    if recipe:
        raise ConfigError(
            "Q-COMMANDS-042",
            f"--recipe {recipe} and --from were given, and the settings come from one of them: leave "
            "the other out",
        )


def need_trained(project: Path) -> None:
    """Raise `ConfigError` if `project` is no project, or has not trained what could be gone on from."""
    files = {
        "params.yaml": project / "params.yaml",
        "models/adapter": trained_file(project / "models/adapter"),
        TEST: project / TEST,
    }
    lacking = [name for name, file in files.items() if not file.is_file()]
    if lacking:
        raise ConfigError(
            "Q-COMMANDS-041",
            f"--from {project}: {lacking[0]} is not there, so there is nothing to go on from: name a "
            "project's folder, and run `quench run train` (or `dvc pull`) in it first",
        )


def begin(folder: Path, place: Path, project: Path) -> None:
    """Write params.yaml and the files of the round after `project` into `folder`, a project that will be at
    `place`.
    """
    for own in OWN_FILES:
        if (project / own).is_dir():
            shutil.copytree(project / own, folder / own, dirs_exist_ok=True)
    guarded = _new_name(folder / GUARD, project.resolve().name.lstrip("."))
    shutil.copyfile(project / TEST, folder / GUARD / guarded)
    file = folder / "params.yaml"
    shutil.copyfile(project / "params.yaml", file)
    params = load_params(project / "params.yaml")
    given: dict[Key, Any] = {
        ("train", "start_from"): os.path.relpath(project.resolve(), place.resolve()),
        ("convert", "name"): name_for(place.name),
        ("curate", "decontaminate"): list(dict.fromkeys([*params.curate.decontaminate, guarded])),
    }
    local = project / expanded(params.base.model, "base.model")
    if params.base.source in ("path", "gguf") and local.exists():
        given["base", "model"] = str(local.resolve())
    if params.compare.seeds:
        given["compare", "seeds"] = []
        print(
            "compare.seeds is [] in the new project, for the strategies that it compares train from nothing"
        )
    override(file, given)


def _new_name(folder: Path, project: str) -> str:
    """Return the name of a new file in `folder` for the test rows of a project of this name."""
    names = (f"{project}{number}-test.jsonl" for number in ("", *(f"-{count}" for count in range(2, 1000))))
    return next(name for name in names if not (folder / name).exists())
