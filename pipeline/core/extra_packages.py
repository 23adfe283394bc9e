"""Name the command that adds the packages of an extra to this installation.

The name `quench` on the registry is another project's, so no command names it: it names the packages.
"""

import re
import shlex
import shutil
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from pipeline.core.places import PROJECT

OF_EXTRA = re.compile(r"(.+?) *; *extra == ['\"](.+)['\"]")  # as the metadata has a requirement


def install_command(*extras: str, packages: Iterable[str] = ()) -> str:
    """Return the shell command that installs what the named extras need, and `packages`:
    `pip install textual==8.2.8`.
    """
    try:
        found = [OF_EXTRA.fullmatch(line) for line in requires("quench") or []]
    except PackageNotFoundError:  # a checkout that was not installed
        named = f"{PROJECT}[{','.join(extras)}]"
        return f"{_installer()} {shlex.join([*packages, '-e', named])}"
    needed = [match[1] for match in found if match and match[2] in extras]
    return f"{_installer()} {shlex.join([*needed, *packages])}"


def _installer() -> str:
    """Return the command that installs into this environment: pipx's, uv's, or pip of this Python."""
    environment = Path(sys.prefix)
    if environment.parent.parts[-2:] == ("pipx", "venvs"):
        return f"pipx inject {environment.name}"
    if environment.parent.parts[-2:] == ("uv", "tools"):  # It has no pip.
        return f"uv pip install --python {shlex.quote(sys.executable)}"
    if shutil.which("pip") == str(environment / "bin" / "pip"):
        return "pip install"
    return f"{shlex.quote(sys.executable)} -m pip install"
