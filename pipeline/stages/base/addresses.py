"""A file from an address: https and http by httpx, s3 by fsspec; a broken download goes on."""

import re
from collections.abc import Iterator
from pathlib import Path

from pipeline.config.sections.places import Url
from pipeline.core.errors import MachineError, ToolError
from pipeline.core.publish import need_disk

PIECE = 1 << 20
BLOCK = 1 << 24  # bytes of one request to an S3 store
CONNECT_SECONDS, ANSWER_SECONDS = 5, 60


def fetch_url(place: Url, part: Path) -> None:
    """Write what `place` gives to `part`, from the byte where an earlier try ended.

    Raises `MachineError` if it can't be had or breaks off, or the disk is too small; `ToolError` if the
    package for s3 is not installed.
    """
    with part.open("ab") as stream:
        for piece in _pieces(place, stream.tell(), part):
            if piece is None:
                stream.truncate(0)
            else:
                stream.write(piece)


def _pieces(place: Url, start: int, part: Path) -> Iterator[bytes | None]:
    """The bytes from `start` on; None where the server gives only all of them."""
    pieces = _of_store if place.url.startswith("s3:") else _of_web
    try:
        yield from pieces(place.url, start, part.parent)
    except ImportError as error:
        raise ToolError(
            "Q-BASE-035", f"{place} needs a package that is not installed: `pip install 'quench[s3]'`"
        ) from error
    except MachineError:
        raise
    except Exception as error:  # each library has its own kinds
        # without addresses: the one that a server led to may hold a signature too
        said = re.sub(r"\w+://[^\s'\"]+", str(place), str(error).replace(place.url, str(place)))
        reason = " ".join(said.split())[:200] or type(error).__name__
        raise MachineError(
            "Q-BASE-032",
            f"{place} can't be fetched ({reason}): check the address and the network, then run the same "
            "command again; it goes on where it stopped",
        ) from error


def _of_web(url: str, start: int, folder: Path) -> Iterator[bytes | None]:
    import httpx

    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    timeout = httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS)
    with httpx.stream("GET", url, headers=headers, timeout=timeout, follow_redirects=True) as answer:
        if answer.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # all of it is there, or what is there is another file's: the hash says which
        answer.raise_for_status()
        if start and answer.status_code != httpx.codes.PARTIAL_CONTENT:
            yield None
        need_disk(folder, int(answer.headers.get("Content-Length", 0)))
        yield from answer.iter_raw(PIECE)


def _of_store(url: str, start: int, folder: Path) -> Iterator[bytes | None]:
    import fsspec

    system, path = fsspec.core.url_to_fs(url)
    with system.open(path, "rb", block_size=BLOCK) as source:
        if start > source.size:
            yield None
            start = 0
        need_disk(folder, source.size - start)
        source.seek(start)
        while piece := source.read(PIECE):
            yield piece
