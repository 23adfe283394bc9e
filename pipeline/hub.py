"""Fetch a model from the Hugging Face hub at one commit: resumable, checked byte for byte, nothing that runs."""

import hashlib
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError, DataError, MachineError
from pipeline.hf_folder import check_config, choose_files, read_object, sha256
from pipeline.publish import need_disk


def download(repo: str, commit: str, cache: Path, folder: Path) -> None:
    """Put the model `repo` at `commit` (40 hexadecimal digits) into `folder`; HF_ENDPOINT may name another hub.

    What has arrived stays in `cache`, a folder on the same disk, so that a broken download goes on where it stopped.
    Raises `DataError` (no such model or commit, no right to it, unsafe or damaged files), `ConfigError` (no repository
    name), `MachineError` (the hub can't be reached, no room).
    """
    import httpx2  # huggingface_hub's HTTP client
    import huggingface_hub as hub
    from huggingface_hub import errors
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        listing = hub.HfApi().model_info(repo, revision=commit, files_metadata=True).siblings or []
        names = choose_files([file.rfilename for file in listing], f"{repo} at {commit}")
        hub.snapshot_download(repo, revision=commit, local_dir=cache, allow_patterns=["config.json"])
        check_config(read_object(cache / "config.json"), repo)
        wanted = [file for file in listing if file.rfilename in names]
        missing = sum(file.size or 0 for file in wanted if not (cache / file.rfilename).exists())
        need_disk(cache, missing)
        print(f"base: fetching {len(wanted)} files of {repo}, {missing / 1e9:.2f} GB to go", flush=True)
        hub.snapshot_download(repo, revision=commit, local_dir=cache, allow_patterns=names)
    except errors.HFValidationError as error:
        raise ConfigError(f"base.model is {repo!r}, which is no name of a hub repository: write OWNER/NAME") from error
    except errors.GatedRepoError as error:
        raise DataError(f"{repo} is gated: accept its terms on its page on the hub and log in with `hf auth login`") from error
    except errors.RepositoryNotFoundError as error:
        raise DataError(f"the hub shows no model {repo}: mend base.model, or log in with `hf auth login` if the model is private") from error
    except errors.RevisionNotFoundError as error:
        raise DataError(f"{repo} has no commit {commit}: copy base.revision from the model's list of commits on the hub") from error
    except (OSError, httpx2.HTTPError) as error:
        if isinstance(error, OSError) and error.errno:
            raise  # the disk's, not the network's
        raise MachineError(
            f"{repo} can't be fetched from the hub ({_first_line(error)}): check the network and HF_ENDPOINT, "
            "then run the same command again; it goes on where it stopped"
        ) from error
    for file in wanted:
        arrived = cache / file.rfilename
        if _damaged(arrived, file):
            arrived.unlink()
            raise DataError(f"{repo}: {file.rfilename} did not arrive as the hub lists it: run the same command again to fetch it anew")
        _link(arrived, folder / file.rfilename)


def _damaged(path: Path, listed: Any) -> bool:
    """Whether a file differs from the hub's listing: by SHA-256 for large files, by git's blob hash for small ones."""
    if listed.lfs is not None:
        return sha256(path) != str(listed.lfs.sha256)
    data = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest() != str(listed.blob_id)  # noqa: S324 (git's own hash)


def _link(source: Path, target: Path) -> None:
    # both names are ours and the cache goes when the model is published: no second copy of 15 GB
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _first_line(error: Exception) -> str:
    lines = str(error.__cause__ or error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
