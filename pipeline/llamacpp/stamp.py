"""Whether a built llama.cpp can be used unchanged: the right version, made with the right flags, and it runs
here.

Reads `stamp.json`, which the build writes last, and asks one tool for its version. The place is not in the
stamp: tools find their libraries beside themselves, so a copied build is as good as the first. The CPU is:
the compiler uses all of it.
"""

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.core.cpu import instructions
from pipeline.llamacpp.tools import TOOLS, VERSION

SDIST_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
CMAKE_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=ON",
    # libraries are found beside the tools ($ORIGIN), not at the path where they were built
    "-DCMAKE_BUILD_RPATH_USE_ORIGIN=ON",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    # the web page is never served; left on, the build downloads its latest, unpinned, from Hugging Face
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
)
# of all that Linux says of a CPU, what a compiler makes code of; the rest changes with the kernel
USED = re.compile(r"s?sse|avx|fma|f16c|bmi|amx|abm|popcnt|movbe|adx|gfni|asimd|sve|i8mm|bf16|fphp")
SECONDS_TO_START = 60


def stamp(backend: Sequence[str] = ()) -> dict[str, object]:
    """What a build that is finished now is made of (`backend`: CMake's flags for a GPU), and for which
    instructions; nothing is said of those outside Linux.
    """
    return {
        "version": VERSION,
        "sdist_sha256": SDIST_SHA256,
        "cmake_flags": [*CMAKE_FLAGS, *backend],
        "instructions": sorted(_instructions()),
    }


def is_built(home: Path, backend: Sequence[str] | None = None) -> bool:
    """Whether `home` holds a finished build of exactly this version and these flags that runs on this
    machine; of any backend if none is given.
    """
    found = read_stamp(home)
    wanted = stamp(backend_of(found) if backend is None else backend)
    same = all(found.get(key) == wanted[key] for key in wanted if key != "instructions")
    return (
        same
        and all(os.access(home / "build" / "bin" / tool, os.X_OK) for tool in TOOLS)
        and fits_cpu(home)
        and runs(home)
    )


def backend_of(stamped: Mapping[str, object]) -> list[str]:
    """CMake's flags for a GPU in what `stamp.json` says; none of a build for the CPU."""
    flags = stamped.get("cmake_flags")
    return [str(flag) for flag in flags if flag not in CMAKE_FLAGS] if isinstance(flags, list) else []


def fits_cpu(home: Path) -> bool:
    """Whether this CPU knows every instruction that the build in `home` was made for; True if its stamp names
    none.
    """
    needed = read_stamp(home).get("instructions")
    return not isinstance(needed, list) or _instructions().issuperset(needed)


def runs(home: Path) -> bool:
    """Whether the server, which is linked to every library of the build, starts here; a machine that is too
    busy to say so is believed.
    """
    command = [str(home / "build" / "bin" / "llama-server"), "--version"]
    try:
        return (
            subprocess.run(command, capture_output=True, timeout=SECONDS_TO_START, check=False).returncode
            == 0
        )
    except subprocess.TimeoutExpired:
        return True
    except OSError:
        return False


def _instructions() -> set[str]:
    return {name for name in instructions() if USED.match(name)}


def read_stamp(home: Path) -> dict[str, object]:
    """What `stamp.json` says of a build; nothing if it is missing or torn."""
    try:
        found = json.loads((home / "stamp.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
