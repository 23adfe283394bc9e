"""The settings in effect as DVC records them: `params.lock.yaml`, every key with its value, written from
params.yaml and the defaults by whatever runs a stage, and by a stage of dvc.yaml for `dvc repro`.

DVC knows no default, so its stages name the keys of that file. Some keys (`${convert.name}`, the list of
levels) define stages and paths in dvc.yaml. DVC reads these from params.yaml itself before it runs any stage,
so they are added there if they are missing.
"""

import os
import re
import shutil
import sys
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

from pipeline.config.params import Params, Read, load_params
from pipeline.config.params_text import (
    INDENT,
    as_yaml,
    change,
    completed,
    full_text,
    left_out,
    short_text,
    value_at,
)
from pipeline.config.sections.values import Key, group_of, keys_of
from pipeline.core.errors import ConfigError
from pipeline.core.publish import publishing, unwritable
from pipeline.core.yaml_readers import UNREADABLE, read_fast, read_strict
from pipeline.workflow.keys.code_keys import LOCK, SETTINGS
from pipeline.workflow.keys.imports import write_whole
from pipeline.workflow.stages import DERIVED, Values, stages_in, values_of
from pipeline.workflow.state.lockfile import entry_of, params_of

MOST_NAMED = 8
HEADER = [
    "Every setting in effect: params.yaml and the defaults. DVC compares and records these values.",
    "Written again before each run: edit params.yaml instead.",
]
SHOWN = {("base", "model")}  # always in a new params.yaml


def need_settings(root: Path, read: Read, stage: str = "") -> None:
    """Write what DVC needs to know of the settings of `root`, if DVC records this project.

    That is params.lock.yaml, and in params.yaml the keys that dvc.yaml itself reads there. `read` is the
    content of params.yaml. Raises `ConfigError` if DVC itself runs `stage` and has read other values of its
    settings, and if the form of params.yaml allows no insertion.
    """
    if not (root / ".dvc").is_dir():
        return
    if "DVC_STAGE" not in os.environ:
        complete(root / "params.yaml", read, read_by_dvc(read.params))
        write_lock(root, read.params)
        return
    values = values_of(read.params)
    recorded = Values(lock_values(root))
    keys = params_of(entry_of(stage, root) or {})
    if _differs(root, read.params) and any(values.at(key) != recorded.at(key) for key in keys):
        raise ConfigError(
            "Q-WORKFLOW-002",
            f"{root / LOCK} doesn't hold the settings of params.yaml, and DVC would record it: run `dvc "
            f"repro {SETTINGS}`, which writes it, then run again",
        )


def write_settings(root: Path) -> None:
    """Write params.lock.yaml and print what changed: a stage of dvc.yaml. Raises what `load_params` does."""
    changed = refresh_lock(root)
    print("\n".join(changed) if changed else f"{LOCK} is as it was")


def refresh_lock(root: Path) -> list[str]:
    """Write params.lock.yaml from params.yaml.

    Return the changes like `write_lock`; raises what `load_params` does.
    """
    return write_lock(root, load_params(root / "params.yaml"))


def write_lock(root: Path, params: Params) -> list[str]:
    """Write `params` into `root`/params.lock.yaml, if dvc.yaml has the stage that writes it.

    Return a line on each setting that changed: "train.r: 16 → 8". Raises `MachineError` if it can't be
    written.
    """
    file = root / LOCK
    if not _differs(root, params):
        return []
    before = lock_values(root)
    try:
        write_whole(file, lock_text(params))  # Stages that start at once may both do so.
    except OSError as error:
        raise unwritable(error, file) from error
    changed = list(differences(before, params.model_dump(mode="json"))) if before else []
    return changed or [f"{LOCK} is written"]


def lock_text(params: Params) -> str:
    """Return the text of params.lock.yaml for these settings, with the derived values."""
    derived = [f"{INDENT}{name}: {as_yaml(value)}" for name, value in params.derived.items()]
    return full_text(params, HEADER) + "\n".join([f"{DERIVED}:", *derived, ""])


