"""A project as DVC would have recorded it, made in milliseconds: every output is a line of text."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from graph_settings import settings_of

from pipeline.config.params import Params
from pipeline.workflow.dvc_yaml import dvc_text
from pipeline.workflow.keys.code_keys import FOLDER
from pipeline.workflow.keys.stamps import files_below
from pipeline.workflow.overview.causes import Now
from pipeline.workflow.overview.contents import Contents
from pipeline.workflow.overview.states import uncached
from pipeline.workflow.stages import table, users, values_of
from pipeline.workflow.state.dvc_project import place
from pipeline.workflow.state.lockfile import folder_md5, jobs_of


def recorded_project(root: Path, params: Params | None = None) -> Path:
    """A finished project below `root`, in which every stage is up to date."""
    params = params or settings_of("merged")
    root.mkdir(parents=True, exist_ok=True)
    (root / ".dvc").mkdir()
    (root / "params.yaml").write_text(yaml.safe_dump(params.model_dump(mode="json")))
    text = dvc_text(params)
    (root / "dvc.yaml").write_text(text)
    for folder in (*users(), "data/augmented", "reports/compare", "reports/distill"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "data/raw/chats.jsonl").write_text("a chat\n")
    values = values_of(params)
    stages = yaml.safe_load(text)["stages"]
    entries = {
        name: entry for name, entry in jobs_of(stages, values).items() if name not in ("code", "settings")
    }
    folders = {
        path.rstrip("/") for stage in table().stages.values() for path in stage.written if path[-1] == "/"
    }
    for entry in entries.values():
        for out in entry.outs:
            file = root / out / "file.txt" if out in folders else root / out
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{out}\n")
    now = Now(root, values, Contents(root, []))
    lock = {
        name: {
            "cmd": entry.command,
            "deps": [_record(root, dep, now) for dep in entry.deps],
            "params": {
                file: {key: now.setting(file, key) for key in keys} for file, keys in entry.params.items()
            },
            "outs": [_record(root, out, now) for out in entry.outs],
        }
        for name, entry in entries.items()
    }
    (root / "dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": lock}, sort_keys=False))
    kept = {out for entry in entries.values() for out in entry.outs} - uncached(stages, values)
    for path in (*kept, "data/raw"):
        cache(root, root / path)
    return root


def cache(root: Path, path: Path) -> None:
    """Put a file, or a folder and its files, into the cache of DVC."""
    for file in files_below(path):
        put(root, file.read_bytes(), md5_of(file))
    if path.is_dir():
        listed = [
            {"md5": md5_of(file), "relpath": file.relative_to(path).as_posix()} for file in _sorted(path)
        ]
        put(root, json.dumps(listed).encode(), _md5_below(path))


def put(root: Path, content: bytes, md5: str = "") -> str:
    """Put bytes into the cache of DVC; their name."""
    md5 = md5 or hashlib.md5(content, usedforsecurity=False).hexdigest()
    file = place(root / ".dvc/cache/files/md5", md5)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return md5


def md5_of(file: Path) -> str:
    """The md5 of a file."""
    return hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest()


def change_lock(root: Path, job: str) -> "Iterator[dict[str, Any]]":
    """The record of a job, to be changed."""
    lock = yaml.safe_load((root / "dvc.lock").read_text())
    yield lock["stages"][job]
    (root / "dvc.lock").write_text(yaml.safe_dump(lock, sort_keys=False))


def _record(root: Path, path: str, now: Now) -> dict[str, str]:
    if path.startswith(f"{FOLDER}/"):
        text = now.code(path)
        assert text
        return {"path": path, "md5": put(root, text.encode())}
    file = root / path
    return {"path": path, "md5": _md5_below(file) if file.is_dir() else md5_of(file)}


def _md5_below(folder: Path) -> str:
    return folder_md5(folder, _sorted(folder), {file: md5_of(file) for file in _sorted(folder)})


def _sorted(folder: Path) -> list[Path]:
    return sorted(files_below(folder))
