"""Built llama.cpps in the user's cache folder (`pipeline.core.places`): the set-up of another checkout then
compiles nothing.

`QUENCH_CACHE=off` neither reads nor writes it. A build is found by what it was made of:
`llama.cpp/VERSION-KEY/`, the tools and their libraries in `build/bin/` and what is known of them in
`stamp.json`. The cache is a convenience: whatever is wrong with it costs a compilation and a line, never the
set-up.
"""

import fcntl
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.core.errors import MachineError
from pipeline.core.hashing import json_hash, tree_hash
from pipeline.core.locks import locked
from pipeline.core.places import user_cache
from pipeline.core.publish import publishing, write_json
from pipeline.core.rights import changed_by_others, close_to_others
from pipeline.llamacpp.compiler import Backend, version_of
from pipeline.llamacpp.stamp import is_built, read_stamp, stamp
from pipeline.llamacpp.tools import VERSION

CPU = Backend()
LOCK_SECONDS = 10  # to copy a build takes one or two
USED_BY_CMAKE = ("CC", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS")  # of the environment; CXX is the compiler


def cache_folder() -> Path | None:
    """Where built llama.cpps are kept; None if the user wants none, or has no home."""
    folder = user_cache()
    return None if folder is None else folder / "llama.cpp"


def entry_name(compiler: str, backend: Backend) -> str:
    """The name of the build that this machine's `compiler` makes now for `backend`: version, and a hash of
    whatever else its bytes depend on.
    """
    environment = {name: os.environ.get(name, "") for name in USED_BY_CMAKE}
    made_of = {
        "stamp": stamp(backend.flags),
        "compiler": [compiler, version_of(compiler), *filter(None, [backend.compiler])],
        "environment": environment,
        "machine": [sys.platform, platform.machine()],
    }
    return f"{VERSION}-{json_hash(made_of)[:16]}"


def take(home: Path, compiler: str, backend: Backend = CPU) -> bool:
    """Copy the build that `compiler` would make for `backend` into `home` if the cache has all of it; whether
    it did.
    """
    folder = cache_folder()
    if folder is None or not folder.is_dir():
        return False
    entry = folder / entry_name(compiler, backend)
    with _trouble(f"{entry} can't be used"), locked(folder / ".lock", fcntl.LOCK_SH, LOCK_SECONDS):
        if not _is_complete(entry):
            return False
        with publishing(home / "build") as aside:
            shutil.copytree(entry / "build", aside, symlinks=True)
            if tree_hash(aside) != read_stamp(entry).get("tree_sha256"):
                raise OSError("it changed while it was copied")
        write_json(home / "stamp.json", stamp(backend.flags))
        return is_built(home)
    return False


def keep(home: Path, compiler: str, backend: Backend = CPU) -> None:
    """Put the finished build of `home` into the cache, unless it is there."""
    folder = cache_folder()
    if folder is None:
        return
    entry = folder / entry_name(compiler, backend)
    with (
        _trouble(f"{entry} can't be written, so another checkout will compile llama.cpp again"),
        locked(folder / ".lock", fcntl.LOCK_EX, LOCK_SECONDS),
    ):
        if not _is_complete(entry):
            _need_safe(entry)
            with publishing(entry) as aside:
                shutil.copytree(home / "build" / "bin", aside / "build" / "bin", symlinks=True)
                write_json(
                    aside / "stamp.json", stamp(backend.flags) | {"tree_sha256": tree_hash(aside / "build")}
                )
                close_to_others(aside)


def _is_complete(entry: Path) -> bool:
    """Whether an entry holds what was put there and runs on this machine. Raises `OSError`, before anything
    of it runs, if another user may have changed it.
    """
    if not entry.is_dir():
        return False
    _need_safe(entry)
    return read_stamp(entry).get("tree_sha256") == tree_hash(entry / "build") and is_built(entry)


def _need_safe(folder: Path) -> None:
    if path := changed_by_others(folder):
        raise OSError(f"another user can change {path}")


@contextmanager
def _trouble(words: str) -> Iterator[None]:
    """Say in a line what keeps the cache from being used, and go on without it."""
    try:
        yield
    except (OSError, MachineError) as error:
        print(
            f"the cache of built llama.cpps: {words} ({error}); QUENCH_CACHE=off goes without it", flush=True
        )