def lock_values(root: Path) -> dict[str, Any]:
    """Return the settings in `root`/params.lock.yaml; {} if it is missing or damaged."""
    try:
        values = read_fast(root / LOCK)
    except (OSError, *UNREADABLE):
        return {}
    return values if isinstance(values, dict) else {}


def differences(before: Any, after: Any) -> Iterator[str]:
    """Yield a line on each setting with another value, or that only `before` has: "train.r: 16 → 8".

    Values derived from several settings are compared if `after` has them.
    """
    for place, field in keys_of(Params):
        old, new = value_at(before, place), value_at(after, place)
        if not group_of(field):
            if old != new:
                yield change(place, before, after)
        elif isinstance(old, dict):
            yield from (f"{'.'.join((*place, name))}: gone" for name in old if name not in new)
    for place in ((DERIVED, name) for name in after.get(DERIVED, {})):
        if value_at(before, place) != value_at(after, place):
            yield change(place, before, after)


def _differs(root: Path, params: Params) -> bool:
    """Return True if params.lock.yaml should exist and differs from the text of `params`.

    Return False if dvc.yaml can't be read, because DVC reports that.
    """
    try:
        if entry_of(SETTINGS, root) is None:
            return False
    except (*UNREADABLE, AttributeError, TypeError):
        return False
    try:
        return (root / LOCK).read_text(encoding="utf-8") != lock_text(params)
    except (OSError, UnicodeDecodeError):
        return True


def read_by_dvc(params: Params) -> set[Key]:
    """Return the keys that the dvc.yaml of these settings reads in params.yaml.

    These are those in paths, and lists of jobs.
    """
    names = set[str]()
    for stage in stages_in(params).values():
        names |= set(re.findall(r"\$\{([\w.]+)\}", stage.model_dump_json()))
        if isinstance(stage.each, str):
            names.add(stage.each)
        elif stage.each:
            names |= set(stage.each.values())
    return {tuple(name.split(".")) for name in names if not re.match(r"item\b", name)}


def starting_text(params: Params, header: list[str]) -> str:
    """Return a new params.yaml: what differs from the defaults, what dvc.yaml reads, and the base's origin.

    `header` is its first comment.
    """
    values = params.model_dump(mode="json")
    defaults = Params().model_dump(mode="json")
    needed = read_by_dvc(params) | SHOWN
    places = {
        place
        for place, field in keys_of(Params)
        if not group_of(field) and (place in needed or value_at(values, place) != value_at(defaults, place))
    }
    return short_text(params, header, places)


def complete(file: Path, read: Read, needed: Set[Key] | None = None) -> None:
    """Add what `file` leaves out (of the keys `needed`, if they are given), with comments, and report it.

    The rest of its text stays. Raises `ConfigError` if that can't be done.
    """
    missing = left_out(read.values, needed)
    if not missing:
        return
    file = file.resolve()  # A link stays a link.
    text = completed(file.read_bytes().decode("utf-8"), read, needed)
    names = [".".join(place) for place in missing]
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    shown = ", ".join(names[:MOST_NAMED]) + more
    with publishing(file) as aside:
        aside.write_text(text, encoding="utf-8", newline="")
        shutil.copymode(file, aside)
        if not _is_the_same(aside, read, needed):
            raise ConfigError(
                "Q-WORKFLOW-003",
                f"{file} leaves out {shown}, and they can't be put into this text: add them (`quench config "
                "show` shows their values)",
            )
    print(f"{file} left out {shown}: now there, with the defaults", file=sys.stderr)


def _is_the_same(file: Path, read: Read, needed: Set[Key] | None) -> bool:
    """Return True if `file` contains the settings in effect, and no needed key is missing."""
    try:
        values, _ = read_strict(file)
        return not left_out(values, needed) and type(read.params).model_validate(values) == read.params
    except (ConfigError, ValueError):
        return False
