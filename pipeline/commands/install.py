"""Install PyTorch, or a hash-pinned lock file, into this environment.

Reads the lock file and `pip config list`. uv is ten times as fast as pip, but does not know pip's mirrors,
certificates and proxies. So they are passed in uv's own environment variables. The output of pip and uv is
written to `setup.log` in the environment, without names and passwords for an index. A package that is not a
wheel is built by the lock's own setuptools. Uses only the standard library, because it runs before anything
is installed.

    python -m pipeline.commands.install requirements.lock
    python -m pipeline.commands.install --torch auto [.venv/done/torch]
"""

import ast
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib import invalidate_caches
from importlib.util import find_spec
from pathlib import Path

from pipeline.core.errors import ToolError
from pipeline.core.hardware import Accelerator, accelerator
from pipeline.core.places import lines_of
from pipeline.core.text import screen

TORCH = "2.13.0"  # the same as in pyproject.toml
INDEX = "https://download.pytorch.org/whl/"
# Disk space of the plain package and its libraries above a CPU build, measured with 2.13.0 on Linux.
CUDA_SIZE = "3.3 GB"
# PyTorch 2.13's builds that its release matrix calls stable (RELEASE.md), the newest first. Each has the
# oldest driver (NVIDIA's table of minor version compatibility: CUDA 13 from 580, CUDA 12 from 525), and the
# compute capabilities that it has code for: cu130 none for Pascal and Volta, cu126 none for Blackwell.
CUDA_BUILDS = (("cu130", 580, 7.5, 99.0), ("cu126", 525, 5.0, 9.0))
ROCM_BUILD = "rocm7.2"
# Builds run without isolation, because an isolated build fetches an unpinned setuptools.
PINNED = ("--require-hashes", "--no-deps", "--no-build-isolation")
TOOLS = ("uv", "setuptools")  # packages that install the rest, and build what is not a wheel
CREDENTIALS = re.compile(r"(?<=://)[^/\s'\"]*(?=@)")  # credentials in an address
# pip's setting: uv's variable, and uv's separator between several values
UV_VARIABLES = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "proxy": ("ALL_PROXY", " "),
    "default-timeout": ("UV_HTTP_TIMEOUT", " "),
    "timeout": ("UV_HTTP_TIMEOUT", " "),
}
SECTIONS = ("global", "install", ":env:")  # sections in pip's order: later ones override earlier ones


