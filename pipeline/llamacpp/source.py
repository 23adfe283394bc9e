"""The pinned source distribution of llama-cpp-python, from which llama.cpp is built, and its Python binding.

Both come from the package index that pip is configured for.
"""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path

from pipeline.core.errors import ToolError
from pipeline.core.hashing import file_hash
from pipeline.core.publish import publishing
from pipeline.llamacpp.stamp import SDIST_SHA256
from pipeline.llamacpp.tools import DEFAULT_HOME, VERSION, last_lines

SDIST = f"llama_cpp_python-{VERSION}"


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
