"""Name the files of functions in the settings (`python:FILE.py:FUNCTION`) that a clone would not have."""

from collections.abc import Iterator
from pathlib import Path

from pipeline.config.params import Params
from pipeline.config.scorers import NAME
from pipeline.core.errors import ToolError
from pipeline.core.git import ask_git


def untracked_sentences(params: Params, root: Path) -> list[str]:
    """Return a sentence for each file of a function that a clone of the project below `root` would not have.

    There is none outside of a Git repository, or if Git fails: then nothing is known.
    """
    named = set(_files(params))
    files = sorted(file for file in named if (root / file).is_file() and not _in_dvc(root / file))
    if not files:
        return []
    try:
        listed = ask_git(root, "ls-files", "-z", "--", *files)
    except ToolError:
        return []
    if listed is None:
        return []
    tracked = listed.decode("utf-8", "replace").split("\0")
    return [
        f"{file} is code that the settings name, and Git does not track it, so a clone lacks it: "
        f"`git add -f {file}`"
        for file in files
        if file not in tracked
    ]


def _files(params: Params) -> Iterator[str]:
    """Yield the files of the functions that settings name, as paths below the project."""
    named = [("data/guard", name) for name in params.curate.transform.values()]
    scorers = (*params.evaluate.scorers, *params.train.grpo.rewards)
    named += [("data/evaluation", name) for name in scorers if name.startswith("python:")]
    for folder, name in named:
        match = NAME.fullmatch(name.removeprefix("python:"))
        if match:
            yield f"{folder}/{match['file']}"


def _in_dvc(file: Path) -> bool:
    """Return True if DVC tracks the file, or the folder that it is in."""
    return any(place.with_name(f"{place.name}.dvc").is_file() for place in (file, file.parent))
