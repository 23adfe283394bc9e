"""DVC's cache: what in it is not what its name says is put aside, so that DVC sees it as missing."""

import hashlib
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from pipeline.workflow.hashes import Digests, Hashes, files_below

ASIDE = "rotten"  # folder in DVC's cache for objects that are not what their names say
RUN = re.compile(r"[0-9a-f]{64}")  # name of a run in DVC's cache


def drop_rotten(out: Any, hashes: Hashes) -> None:
    """Put aside what DVC's cache holds of `out` under the name of other bytes, so that DVC sees it as
    missing; says so.
    """
    if out.use_cache and out.hash_info:
        cache, md5 = Path(out.cache.path), out.hash_info.value
        put_aside(cache, hashes.md5s([place(cache, md5)]))
        put_aside(cache, hashes.md5s(place(cache, entry["md5"]) for entry in listing(cache, md5)))


def put_aside(cache: Path, digests: Digests) -> list[str]:
    """Put aside each object of DVC's cache (of `digests`, by path) that is not what its name says; the
    names.
    """
    rotten = {path: path.parent.name + path.name for path, digest in digests.items()}
    return [
        _move(path, cache, name)
        for path, name in rotten.items()
        if name.removesuffix(".dir") != digests[path]
    ]


def drop_dead_links(repo: Any) -> None:
    """Remove links of stages' outputs into DVC's cache (its cache type may be symlink) that lead to nothing
    since; DVC fails on them.

    Raw data without a file would look like an edit: its links stay, and are refused.
    """
    for out in (one for one in repo.index.outs if not one.stage.is_data_source):
        path = Path(out.fs_path)
        links = (
            [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
            if path.is_dir()
            else [path]
        )
        for link in links if out.use_cache else ():
            if link.is_symlink() and not link.exists() and link.readlink().is_relative_to(out.cache.path):
                link.unlink()


def put_runs_aside(repo: Any) -> list[str]:
    """The same of what DVC's cache remembers of runs (`dvc repro` goes by that)."""
    from dvc.exceptions import DvcException
    from dvc.utils import dict_sha256
    from dvc.utils.serialize import load_yaml

    def is_good(path: Path) -> bool:
        try:
            return bool(dict_sha256(load_yaml(path), exclude=["size", "nfiles"]) == path.name)
        except (DvcException, OSError, ValueError, TypeError, AttributeError):
            return False

    runs = [path for path in files_below(Path(repo.stage_cache.cache_dir)) if RUN.fullmatch(path.name)]
    return [_move(path, Path(repo.cache.local.path), path.name) for path in runs if not is_good(path)]


def _move(path: Path, cache: Path, name: str) -> str:
    target = cache.parents[1] / ASIDE / name
    target.parent.mkdir(exist_ok=True)
    path.replace(target)
    print(f"{name} in DVC's cache is damaged: it is not used, and now in {target.parent}", file=sys.stderr)
    return name


def place(cache: Path, md5: str) -> Path:
    """Where DVC's cache keeps an object."""
    return cache / md5[:2] / md5[2:]


def listing(cache: Path, md5: str) -> list[dict[str, str]]:
    """The files of a folder that is in DVC's cache; none if their list is not there, or is not what its name
    says: of a folder that is not cached, DVC keeps a list all the same, which nothing puts aside.
    """
    path = place(cache, md5)
    content = path.read_bytes() if md5.endswith(".dir") and path.is_file() else b""
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != md5.removesuffix(".dir"):
        return []
    entries: list[dict[str, str]] = json.loads(content)
    return entries
