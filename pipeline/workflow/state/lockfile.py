"""The stages by dvc.yaml and dvc.lock, and the files and folders that differ from these records.

Nothing here starts DVC. Hashes are our own (`pipeline.workflow.state.hashes`), which also detect bytes that
changed without a new date.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from pipeline.config.params import Params, with_defaults
from pipeline.config.sections.shipping import Acceptance
from pipeline.core.errors import DataError, ToolError
from pipeline.core.hashing import NO_PART, json_hash
from pipeline.core.locks import absent
from pipeline.core.text import shortened
from pipeline.core.yaml_readers import UNREADABLE, read_fast
from pipeline.workflow.cluster_jobs import receipts
from pipeline.workflow.keys.code_keys import CODE, SETTINGS
from pipeline.workflow.keys.stamps import files_below
from pipeline.workflow.stages import Values, items_of, users
from pipeline.workflow.state.dvc_project import need_merged, share_record
from pipeline.workflow.state.hashes import Digests, Hashes

RAW = "data/raw"
DIGITS = 12  # of the hash that names a job's outputs


class Entry(NamedTuple):
    """What a stage is, by dvc.yaml: paths are relative to the project's folder."""

    deps: list[str]
    outs: list[str]
    command: str = ""
    params: Mapping[str, list[str]] = {}  # keys by the file of settings that has them


def recorded_outputs(root: Path) -> dict[Path, str]:
    """Return {path: md5, of a folder "….dir"} of every recorded output of a stage in `dvc.yaml`.

    Records are in `dvc.lock`, or in the receipt of a job that is still to be recorded. Keys of code and the
    settings are left out. It is empty if `root` is not a DVC project that has run.
    """
    stages = stages_of(root)
    written = {
        name: {out["path"]: out["md5"] for out in entry.get("outs", []) if "md5" in out}
        for name, entry in recorded_stages(root).items()
    } | {receipt.stage: receipt.outputs for receipt in receipts(root)}
    return {
        root / path: md5
        for name, outputs in written.items()
        for path, md5 in outputs.items()
        if name in stages and name not in (CODE, SETTINGS) and path in stages[name].outs
    }


def recorded_stages(root: Path, patience: float | None = None) -> dict[str, Any]:
    """Return the entries of `dvc.lock` by stage.

    With `patience` it waits no longer than these seconds for a stage that is being recorded. Raises
    `DataError` if the file is damaged: by a kill, or by a merge with conflict markers.
    """
    lock = root / "dvc.lock"
    if not (root / ".dvc").is_dir() or not lock.is_file():
        return {}
    with share_record(root, patience):  # DVC writes dvc.lock in place
        try:
            content = read_fast(lock)
            stages = {} if content is None else content.get("stages", {})
            if all(
                isinstance(out["path"], str) for entry in stages.values() for out in entry.get("outs", [])
            ):
                return dict(stages)
        except (yaml.YAMLError, UnicodeDecodeError, AttributeError, KeyError, TypeError, RecursionError):
            need_merged(lock)
    raise DataError(
        "Q-WORKFLOW-018",
        f"{lock} is damaged, so nothing can be compared with it: `git checkout dvc.lock`, or `snakemake`, "
        "which sets it aside",
    )


def in_force(root: Path, params: Params) -> dict[str, Acceptance]:
    """Return {job: a change that was declared to be without effect} of the outputs that are recorded now.

    A job that has run since and wrote others is left out (`pipeline.workflow.accepted`).
    """
    records = recorded_stages(root)
    return {
        job: accepted
        for job, accepted in params.report.accepted.items()
        if job in records and accepted.outputs == outputs_hash(records[job])
    }


def outputs_hash(record: Mapping[str, Any]) -> str:
    """Return a hash of what a job wrote, by its record in dvc.lock."""
    return json_hash({out["path"]: out.get("md5") for out in record.get("outs", [])})[:DIGITS]


def stages_of(root: Path) -> dict[str, Entry]:
    """Return the stages of `dvc.yaml` filled with `params.yaml`'s values, one for each level or model.

    Those that can't be read are left out (the file may also contain a user's own), because DVC reports what
    is wrong with them.
    """
    with suppress(OSError, ToolError, *UNREADABLE, KeyError, TypeError, AttributeError):
        values = Values(with_defaults(read_fast(root / "params.yaml")))
        return jobs_of(graph_stages(root / "dvc.yaml"), values)
    return {}


def all_stages(root: Path) -> dict[str, Entry] | None:
    """Return what `stages_of` does; None if any stage can't be read."""
    jobs: dict[str, Entry] = {}
    try:
        values = Values(with_defaults(read_fast(root / "params.yaml")))
        for name, stage in graph_stages(root / "dvc.yaml").items():
            jobs |= dict(_entries(name, stage, values))
    except (OSError, ToolError, *UNREADABLE, KeyError, TypeError, AttributeError, StopIteration):
        return None
    return jobs


def jobs_of(stages: Mapping[str, Any], values: Values) -> dict[str, Entry]:
    """Return the stages of a dvc.yaml filled with `values`, one for each level or model.

    Those that can't be read are left out.
    """
    jobs: dict[str, Entry] = {}
    for name, stage in stages.items():
        with suppress(KeyError, TypeError, AttributeError, StopIteration):
            jobs |= dict(_entries(name, stage, values))
    return jobs


