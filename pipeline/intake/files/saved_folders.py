"""Folders that `Dataset.save_to_disk` and `DatasetDict.save_to_disk` of `datasets` write: Arrow files, and
JSON files that describe them and contain no rows.

`state.json` lists the Arrow files of the data set. Other Arrow files next to it are cached results of `map`
and `filter`.
"""

from pathlib import Path
from typing import Any

from pipeline.core.jsonl import BadLine, object_in
from pipeline.core.sources import SUFFIX, read_source

STATE = "state.json"
DESCRIPTIONS = {  # file → the key that distinguishes it from rows
    STATE: "_data_files",
    "dataset_info.json": "features",
    "dataset_dict.json": "splits",
}
LARGEST = 16 << 20  # bytes of such a file


def is_description(path: Path) -> bool:
    """Return True for a JSON file that describes a data set, also for the record of its origin."""
    if path.name.endswith(SUFFIX):
        return read_source(path) is not None
    return path.name in DESCRIPTIONS and DESCRIPTIONS[path.name] in _read(path)


def missing_files(path: Path) -> list[str]:
    """Return the Arrow files that a description lists and its folder does not have."""
    if path.name != STATE:
        return []
    return [name for name in _names(_read(path)["_data_files"]) if not (path.parent / name).is_file()]


def refusal_beside_state(path: Path) -> BadLine | None:
    """Return why the state.json next to an Arrow file keeps it from being read; None if it is read."""
    state = _read(path.parent / STATE)
    if "_data_files" not in state:
        return None
    if _names(state.get("_indices_data_files")):
        return BadLine(
            "unknown_container",
            "state.json selects rows of this file by an index, as old versions of datasets did: load the "
            "folder and save it with a current one",
        )
    if path.name not in _names(state["_data_files"]):
        return BadLine(
            "unknown_container", "state.json beside it does not list this file: it is a cache of datasets"
        )
    return None


def _names(listed: Any) -> list[str]:
    files = listed if isinstance(listed, list) else []
    names = [file.get("filename") for file in files if isinstance(file, dict)]
    return [name for name in names if isinstance(name, str)]


def _read(path: Path) -> dict[str, Any]:
    """Return a description's object; an empty one if it is missing or anything else."""
    try:
        if path.stat().st_size > LARGEST:
            return {}
        return object_in(path.read_bytes()) or {}
    except OSError:
        return {}
