"""Check that this machine is ready. Prints one line per check with its remedy; changes nothing.

Reads the installed packages, `requirements.lock`, `params.yaml`, the toolchain that it names and the machine.
Writes nothing but the empty folder of Snakemake's cache.

    quench doctor
"""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from pipeline.core.checks import Check
from pipeline.core.errors import ConfigError, ToolError
from pipeline.core.extra_packages import install_command
from pipeline.core.extras import Extra
from pipeline.core.extras import extras as all_extras
from pipeline.core.git import ask_git
from pipeline.core.hardware import accelerator
from pipeline.core.places import IS_CHECKOUT, resource
from pipeline.core.text import listed
from pipeline.core.units import memory_gb
from pipeline.llamacpp.compiler import find_compiler
from pipeline.llamacpp.devices import devices
from pipeline.llamacpp.tools import TOOLS, VERSION, find_toolchain

GB = 1e9
DEMO_DISK = 16 * GB  # bytes for the set-up and the demo's artifacts
DEMO_MEMORY = 8 * GB
JSON_KEYS = {"name": "name", "verdict": "verdict", "finding": "sentence", "remedy": "remedy", "id": "id"}
PINNED = (
    "transformers",
    "peft",
    "bitsandbytes",
    "gguf",
    "dvc",
    "snakemake",
)  # A wrong version of one of these changes results.


def doctor(*, root: Path, lock: Path) -> list[Check]:
    """Return every check, in the order in which a set-up needs them."""
    import psutil

    settings, home = configuration(root)
    return [
        python(),
        compiler(),
        git(root),
        project(root),
        snakemake_cache(),
        packages(lock),
        torch(),
        extras(),
        settings,
        llama_cpp(home),
        room("disk", shutil.disk_usage(root).free, "free", DEMO_DISK, "make room"),
        room("memory", psutil.virtual_memory().available, "available", DEMO_MEMORY, "close programs"),
        gpu(),
    ]


def python() -> Check:
    """Check that Python is 3.11 or later."""
    version = ".".join(map(str, sys.version_info[:3]))
    return (
        Check("Python", "pass", version)
        if sys.version_info >= (3, 11)
        else Check("Python", "fail", version, "install Python 3.11 or later")
    )


def compiler() -> Check:
    """Check that there is a C++ compiler. Only the first `make setup` needs it."""
    try:
        return Check("C++ compiler", "pass", find_compiler())
    except ToolError:
        return Check(
            "C++ compiler", "warn", "none on PATH", "install g++ if `make setup` has not built llama.cpp yet"
        )


def git(root: Path) -> Check:
    """Check that a Git repository contains the project, because DVC needs one."""
    if not shutil.which("git"):
        return Check("Git", "fail", "not on PATH", "install git")
    try:
        folder = ask_git(root, "rev-parse", "--show-toplevel")
    except ToolError as error:
        return Check("Git", "fail", error.sentence, id=error.id)
    if folder is None:
        return Check("Git", "fail", "no repository here", "run `git init`: DVC needs it")
    return Check("Git", "pass", folder.decode(errors="replace").strip())


def project(root: Path) -> Check:
    """Check that stages can run in the project's folder."""
    from pipeline.workflow.project import need_no_namesake, need_usable_path

    try:
        need_usable_path(root)
        need_no_namesake(root)
    except ConfigError as error:
        return Check("folder", "fail", error.sentence, id=error.id)
    return Check("folder", "pass", str(root.resolve()))


def snakemake_cache() -> Check:
    """Check that Snakemake can write its cache below the user's home."""
    from pipeline.workflow import source_cache

    why = source_cache.trouble()
    if why:
        return Check("home", "warn", why, f"runs have Snakemake's cache in {source_cache.PLACE} instead")
    return Check("home", "pass", "Snakemake's cache can be written")


