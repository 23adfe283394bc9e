"""Fetch a model from the Hugging Face hub at one commit. Downloads resume, each byte is checked, and nothing
that runs is fetched.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.config.sections.places import Hub
from pipeline.core.errors import ConfigError, DataError, MachineError, QuenchError
from pipeline.core.hub import Refused, fetch_file, hub_client, hub_errors, is_damaged, receive
from pipeline.core.publish import need_disk
from pipeline.models.experts.recognize import check_experts_of
from pipeline.stages.base.chats import OWN, ChatSettings, try_early
from pipeline.stages.base.file_choice import choose_files, choose_gguf, no_such_file
from pipeline.stages.base.hf_folder import check_config, read_object


def download(
    repo: str,
    commit: str,
    cache: Path,
    folder: Path,
    gguf: str | None = None,
    chats: ChatSettings = OWN,
) -> None:
    """Download the model `repo` at `commit` (40 hexadecimal digits), or only its file `gguf`, into `folder`.
    HF_ENDPOINT may name another hub.

    Files that have arrived stay in `cache`, a folder on the same disk, so that a broken download resumes
    where it stopped. Raises `DataError` (no such model or commit, no right to it, unsafe or damaged files),
    `ConfigError` (not a repository name), `MachineError` (the hub can't be reached, the disk is full).
    """
    with hub_errors(_error_of(repo, commit)):
        listing = _listing(repo, commit)
        listed = [file.rfilename for file in listing]
        where = f"{repo} at {commit}"
        names = choose_gguf(listed, gguf, where) if gguf else choose_files(listed, where)
        wanted = sorted(
            (file for file in listing if file.rfilename in names), key=lambda file: file.size or 0
        )
        cache.mkdir(parents=True, exist_ok=True)
        if not gguf:
            fetch_file(repo, commit, next(file for file in wanted if file.rfilename == "config.json"), cache)
            check_config(read_object(cache / "config.json"), repo)
        missing = sum(file.size or 0 for file in wanted) - sum(
            path.stat().st_size for path in cache.iterdir()
        )
        need_disk(cache, missing)
        print(f"base: fetching {len(wanted)} files of {repo}, {missing / 1e9:.2f} GB to go", flush=True)
        weights = [file for file in wanted if file.rfilename.endswith((".safetensors", ".gguf"))]
        settings = [file for file in wanted if file not in weights]
        for file in settings:
            fetch_file(repo, commit, file, cache)
    _publish(settings, repo, cache, folder)
    if not gguf:
        try_early(folder, missing, repo, chats)
    with hub_errors(_error_of(repo, commit)):
        for file in weights:
            fetch_file(repo, commit, file, cache)
    _publish(weights, repo, cache, folder)


def _publish(files: list[Any], repo: str, cache: Path, folder: Path) -> None:
    """Link the files of a listing from `cache` into `folder`. Raises `DataError` for a damaged one."""
    for file in files:
        arrived = cache / file.rfilename
        if is_damaged(arrived, file):
            arrived.unlink()
            raise DataError(
                "Q-BASE-022",
                f"{repo}: {file.rfilename} did not arrive as the hub lists it: run the same command again "
                "to fetch it again",
            )
        _link(arrived, folder / file.rfilename)


def fetch_one(place: Hub, sha256: str, part: Path) -> None:
    """Write the file of `place` to `part`, resuming at the byte where an earlier try stopped.

    A file that the hub lists with another hash is refused before the download. Raises the errors of
    `download`.
    """
    with hub_errors(_error_of(place.hub, place.revision)):
        listing = {file.rfilename: file for file in _listing(place.hub, place.revision)}
        if place.file not in listing:
            raise no_such_file(place.file, list(listing), f"{place.hub} at {place.revision}")
        file = listing[place.file]
        if file.lfs is not None and file.lfs.sha256 != sha256:
            raise DataError(
                "Q-BASE-030",
                f"{place} has {place.file} with sha256 {file.lfs.sha256}, and base.sha256 is {sha256}: "
                "correct the hash, or the commit",
            )
        need_disk(part.parent, (file.size or 0) - (part.stat().st_size if part.exists() else 0))
        receive(place.hub, place.revision, file, part)


def _listing(repo: str, commit: str) -> list[Any]:
    """Return the files of a repository as the hub lists them, with sizes and hashes. Raises `DataError` for
    experts that can't be trained. A GGUF's header names them too, but it comes with gigabytes of weights.
    """
    api, timeout = hub_client()
    info = api.model_info(repo, revision=commit, files_metadata=True, timeout=timeout)
    check_experts_of({"general.architecture": (info.gguf or {}).get("architecture")}, repo)
    return info.siblings or []


def _error_of(repo: str, commit: str) -> Callable[[Refused, str], QuenchError]:
    """Return what makes the error for the user of the hub's refusal of a model."""

    def error_of(refused: Refused, reason: str) -> QuenchError:
        match refused:
            case Refused.NAME:
                return ConfigError(
                    "Q-BASE-017",
                    f"base.model is {repo!r}, which is not the name of a hub repository: write OWNER/NAME",
                )
            case Refused.GATED:
                return DataError(
                    "Q-BASE-018",
                    f"{repo} is gated: accept its terms on its page on the hub and log in with "
                    "`hf auth login`",
                )
            case Refused.MISSING:
                return DataError(
                    "Q-BASE-019",
                    f"the hub shows no model {repo}: correct base.model, or log in with `hf auth login` if "
                    "the model is private",
                )
            case Refused.REVISION:
                return DataError(
                    "Q-BASE-020",
                    f"{repo} has no commit {commit}: copy base.revision from the model's list of commits on "
                    "the hub",
                )
        return MachineError(
            "Q-BASE-021",
            f"{repo} can't be fetched from the hub ({reason}): check the network and HF_ENDPOINT, then run "
            "the same command again; it resumes where it stopped",
        )

    return error_of


def _link(source: Path, target: Path) -> None:
    # Both names belong to Quench, and the cache is deleted when the model is published. A hard link saves a
    # second copy of 15 GB.
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
