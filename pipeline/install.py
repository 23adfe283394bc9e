"""Install a hash-pinned lock file into this environment: with uv, told what pip's configuration says, or else with pip.

Reads the lock file and `pip config list`. uv is ten times as fast as pip, but doesn't know pip's mirrors,
certificates and proxies; so they are handed on in uv's own environment variables. Standard library only: it runs
before anything is installed.

    python -m pipeline.install requirements.lock
"""

import ast
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

PINNED = ("--require-hashes", "--no-deps")
# pip's setting: uv's variable, and what uv writes between several values
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
SECTIONS = ("global", "install", ":env:")  # as pip has it: the later ones win


def uv_environment(pip_config: str, environment: Mapping[str, str]) -> dict[str, str]:
    """uv's variables for what `pip config list` printed; what the user set for uv already is left alone.

    Every file is pinned by its hash, so any index may give it: "unsafe-best-match" is how pip searches.
    """
    settings: dict[str, str] = {}
    for section in SECTIONS:
        for name, value in re.findall(rf"^{re.escape(section)}\.([a-z-]+)=(.+)$", pip_config, re.MULTILINE):
            settings[name] = str(ast.literal_eval(value))
    wanted = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    for name, value in settings.items():
        if name in UV_VARIABLES:
            variable, separator = UV_VARIABLES[name]
            wanted[variable] = separator.join(value.split())
    return {name: value for name, value in wanted.items() if name not in environment}


def lines_of(package: str, lock: str) -> str:
    """The requirement of one package with its hashes, cut out of a lock file's text; "" where it isn't in there."""
    found = re.search(rf"^{re.escape(package)}==.*(?:\n[ \t].*)*", lock, re.MULTILINE)
    return found[0] + "\n" if found else ""


def install(lock: Path) -> None:
    """Install every line of `lock` that this platform needs, hashes checked, nothing else touched.

    Raises `subprocess.CalledProcessError` where pip fails too; pip has then said why.
    """
    text = lock.read_text(encoding="utf-8")
    uv = lines_of("uv", text)
    if uv and not uv.startswith(f"uv=={_uv_version()} "):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write(uv)
            file.flush()
            _pip("install", "--quiet", *PINNED, "-r", file.name)
    config = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True).stdout
    # compiled now, as pip does: containers often forbid Python to do it later, and then every start compiles all that it imports
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--compile-bytecode", "--python", sys.executable, *PINNED, "-r", str(lock)]
    if subprocess.run(command, env={**os.environ, **uv_environment(config, os.environ)}, check=False).returncode != 0:
        print("uv could not install these (see above): pip does it, which takes some minutes", file=sys.stderr)
        _pip("install", "--quiet", *PINNED, "-r", str(lock))


def _uv_version() -> str:
    done = subprocess.run([sys.executable, "-m", "uv", "--version"], capture_output=True, text=True, check=False)
    return done.stdout.split()[1] if done.returncode == 0 else "none"


def _pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", *arguments], check=True)


if __name__ == "__main__":
    try:
        install(Path(sys.argv[1]))
    except subprocess.CalledProcessError as failed:
        sys.exit(f"pip failed on {sys.argv[1]} (exit status {failed.returncode}, its reason is above): mend that and run `make setup` again")
