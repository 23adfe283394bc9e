"""The port of a project's server: `.quench/port` has the one of the server that was started last, for its
clients. Without that file it is `serve.port`.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pipeline.core.publish import write_text

PORT_FILE = Path(".quench", "port")
PORT = re.compile(r"[1-9][0-9]{3,4}\n?")


def server_url(root: Path, port: int) -> str:
    """Return the address of the project's server; `port` is that of its settings."""
    text = ""
    with suppress(OSError, ValueError), (root / PORT_FILE).open(encoding="ascii") as file:
        text = file.read(100)
    return f"http://127.0.0.1:{text.strip() if PORT.fullmatch(text) else port}"


@contextmanager
def announced(root: Path, port: int) -> Iterator[None]:
    """Tell the server's clients its port while the body runs."""
    file = root / PORT_FILE
    write_text(file, f"{port}\n")
    try:
        yield
    finally:
        with suppress(OSError, ValueError):
            if file.read_text(encoding="ascii") == f"{port}\n":  # Another server may have been started since.
                file.unlink()
