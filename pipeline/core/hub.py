"""The Hugging Face hub: its client, downloads that resume, and what its refusals mean."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pipeline.core.errors import QuenchError
from pipeline.core.hashing import file_hash
from pipeline.core.text import safe

CONNECT_SECONDS = 5  # Without a network the next place is tried soon.
ANSWER_SECONDS = 10


class Refused(Enum):
    """Why the hub does not give a repository."""

    NAME = auto()  # It is no name of a repository.
    GATED = auto()  # Its terms are not accepted, or the token may not read it.
    REVISION = auto()  # It has no such commit, branch or tag.
    MISSING = auto()  # The hub shows no repository of this name.
    BUSY = auto()  # The hub asks to wait.
    BROKEN = auto()  # Anything else: no network, another server, a broken answer.


def hub_client() -> tuple[Any, Any]:
    """Return the hub's client and the timeout. Progress is shown only on a terminal."""
    import httpx2  # huggingface_hub's HTTP client
    from huggingface_hub import HfApi
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    return HfApi(), httpx2.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS)


@contextmanager
def hub_errors(error_of: Callable[[Refused, str], QuenchError]) -> Iterator[None]:
    """Turn the errors of the hub's client into the user's, which `error_of` makes of the refusal and of a few
    words that are safe to show. Errors of this machine's disk stay.
    """
    import httpx2
    from huggingface_hub import errors

    try:
        yield
    except (errors.HFValidationError, OSError, httpx2.HTTPError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        reason = ": ".join([type(error).__name__, *str(error.__cause__ or error).strip().splitlines()[:1]])
        raise error_of(_refusal(error), safe(reason, 200)) from error


def _refusal(error: Exception) -> Refused:
    from huggingface_hub import errors

    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.HFValidationError):
        return Refused.NAME
    if isinstance(error, errors.GatedRepoError) or status == 403:  # before its base class, a missing one
        return Refused.GATED
    if isinstance(error, errors.RevisionNotFoundError):
        return Refused.REVISION
    if isinstance(error, errors.RepositoryNotFoundError) or status in (401, 404):
        return Refused.MISSING
    return Refused.BUSY if status == 429 else Refused.BROKEN


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
        receive(repo, commit, file, part, kind)
        part.replace(done)


def receive(repo: str, commit: str, file: Any, part: Path, kind: str = "model") -> None:
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
