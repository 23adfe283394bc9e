"""DVC reads `params.yaml` itself and knows no default, so what it reads names every key: what was left out is
written there before a run.

Without that, DVC stops at a key that `dvc.yaml` names, and misses a default that changed in a section that it
watches as one. What a project was run with stays in its file, so that a newer version's defaults change
nothing in it unseen.
"""

import os
import shutil
import sys
from pathlib import Path

from pipeline.config.params import Read
from pipeline.config.text import completed, left_out
from pipeline.core.errors import ConfigError
from pipeline.core.publish import publishing
from pipeline.core.strict_yaml import read_strict

MOST_NAMED = 8


def need_all_keys(root: Path, read: Read) -> None:
    """Write what `root`/params.yaml leaves out into it, if DVC records this project; `read` is what was read
    from there.

    Raises `ConfigError` in a stage that DVC itself runs: DVC has read the file already.
    """
    if not (root / ".dvc").is_dir() or not left_out(read.values):
        return
    if "DVC_STAGE" in os.environ:
        raise ConfigError(
            "Q-WORKFLOW-002",
            f"{root / 'params.yaml'} leaves out {words(read)}, and DVC, which knows no default, would record "
            "nothing of that: run `quench config show --write`, which puts them there, then run again",
        )
    write(root / "params.yaml", read)


def write(file: Path, read: Read) -> None:
    """Put what `file` leaves out into it, with comments, and say so; the rest of its text stays. Raises
    `ConfigError` if that can't be done.
    """
    if not left_out(read.values):
        return
    file = file.resolve()  # a link stays one
    text = completed(file.read_bytes().decode("utf-8"), read.values, read.lines, read.params)
    with publishing(file) as aside:
        aside.write_text(text, encoding="utf-8", newline="")
        shutil.copymode(file, aside)
        if not _is_the_same(aside, read):
            raise ConfigError(
                "Q-WORKFLOW-003",
                f"{file} leaves out {words(read)}, and they can't be put into this text: add them (`quench "
                "config show` shows their values)",
            )
    print(f"{file} left out {words(read)}: now there, with the defaults", file=sys.stderr)


def words(read: Read) -> str:
    """What the file leaves out, by name."""
    names = [".".join(place) for place in left_out(read.values)]
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _is_the_same(file: Path, read: Read) -> bool:
    """Whether `file` says what was in effect, and leaves nothing out."""
    try:
        values, _ = read_strict(file)
        return not left_out(values) and type(read.params).model_validate(values) == read.params
    except (ConfigError, ValueError):
        return False