def graph_stages(file: Path) -> dict[str, Any]:
    """Return the stages in a dvc.yaml as they are written there.

    Raises `ToolError` if it is not such a file.
    """
    try:
        stages = (read_fast(file) or {}).get("stages") or {} if file.is_file() else {}
        return {name: dict(stage) for name, stage in stages.items()}
    except (*UNREADABLE, AttributeError, TypeError) as error:
        why = shortened(error)
        raise ToolError(
            "Q-WORKFLOW-016", f"{file} can't be read ({why}): `quench config graph` writes it anew"
        ) from error


def inputs_of(stage: str, root: Path) -> list[str]:
    """Return the paths that `stage` reads, by `dvc.yaml`; empty if it doesn't contain the stage."""
    return stages_of(root).get(stage, Entry([], [])).deps


def need_inputs(stage: str, root: Path) -> None:
    """Raise `DataError` if an input of `stage` is missing, with the stage that makes it.

    It comes before the work, which DVC could not record without that input. The stage that reads data/raw
    reports missing data itself. Keys of code and settings are made by the command that runs the stage, or by
    Snakemake before its jobs.
    """
    if not (root / ".dvc").is_dir():
        return
    stages = stages_of(root)
    for name in stages.get(stage, Entry([], [])).deps:
        if (root / name).exists():
            continue
        makers = [
            other
            for other, entry in stages.items()
            if other not in (CODE, SETTINGS) and any(overlap(Path(name), Path(out)) for out in entry.outs)
        ]
        if makers:
            raise absent(root / name, root, makers[0])
        if name in users() and name != RAW:
            raise DataError("Q-CORE-001", f"{root / name} is missing: make this folder, which may stay empty")


def _entries(name: str, stage: dict[str, Any], values: Values) -> Iterator[tuple[str, Entry]]:
    body = stage.get("do", stage)
    for ending, item in items_of(stage.get("foreach") or stage.get("matrix"), values):
        fill = values.of(item).fill
        paths = {
            kind: [fill(_path(entry)) for entry in body.get(kind, [])]
            for kind in ("deps", "outs", "metrics", "plots")
        }
        outs = [*paths["outs"], *paths["metrics"], *paths["plots"]]
        entry = Entry(paths["deps"], outs, fill(str(body.get("cmd", ""))), _keys_by_file(body))
        yield f"{name}@{ending}" if ending else name, entry


def _path(entry: str | dict[str, Any]) -> str:
    return entry if isinstance(entry, str) else next(iter(entry))


def entry_of(stage: str, root: Path) -> dict[str, Any] | None:
    """Return the stage's entry in `dvc.yaml`; None if DVC does not know it."""
    if not (root / ".dvc").is_dir():
        return None
    name, _, item = stage.partition("@")
    entry: dict[str, Any] | None = graph_stages(root / "dvc.yaml").get(name)
    return entry.get("do", entry) if entry and item else entry


def params_of(entry: Mapping[str, Any]) -> list[str]:
    """Return the keys that a stage of `dvc.yaml` depends on, in any file of settings."""
    return [key for keys in _keys_by_file(entry).values() for key in keys]


def _keys_by_file(entry: Mapping[str, Any]) -> dict[str, list[str]]:
    keys: dict[str, list[str]] = {}
    for param in entry.get("params", []):
        named = {"params.yaml": [param]} if isinstance(param, str) else param
        for file, more in named.items():
            keys.setdefault(file, []).extend(more or [])
    return keys


def changed_paths(records: Mapping[Path, str], hashes: Hashes, *, again: bool = False) -> list[Path]:
    """Return the files and folders of `records` ({path: md5}) that have other bytes.

    Their hashes are added to those in `hashes` for DVC's state, even if another process read them.
    """
    digests = hashes.md5s([file for path in records for file in files_below(path)], again=again)
    changed = [path for path, md5 in records.items() if path.exists() and digest_of(path, digests) != md5]
    hashes.unreported |= {
        file: digests[file] for path in changed for file in files_below(path) if file in digests
    }
    return changed


def md5s_of(paths: Iterable[str], root: Path, hashes: Hashes) -> dict[str, str]:
    """Return {path: md5} of those files and folders, relative to `root`, that exist."""
    present = [path for path in paths if (root / path).exists()]
    digests = hashes.md5s([file for path in present for file in files_below(root / path)])
    return {path: digest for path in present if (digest := digest_of(root / path, digests))}


def digest_of(path: Path, digests: Digests) -> str | None:
    """Return the md5 as DVC records it, for a folder that of a list of its files; None if it is unknown.

    Files that `.dvcignore` names count here. DVC itself decides in that case.
    """
    if not path.is_dir():
        return digests.get(path)
    return folder_md5(path, [file for file in files_below(path) if file.name not in NO_PART], digests)


def folder_md5(folder: Path, files: Iterable[Path], digests: Digests) -> str:
    """Return the md5 that DVC records of a folder with these files."""
    below = {file.relative_to(folder).as_posix(): digests[file] for file in files if file in digests}
    text = json.dumps([{"md5": below[name], "relpath": name} for name in sorted(below)])
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest() + ".dir"


def overlap(path: Path, other: Path) -> bool:
    """Return True if one of two paths is, or is inside, the other."""
    return path.is_relative_to(other) or other.is_relative_to(path)
