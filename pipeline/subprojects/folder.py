"""A sub-project: a folder with a `params.yaml` of its own and links to what it shares with the project."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.config.params import Params
from pipeline.core.places import expanded
from pipeline.core.publish import publishing, remove

Settings = dict[str, dict[str, Any]]  # {section: {key: value}}


def open_subproject(folder: Path, values: Settings, links: Mapping[str, Path]) -> Path:
    """The sub-project in `folder` (absolute), made or set to the settings `values` and `links` ({path in it:
    what it leads to}). What a killed job left in it stays.
    """
    for place, target in links.items():
        link = folder / place
        link.parent.mkdir(parents=True, exist_ok=True)
        remove(link)  # it may lead to where the project was before it was copied
        link.symlink_to(target.resolve())
    with publishing(folder / "params.yaml") as aside:
        aside.write_text(json.dumps(values, indent=2, ensure_ascii=False), encoding="utf-8")  # JSON is YAML
    return folder


def changed_params(params: Params, *changes: Settings) -> Settings:
    """`params` as a dict for YAML under `changes`, the last of them on top; checked. llama.cpp's folder is
    absolute in it.
    """
    home = params.machine.llama_cpp
    values: Settings = params.model_dump(mode="json")
    values["machine"]["llama_cpp"] = str(expanded(home, "machine.llama_cpp").resolve()) if home else None
    for change in changes:
        for section, changed in change.items():
            values[section] |= changed
    Params.model_validate(values)
    return values


def size_of(path: Path) -> int:
    """Bytes of a file; of a folder its weights (safetensors), or all it holds if it has none."""
    if path.is_file():
        return path.stat().st_size
    files = list(path.glob("*.safetensors")) or [one for one in path.rglob("*") if one.is_file()]
    return sum(one.stat().st_size for one in files)
