"""Check that a built llama.cpp can be used unchanged, here or from the user's cache: the right version, built
with the right flags, and it runs here.

A build writes `stamp.json` last, and one tool is run to print its version. The place is not in the stamp:
tools find their libraries in their own folder, so a copied build is as good as the first. The CPU is in it,
because the compiler uses all of its instructions.

The cache (`pipeline.core.places`) spares another checkout's set-up the compilation; `QUENCH_CACHE=off`
neither reads nor writes it. A build is found by what it was made of: `llama.cpp/VERSION-KEY/`, with the tools
and their libraries in `build/bin/` and the record in `stamp.json`. The cache is a convenience: any fault of
it costs a compilation and a line, never the set-up.
"""

import fcntl
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from pipeline.core.cpu import instructions
from pipeline.core.errors import MachineError
from pipeline.core.hashing import json_hash, tree_hash
from pipeline.core.locks import locked
from pipeline.core.places import user_cache
from pipeline.core.publish import publishing, write_json
from pipeline.core.rights import changed_by_others, close_to_others
from pipeline.llamacpp.compiler import Backend, version_of
from pipeline.llamacpp.tools import TOOLS, VERSION

SDIST_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
CMAKE_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=ON",
    # Libraries are found in the tools' own folder ($ORIGIN), not at the path where they were built.
    "-DCMAKE_BUILD_RPATH_USE_ORIGIN=ON",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    # The web page is never served. If left on, the build downloads its latest version, unpinned, from Hugging
    # Face.
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
)
# The CPU flags of Linux that a compiler makes code for. The rest changes with the kernel.
USED = re.compile(r"s?sse|avx|fma|f16c|bmi|amx|abm|popcnt|movbe|adx|gfni|asimd|sve|i8mm|bf16|fphp")
SECONDS_TO_START = 60
CPU = Backend()
LOCK_SECONDS = 10  # seconds; copying a build takes one or two
# variables of the environment; CXX is the compiler
USED_BY_CMAKE = ("CC", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS")


def stamp(backend: Sequence[str] = ()) -> dict[str, object]:
    """Return the inputs of a build that is finished now (`backend`: CMake's flags for a GPU), and its
    instructions; outside Linux these are left out.
    """
    return {
        "version": VERSION,
        "sdist_sha256": SDIST_SHA256,
        "cmake_flags": [*CMAKE_FLAGS, *backend],
        "instructions": sorted(_instructions()),
    }


def is_built(home: Path, backend: Sequence[str] | None = None) -> bool:
    """Return True if `home` contains a finished build of exactly this version and these flags that runs on
    this machine; of any backend if none is given.
    """
    stamped = read_stamp(home)
    expected = stamp(backend_of(stamped) if backend is None else backend)
    same = all(stamped.get(key) == expected[key] for key in expected if key != "instructions")
    return (
        same
        and all(os.access(home / "build" / "bin" / tool, os.X_OK) for tool in TOOLS)
        and fits_cpu(home)
        and runs(home)
    )


def backend_of(stamped: Mapping[str, object]) -> list[str]:
    """Return CMake's flags for a GPU in `stamp.json`; none for a build for the CPU."""
    flags = stamped.get("cmake_flags")
    return [str(flag) for flag in flags if flag not in CMAKE_FLAGS] if isinstance(flags, list) else []


def fits_cpu(home: Path) -> bool:
    """Return True if this CPU knows every instruction that `home`'s build needs, or its stamp names none."""
    needed = read_stamp(home).get("instructions")
    return not isinstance(needed, list) or _instructions().issuperset(needed)


def runs(home: Path) -> bool:
    """Return True if the server, which is linked to every library of the build, starts here, or if the
    machine is too busy to tell.
    """
    command = [str(home / "build" / "bin" / "llama-server"), "--version"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=SECONDS_TO_START, check=False)
        return done.returncode == 0
    except subprocess.TimeoutExpired:
        return True
    except OSError:
        return False


def _instructions() -> set[str]:
    return {name for name in instructions() if USED.match(name)}


def read_stamp(home: Path) -> dict[str, object]:
    """Return the `stamp.json` of a build; empty if it is missing or torn."""
    try:
        values = json.loads((home / "stamp.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def cache_folder() -> Path | None:
    """Return the folder for builds of llama.cpp; None if the user wants none, or has no home."""
    folder = user_cache()
    return None if folder is None else folder / "llama.cpp"


def entry_name(compiler: str, backend: Backend) -> str:
    """Return the name of the build that this machine's `compiler` makes now for `backend`: version, and a
    hash of whatever else its bytes depend on.
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
    """Copy `compiler`'s build for `backend` into `home` if the cache has all of it. Return True if it did."""
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
    """Return True if an entry contains what was put there and runs on this machine. Raises `OSError`, before
    anything of it runs, if another user may have changed it.
    """
    if not entry.is_dir():
        return False
    _need_safe(entry)
    return read_stamp(entry).get("tree_sha256") == tree_hash(entry / "build") and is_built(entry)


def _need_safe(folder: Path) -> None:
    path = changed_by_others(folder)
    if path:
        raise OSError(f"another user can change {path}")


@contextmanager
def _trouble(words: str) -> Iterator[None]:
    """Print in a line what keeps the cache from being used, and continue without it."""
    try:
        yield
    except (OSError, MachineError) as error:
        print(
            f"the cache of llama.cpp builds: {words} ({error}); QUENCH_CACHE=off goes without it", flush=True
        )
