"""Build llama.cpp once, from the pinned llama-cpp-python source distribution, and install its Python binding.

Reads the package index that pip is configured for. Writes `.tools/llama.cpp/VERSION/`: `source/`, `build/`,
`build.log` and, last, `stamp.json`. A build is used if its stamp matches and it runs here, even if it was
copied here with the project. A build of another checkout is copied from the user's cache
(`pipeline.llamacpp.stamp`). An interrupted build resumes. If `LLAMA_CPP_HOME` is set nothing is built; only
source and binding are installed.

    python -m pipeline.llamacpp.build [auto | cpu | cuda | hip | vulkan | --check-compiler]
"""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pipeline.core.errors import MachineError, QuenchError, ToolError
from pipeline.core.hardware import usable_cores
from pipeline.core.hashing import file_hash
from pipeline.core.locks import Held
from pipeline.core.locks import take as take_lock
from pipeline.core.progress import progress
from pipeline.core.publish import need_disk, publishing, write_json
from pipeline.core.rights import closed_to_others
from pipeline.core.text import screen
from pipeline.llamacpp.compiler import BACKENDS, SWITCHES, Backend, amx_flags, choose_backend, find_compiler
from pipeline.llamacpp.stamp import (
    CMAKE_FLAGS,
    SDIST_SHA256,
    cache_folder,
    fits_cpu,
    is_built,
    keep,
    runs,
    stamp,
    take,
)
from pipeline.llamacpp.tools import DEFAULT_HOME, TOOLS, VERSION, find_toolchain, last_lines, need_safe_home

SDIST = f"llama_cpp_python-{VERSION}"
BUILD_BYTES = 700_000_000  # bytes of source distribution, source and build together
JOB_BYTES = 1_500_000_000  # most bytes of one compiler process
# It is not part of the stamp: a build without it computes the same.
QUICKER = f"-DCMAKE_PROJECT_llama.cpp_INCLUDE={Path(__file__).with_name('quicker.cmake')}"
WORDS = {"cpu": "the CPU", "cuda": "CUDA", "hip": "ROCm", "vulkan": "Vulkan"}


def fetch_source(home: Path) -> None:
    """Unpack the source distribution as `home/source`, its hash checked; kept if it is already there."""
    mark = home / "source" / ".sdist-sha256"
    if mark.exists() and mark.read_text().strip() == SDIST_SHA256:
        return
    home.mkdir(parents=True, exist_ok=True)
    print(f"llama.cpp {VERSION}: fetching its source (77 MB)", flush=True)
    with tempfile.TemporaryDirectory(prefix=".download-", dir=home) as folder:
        archive = _download(Path(folder))
        with publishing(home / "source") as aside:
            unpack(archive, aside)
            (aside / mark.name).write_text(SDIST_SHA256 + "\n")


def unpack(archive: Path, target: Path) -> None:
    """Unpack a .tar.gz whose one top folder becomes `target`. Absolute paths, links to outside and devices
    are refused (`tarfile.FilterError`).
    """
    holder = target.with_name(f"{target.name}.tar")
    shutil.rmtree(holder, ignore_errors=True)
    try:
        # Python 3.11.0 to 3.11.3 have no filters; the archive's hash is pinned in any case.
        guard = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        with tarfile.open(archive, "r:gz") as tar:
            tar.extractall(holder, **guard)  # type: ignore[arg-type]  # noqa: S202
        (top,) = holder.iterdir()
        top.rename(target)
    finally:
        shutil.rmtree(holder, ignore_errors=True)


def install_binding(home: Path = DEFAULT_HOME) -> None:
    """Install the Python binding without building it; `pipeline.llamacpp.tools.load_binding` loads our
    libraries with it.
    """
    with suppress(importlib.metadata.PackageNotFoundError):
        if importlib.metadata.version("llama-cpp-python") == VERSION:
            return
    _pip(
        ["install", str(home / "source")],
        "the Python binding llama-cpp-python did not install",
        CMAKE_ARGS="-DLLAMA_BUILD=OFF -DLLAVA_BUILD=OFF",
    )


