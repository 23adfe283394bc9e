"""Show the manual: `quench doctor docs`. It is built if it was not yet, and served on 127.0.0.1 until Ctrl-C.

Reads the pages in docs/, README.md and what Quench itself knows of its stages, settings, commands and errors.
Writes the site to `.quench/manual`, in the checkout or (installed) in the user's cache.

    quench doctor docs --open
    quench doctor docs --write site    # only write it, to be published
"""

import shutil
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import typer

from pipeline.core.errors import ConfigError
from pipeline.core.publish import publishing
from pipeline.extras.manual.site import built_site


class Quiet(SimpleHTTPRequestHandler):
    """Handler that prints no line for each file that a browser asks for."""

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing (called by the server)."""


def main(folder: Path | None, *, in_browser: bool) -> None:
    """Write the manual into `folder`, or serve it until Ctrl-C."""
    if folder:
        need_new(folder)
        site = built_site().parent
        with publishing(folder.absolute()) as aside:
            shutil.copytree(site, aside)
        print(folder / "index.html")
        return
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=built_site().parent)) as server:
        address = f"http://127.0.0.1:{server.server_port}/"
        print(f"the manual is at {address} until Ctrl-C", flush=True)
        if in_browser:
            typer.launch(address)
        with suppress(KeyboardInterrupt):
            server.serve_forever()


def need_new(folder: Path) -> None:
    """Raise `ConfigError` if `folder` is a file or a folder with content."""
    is_empty = folder.is_dir() and not any(folder.iterdir())
    if folder.exists() and not is_empty:
        raise ConfigError("Q-MANUAL-003", f"{folder} has content: name a new folder, or an empty one")