def uv_environment(pip_config: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return uv's variables for the output of `pip config list`.

    Variables that the user has set for uv are not changed. Every file is pinned by its hash, so any index may
    provide it: "unsafe-best-match" is pip's way to search.
    """
    variables = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    for section in SECTIONS:
        for name, value in re.findall(rf"^{re.escape(section)}\.([a-z-]+)=(.+)$", pip_config, re.MULTILINE):
            if name in UV_VARIABLES:
                variable, separator = UV_VARIABLES[name]
                variables[variable] = separator.join(str(ast.literal_eval(value)).split())
    return {name: value for name, value in variables.items() if name not in environment}


def torch_for(card: Accelerator | None) -> tuple[str, str]:
    """Return the build of PyTorch for this GPU and the reason. The build is `cpu`, or the end of the address
    of PyTorch's index.
    """
    if card is None:
        return "cpu", "no GPU is seen here"
    if card.kind == "rocm":
        return ROCM_BUILD, f"for {card.name}"
    number = re.match(r"\d+", card.driver or "")  # Some containers show [N/A].
    driver = int(number[0]) if number else 0
    capability = float(card.capability or 8.0)
    of_card = [(oldest, build) for build, oldest, least, most in CUDA_BUILDS if least <= capability <= most]
    if not of_card:
        return "cpu", f"torch {TORCH} has no code for {card.name} (compute capability {card.capability})"
    for oldest, build in of_card:
        if driver >= oldest:
            return build, f"for {card.name}, driver {card.driver}"
    return "cpu", (
        f"the driver of {card.name} is {card.driver} and torch {TORCH} needs {min(of_card)[0]} for it: "
        "update the driver, then run `make setup TORCH=auto`"
    )


def install_torch(wanted: str) -> str:
    """Install PyTorch: for the GPU of this machine (`auto`), `cpu`, a build such as `cu130` or `rocm7.2`, or
    the package that `wanted` specifies in pip's syntax. Return the choice.

    A build is looked up in pip's configured index, then in PyTorch's own index. Some mirrors have no CPU
    build; then the plain package is installed. If the build for the GPU is not available, a line reports it
    and the CPU build is installed. Raises `ToolError` if pip finds nothing.
    """
    if wanted == "auto":
        try:
            wanted, why = torch_for(accelerator())
        except (ToolError, OSError) as error:
            wanted = "cpu"
            why = f"no GPU can be seen: {getattr(error, 'sentence', error)}"
        print(f"PyTorch {TORCH}: the build {wanted}, {why}", flush=True)
        if wanted != "cpu":
            if _install_build(wanted):
                return wanted
            print(
                f"torch {TORCH}+{wanted} could not be installed ({_reason()}): the CPU build is, so training "
                f"takes the CPU until `make setup TORCH={wanted}` reaches {INDEX}{wanted}",
                flush=True,
            )
            wanted = "cpu"
    if wanted == "cpu":
        if not _install_build(wanted, "--no-deps"):
            _install_plain()
    elif re.fullmatch(r"(cu|rocm|xpu)[\d.]*", wanted):
        if not _install_build(wanted):
            _need_torch(f"torch=={TORCH}+{wanted}", "--index-url", f"{INDEX}{wanted}")
    else:
        _pip("uninstall", "--yes", "torch")
        _need_torch(*shlex.split(wanted))
    return wanted


def _install_build(build: str, *options: str) -> bool:
    package = (*options, f"torch=={TORCH}+{build}")
    return _pip("install", *package) or _pip(
        "install", "--timeout", "15", *package, "--index-url", f"{INDEX}{build}"
    )


def _install_plain() -> None:
    size = f" (with CUDA's libraries: {CUDA_SIZE} more)" if sys.platform == "linux" else ""
    print(
        f"no CPU build of torch {TORCH} for Python {sys.version_info[0]}.{sys.version_info[1]} was found in "
        f"pip's index or on download.pytorch.org: installing the plain torch=={TORCH}{size}; `make setup "
        "TORCH=...` takes another",
        flush=True,
    )
    _need_torch(f"torch=={TORCH}")


def install(lock: Path) -> None:
    """Install every line of `lock` that this platform needs, with hashes checked. Nothing else is changed.

    Raises `ToolError` if uv and pip both fail.
    """
    text = lock.read_text(encoding="utf-8")
    tools = "".join(lines_of(tool, text) for tool in TOOLS)
    if tools:
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            print(tools, file=file, flush=True)
            _pip("install", *PINNED, "-r", file.name)
    invalidate_caches()  # uv may have been installed just now.
    config = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    # Bytecode is compiled now, as pip does. Containers often forbid Python to do it later, and then every
    # start compiles all modules that it imports.
    flags = ("--compile-bytecode", "--python", sys.executable, *PINNED, "-r", str(lock))
    if find_spec("uv"):
        if _logged(("uv", "pip", "install", *flags), uv_environment(config, os.environ)):
            return
        print(
            f"uv could not install these (its reason is in {_log()}): pip does it, which takes some minutes",
            file=sys.stderr,
        )
    if not _pip("install", *PINNED, "-r", str(lock)):
        raise ToolError(
            "Q-COMMANDS-031",
            f"{lock.name} could not be installed ({_reason()}; pip's output is in {_log()}): fix that, then "
            "run `make setup` again",
        )


def _need_torch(*words: str) -> None:
    if not _pip("install", *words):
        raise ToolError(
            "Q-COMMANDS-032",
            f"PyTorch could not be installed ({_reason()}; pip's output is in {_log()}): name one that pip "
            f'can reach, as in `make setup TORCH="torch=={TORCH} --index-url URL"` or `make setup '
            "TORCH=/path/to/torch.whl`",
        )


def _pip(*arguments: str) -> bool:
    """Run pip and return True if it succeeded. It retries twice: its default, five times, takes minutes
    without a network.
    """
    return _logged(
        ("pip", *arguments), {"PIP_RETRIES": os.environ.get("PIP_RETRIES", "2"), "PIP_PROGRESS_BAR": "off"}
    )


def _logged(module: tuple[str, ...], environment: Mapping[str, str]) -> bool:
    """Run a module of this environment and write all its output to the log. Return True if it succeeded."""
    command = [sys.executable, "-m", *module]
    with (
        _log().open("a", encoding="utf-8") as log,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            text=True,
            errors="replace",
        ) as process,
    ):
        print(f"\n$ {_masked(shlex.join(command))}", file=log, flush=True)
        for line in process.stdout or ():
            print(_masked(line), end="", file=log, flush=True)
    return process.returncode == 0


def _masked(text: str) -> str:
    """Return `text` without names and passwords in addresses (https://****@host)."""
    return CREDENTIALS.sub("****", text)


def _log() -> Path:
    return Path(sys.prefix) / "setup.log"


def _reason() -> str:
    """Return the last error of pip's last run."""
    output = _log().read_text(encoding="utf-8", errors="replace").rpartition("\n$ ")[2]
    errors = re.findall(r"^ERROR: (.+)$", output, re.MULTILINE)
    return errors[-1].rstrip(".") if errors else "pip failed"


@screen()
def main(words: list[str]) -> int:
    """Install what the command line names. Print one sentence and return exit code 4 if that fails."""
    try:
        if words[0] == "--torch":
            chosen = install_torch(words[1])
            for file in words[2:]:  # The choice is recorded and kept.
                Path(file).write_text(f"{_masked(chosen)}\n", encoding="utf-8")
        else:
            install(Path(words[0]))
    except ToolError as error:
        print(f"setup: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