def _download(folder: Path) -> Path:
    requirements = folder / "wanted.txt"
    requirements.write_text(f"llama-cpp-python=={VERSION} --hash=sha256:{SDIST_SHA256}\n")
    words = ["download", "--require-hashes", "--no-binary", "llama-cpp-python", "-r", str(requirements)]
    _pip(
        [*words, "--dest", str(folder)],
        f"{SDIST}.tar.gz did not arrive whole from the package index that pip is set up for",
    )
    archive = folder / f"{SDIST}.tar.gz"
    digest = file_hash(archive)
    if digest != SDIST_SHA256:
        raise ToolError(
            "Q-LLAMACPP-002",
            f"{archive.name} has sha256 {digest}, {SDIST_SHA256} is pinned: check the package index that pip "
            "is set up for",
        )
    return archive


def _pip(words: list[str], what_failed: str, **environment: str) -> None:
    # No build isolation: pip reads the package's metadata, and an isolated build environment only for that
    # takes 30 s.
    command = [sys.executable, "-m", "pip", *words, "--quiet", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment_of_tools(environment), check=False
    )
    if done.returncode != 0:
        last = last_lines(done.stdout + done.stderr)
        raise ToolError(
            "Q-LLAMACPP-003", f"{what_failed}: correct what pip says, then run `make setup` again:\n{last}"
        )