def packages(lock: Path) -> Check:
    """Check that the packages that results depend on have the versions of the lock file."""
    pins = dict(re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", lock.read_text(encoding="utf-8"), re.MULTILINE))
    installed = {name: _version(name) for name in PINNED}
    wrong = [
        f"{name} {installed[name] or 'missing'} (pinned {pins[name]})"
        for name in PINNED
        if installed[name] != pins[name]
    ]
    if wrong:
        return Check("packages", "fail", ", ".join(wrong), "run `make setup`")
    return Check("packages", "pass", f"{len(PINNED)} pins as in {lock.name}")


def torch() -> Check:
    """Check that PyTorch is installed. Its version names its build (CPU, CUDA)."""
    version = _version("torch")
    if version:
        return Check("torch", "pass", version)
    return Check("torch", "fail", "missing", "run `make setup`")


def extras() -> Check:
    """Check that the packages of optional parts are installed. Nothing else needs them."""
    lacking = {
        name: extra
        for name, extra in all_extras().items()
        if extra.imports and find_spec(extra.imports) is None
    }
    if not lacking:
        return Check("extras", "pass", "the packages of all optional parts are installed")
    parts = listed([_user_of(name, extra) for name, extra in lacking.items()])
    command = install_command(*(extra.pip for extra in lacking.values()))
    return Check(
        "extras", "pass", f"optional packages of {parts} are not installed", f"if wanted, `{command}`"
    )


def _user_of(name: str, extra: Extra) -> str:
    """Return the verb that needs an extra's packages, or their name if a stage does."""
    verb = name if extra.verbs else next(iter(extra.provides))
    return extra.pip if "." in verb else f"`quench {verb}`"


def configuration(root: Path) -> tuple[Check, str | None]:
    """Check that `root`/params.yaml can be read. Return the check and the file's `machine.llama_cpp`."""
    from pipeline.config.params import load_params

    file = root / "params.yaml"
    if not file.exists():
        return Check(
            "params.yaml",
            "warn",
            f"not in {root.resolve()}",
            "run `quench config use demo`, or name the project's folder with --root",
        ), None
    try:
        params = load_params(file)
    except ConfigError as error:
        return Check("params.yaml", "fail", error.sentence, "correct it there", error.id), None
    return Check("params.yaml", "pass", f"graph of {params.product.plural}"), params.machine.llama_cpp


def llama_cpp(home: str | None) -> Check:
    """Check that the llama.cpp that stages will use is complete and runs, and that the binding has the pinned
    version. `home` is `machine.llama_cpp`.
    """
    chosen = None
    if os.environ.get("LLAMA_CPP_HOME"):
        chosen = "LLAMA_CPP_HOME"
    elif home:
        chosen = "machine.llama_cpp"
    remedy = f"correct {chosen}" if chosen else "run `make setup`"
    try:
        tools = find_toolchain(home)
        for name in TOOLS:
            tools.tool(name)
        version = tools.version
    except ToolError as error:
        return Check("llama.cpp", "fail", error.sentence, remedy, error.id)
    except (OSError, subprocess.SubprocessError) as error:
        return Check("llama.cpp", "fail", str(error), remedy)
    binding = _version("llama-cpp-python")
    if binding != VERSION:
        return Check(
            "llama.cpp",
            "fail",
            f"its Python binding is {binding or 'missing'}, {VERSION} is pinned",
            "run `make setup`",
        )
    seen = ", ".join(f"{device.name} {device.description}" for device in devices(tools)) or "no GPU"
    finding = f"{version} in {tools.bin}{f' ({chosen})' if chosen else ''}; it sees {seen}"
    if seen == "no GPU" and accelerator_name():
        build = "make setup LLAMA=auto" if IS_CHECKOUT else "quench doctor setup --llama auto"
        return Check("llama.cpp", "warn", finding, f"`{build}` says what is missing")
    return Check("llama.cpp", "pass", finding)


def accelerator_name() -> str | None:
    """Return the name of the GPU that the driver reports.

    Returns None if there is none or the driver's tool fails.
    """
    try:
        card = accelerator()
    except (ToolError, OSError):
        return None
    return card.name if card else None


def room(name: str, free: int, how: str, wanted: float, remedy: str) -> Check:
    """Check that there is enough disk or memory for the demo. `free` and `wanted` are in bytes."""
    finding = f"{free / GB:.1f} GB {how}"
    if free < wanted:
        return Check(name, "warn", finding, f"the demo needs {wanted / GB:.0f} GB: {remedy}")
    return Check(name, "pass", finding)


def gpu() -> Check:
    """Check that the driver reports a GPU, and that torch can use it."""
    try:
        card = accelerator()
    except (ToolError, OSError) as error:
        sentence = getattr(error, "sentence", str(error))
        return Check("GPU", "warn", sentence, "until then training takes the CPU")
    if card is None:
        return Check("GPU", "pass", "none is seen; training takes the CPU")
    described = f"{card.name} of {memory_gb(card.memory)}" if card.memory else card.name
    described += f", driver {card.driver}" if card.driver else ""
    if "+cpu" in (_version("torch") or ""):
        remedy = "run `make setup TORCH=auto`" if IS_CHECKOUT else "run `quench doctor setup --torch auto`"
        return Check("GPU", "warn", f"{described}, but torch is a CPU build", remedy)
    return Check("GPU", "pass", described)


def main(root: Path, *, as_json: bool = False) -> None:
    """Print every check. Raises `ToolError` if one fails."""
    checks = doctor(root=root, lock=resource("requirements.lock"))
    if as_json:
        print(json.dumps([check.record(JSON_KEYS) for check in checks], indent=2, ensure_ascii=False))
    else:
        print(*checks, sep="\n")
    failed = [check.name for check in checks if check.verdict == "fail"]
    if failed:
        raise ToolError("Q-DOCTOR-001", f"{', '.join(failed)} failed: each line above says what to do")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
