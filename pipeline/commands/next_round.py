"""What a project begins with that goes on from another one (`quench new NEXT --from PROJECT`): the other's
settings, with what it trained as the start, its own files beside the data, and its test rows, which are kept
out of training from now on.
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


def need_trained(project: Path) -> None:
    """Raise `ConfigError` if `project` is no project, or has not trained what could be gone on from."""
    lacking = [name for name in ("params.yaml", "models/adapter", TEST) if not (project / name).exists()]
    if not lacking and not trained_file(project / "models/adapter").is_file():
        lacking = ["models/adapter"]
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
    guarded = f"{project.resolve().name}-test.jsonl"
    shutil.copyfile(project / TEST, folder / GUARD / guarded)
    file = folder / "params.yaml"
    shutil.copyfile(project / "params.yaml", file)
    params = load_params(file)
    given: dict[Key, Any] = {
        ("train", "start_from"): os.path.relpath(project.resolve(), place.resolve()),
        ("convert", "name"): name_for(place.name),
        ("curate", "decontaminate"): list(dict.fromkeys([*params.curate.decontaminate, guarded])),
    }
    local = project / expanded(params.base.model, "base.model")
    if params.base.source in ("path", "gguf") and local.exists():
        given["base", "model"] = str(local.resolve())
    override(file, given)