def environment_of_tools(more: dict[str, str]) -> dict[str, str]:
    """Return this process's environment with the virtual environment's tools (cmake, ninja) first on PATH."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, "PATH": path, **more}


@closed_to_others()
def build(home: Path = DEFAULT_HOME, wanted: str | None = None) -> None:
    """Build the llama.cpp of this version in `home`, for the backend `wanted`; nothing is done if it is
    there. None stands for any backend that is built already, otherwise the one that fits the machine
    ("auto").

    Raises `ToolError` if a compiler is missing or fails, or others could change `home`, `ConfigError` for an
    unknown backend, `MachineError` if the disk is full or another process builds here.
    """
    if home == DEFAULT_HOME:
        need_safe_home()
    if not wanted and is_built(home):
        return
    compiler = find_compiler()
    backend = choose_backend(wanted)
    if is_built(home, backend.flags):
        return
    print(f"llama.cpp {VERSION}: the build for {WORDS[backend.name]}, {backend.why}", flush=True)
    need_disk(home, BUILD_BYTES)
    try:
        lock = take_lock(home / ".lock")  # Two ninjas in one folder would corrupt each other's files.
    except Held:
        raise MachineError(
            "Q-LLAMACPP-006",
            f"another process builds llama.cpp in {home}: wait until it is done, then run `make setup` again",
        ) from None
    with lock:
        fetch_source(home)
        try:
            _make(home, compiler, backend)
        except ToolError as error:
            if wanted in BACKENDS or backend.name == "cpu":
                raise
            print(f"{error.sentence}\nllama.cpp {VERSION}: the build for the CPU instead", flush=True)
            _make(home, compiler, Backend())


def _make(home: Path, compiler: str, backend: Backend) -> None:
    """Copy the build from the cache, or configure, compile, try and stamp it."""
    if take(home, compiler, backend):
        print(
            f"llama.cpp {VERSION}: built before for another checkout, taken from {cache_folder()} "
            "(QUENCH_CACHE=off builds it again)"
        )
        return
    _forget_foreign_build(home, backend)
    (home / "stamp.json").unlink(missing_ok=True)  # The stamp marks a finished build.
    print(f"llama.cpp {VERSION}: configuring", flush=True)
    log = home / "build.log"
    log.unlink(missing_ok=True)
    source = str(home / "source" / "vendor" / "llama.cpp")
    folder = str(home / "build")
    flags = [*CMAKE_FLAGS, QUICKER, *backend.flags, *amx_flags(compiler)]
    _logged(["cmake", "-G", "Ninja", "-S", source, "-B", folder, *flags], log)
    with progress("building llama.cpp", 100) as advance:
        _logged(["ninja", "-C", folder, "-j", str(_jobs()), *TOOLS], log, advance)
    if not runs(home):
        server = home / "build" / "bin" / "llama-server"
        raise ToolError(
            "Q-LLAMACPP-001",
            f"llama.cpp was built, but `{server} --version`, which would say why, does not run on this "
            "machine",
        )
    write_json(home / "stamp.json", stamp(backend.flags))
    keep(home, compiler, backend)
    print(f"llama.cpp {VERSION}: built in {home}")


def _logged(command: list[str], log: Path, advance: Callable[[int], None] = lambda percent: None) -> None:
    """Run a build step, logged in `log`.

    `advance` is called with the percent done at each "[done/total]" of ninja.
    """
    done = total = 0
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment_of_tools({"NINJA_STATUS": "[%f/%t] "}),
        )
    except FileNotFoundError:
        raise ToolError(
            "Q-LLAMACPP-004", f"{command[0]} is not on PATH: `make setup` installs it in .venv, so run that"
        ) from None
    with process, log.open("a", encoding="utf-8") as file:
        for line in process.stdout or ():
            file.write(line)
            step = re.match(r"\[(\d+)/(\d+)\]", line)
            # When ninja runs CMake again first, it prints "[1/1]" before its plan. A ninja of its own builds
            # Vulkan's shader compiler, in fewer steps.
            if step and step[2] != "1":
                total = max(total, int(step[2]))
                before = done
                done = max(done, 100 * int(step[1]) // total)
                advance(done - before)
    if process.returncode != 0:
        raise ToolError(
            "Q-LLAMACPP-005",
            f"{command[0]} failed with exit status {process.returncode} while building llama.cpp (the full "
            f"log is {log}):\n{last_lines(log.read_text(encoding='utf-8'))}",
        )


def _jobs() -> int:
    """Return the number of parallel compilers: one per CPU that we may use, limited by free memory."""
    import psutil

    return max(1, min(usable_cores() or 1, psutil.virtual_memory().available // JOB_BYTES))


def _forget_foreign_build(home: Path, backend: Backend) -> None:
    """Delete a build that can't be continued. It was configured at another path, which CMake refuses, or for
    another backend, which CMake would remember, or finished on another machine.
    """
    cache = home / "build" / "CMakeCache.txt"
    lines = cache.read_text(errors="replace").splitlines() if cache.exists() else []
    line = f"CMAKE_HOME_DIRECTORY:INTERNAL={home / 'source' / 'vendor' / 'llama.cpp'}"
    switched = {flag for flag in SWITCHES.values() if f"{flag[2:].replace('=', ':BOOL=')}" in lines}
    moved = lines and (line not in lines or switched != set(SWITCHES.values()).intersection(backend.flags))
    finished = (home / "stamp.json").exists() and all(
        (home / "build" / "bin" / tool).exists() for tool in TOOLS
    )
    if moved or not fits_cpu(home) or (finished and not runs(home)):
        shutil.rmtree(home / "build", ignore_errors=True)


def set_up(wanted: str | None = None) -> None:
    """Build what is missing for the `wanted` backend, unless `LLAMA_CPP_HOME` names a build, and install the
    binding. Raises as `build` does.
    """
    if os.environ.get("LLAMA_CPP_HOME"):
        find_toolchain()
        fetch_source(DEFAULT_HOME)
    else:
        build(wanted=wanted)
    install_binding()


@screen()
def main(argv: list[str]) -> int:
    """Build what is missing. If that fails, print one sentence and exit with 2, 4 or 6."""
    try:
        if argv != ["--check-compiler"]:
            set_up(*argv[:1])
        elif not os.environ.get("LLAMA_CPP_HOME"):
            need_safe_home()
            if not is_built(DEFAULT_HOME):
                find_compiler()
    except QuenchError as error:
        print(f"setup: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
