"""Fetch a model from the Hugging Face hub at one commit. Downloads resume, each byte is checked, and nothing
that runs is fetched.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pipeline.config.sections.places import Hub
from pipeline.core.errors import ConfigError, DataError, MachineError, QuenchError
from pipeline.core.hashing import file_hash
from pipeline.core.publish import need_disk
from pipeline.models.experts.recognize import check_experts_of
from pipeline.stages.base.chats import OWN, ChatSettings, try_early
from pipeline.stages.base.file_choice import choose_files, choose_gguf, no_such_file
from pipeline.stages.base.hf_folder import check_config, read_object

CONNECT_SECONDS, ANSWER_SECONDS = 5, 10  # seconds; without a network the next place is tried soon


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
    with _hub_errors(repo, commit):
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
    with _hub_errors(repo, commit):
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
    with _hub_errors(place.hub, place.revision):
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
        _receive(place.hub, place.revision, file, part)


def _listing(repo: str, commit: str) -> list[Any]:
    """Return the files of a repository as the hub lists them, with sizes and hashes. Raises `DataError` for
    experts that can't be trained. A GGUF's header names them too, but it comes with gigabytes of weights.
    """
    api, timeout = hub_client()
    info = api.model_info(repo, revision=commit, files_metadata=True, timeout=timeout)
    check_experts_of({"general.architecture": (info.gguf or {}).get("architecture")}, repo)
    return info.siblings or []


def hub_client() -> tuple[Any, Any]:
    """Return the hub's client and the timeout. Progress is shown only on a terminal."""
    import httpx2  # huggingface_hub's HTTP client
    from huggingface_hub import HfApi
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    return HfApi(), httpx2.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS)


@contextmanager
def _hub_errors(repo: str, commit: str) -> Iterator[None]:
    """Turn the errors of the hub's client into errors with a sentence for the user."""
    import httpx2
    from huggingface_hub import errors

    try:
        yield
    except (errors.HFValidationError, OSError, httpx2.HTTPError) as error:
        if isinstance(error, OSError) and error.errno:
            raise  # an error of the disk, not of the network
        raise _refusal(error, repo, commit) from error


def _refusal(error: Exception, repo: str, commit: str) -> QuenchError:
    """Return the error for the user that an error of the hub's client means."""
    from huggingface_hub import errors

    reason = ": ".join([type(error).__name__, *str(error.__cause__ or error).strip().splitlines()[:1]])
    refusals: dict[type[Exception], QuenchError] = {  # subclasses before their base classes
        errors.HFValidationError: ConfigError(
            "Q-BASE-017",
            f"base.model is {repo!r}, which is not the name of a hub repository: write OWNER/NAME",
        ),
        errors.GatedRepoError: DataError(
            "Q-BASE-018",
            f"{repo} is gated: accept its terms on its page on the hub and log in with `hf auth login`",
        ),
        errors.RepositoryNotFoundError: DataError(
            "Q-BASE-019",
            f"the hub shows no model {repo}: correct base.model, or log in with `hf auth login` if the model "
            "is private",
        ),
        errors.RevisionNotFoundError: DataError(
            "Q-BASE-020",
            f"{repo} has no commit {commit}: copy base.revision from the model's list of commits on the hub",
        ),
        Exception: MachineError(
            "Q-BASE-021",
            f"{repo} can't be fetched from the hub ({reason[:200]}): check the network and HF_ENDPOINT, then "
            "run the same command again; it resumes where it stopped",
        ),
    }
    return next(refusal for kind, refusal in refusals.items() if isinstance(error, kind))


def fetch_file(repo: str, commit: str, file: Any, cache: Path, kind: str = "model") -> None:
    """Fetch one file of a listing into `cache`, resuming at the byte where an earlier try stopped. The
    repository is a `model` or a `dataset`.

    The download function of huggingface_hub 2.4 starts a file again in every process. With shards of 4 GB
    that does not count as resuming.
    """
    done = cache / file.rfilename
    part = cache / f"{file.rfilename}.part"
    if not done.exists():
        done.parent.mkdir(parents=True, exist_ok=True)
        _receive(repo, commit, file, part, kind)
        part.replace(done)


def _receive(repo: str, commit: str, file: Any, part: Path, kind: str = "model") -> None:
    """Download `part` until it has the listed size."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils._headers import build_hf_headers

    if part.exists() and part.stat().st_size > file.size:
        part.unlink()  # a proxy's error page, for example, and not our file
    if not part.exists() or part.stat().st_size < file.size:
        url = hf_hub_url(repo, file.rfilename, revision=commit, repo_type=kind)
        location = get_hf_file_metadata(url).location
        headers = build_hf_headers()
        if urlsplit(location).netloc != urlsplit(url).netloc:
            headers.pop("authorization", None)  # the token is for the hub, not for its content network
        with part.open("ab") as stream:
            http_get(
                location,
                stream,
                resume_size=stream.tell(),
                headers=headers,
                expected_size=file.size,
                displayed_filename=file.rfilename,
            )


def is_damaged(path: Path, listed: Any) -> bool:
    """Return True if a file differs from the hub's.

    Large files are compared by SHA-256, small ones by git's blob hash.
    """
    from huggingface_hub.utils.sha import git_hash

    if listed.lfs is not None:
        return file_hash(path) != str(listed.lfs.sha256)
    return git_hash(path.read_bytes()) != str(listed.blob_id)


def _link(source: Path, target: Path) -> None:
    # Both names belong to Quench, and the cache is deleted when the model is published. A hard link saves a
    # second copy of 15 GB.
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
