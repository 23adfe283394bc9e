"""Write and read the key of a project's server: one line of `.quench/api-key`, written at each start of
`quench serve` and sent by its clients.
"""

import re
import secrets
from pathlib import Path

from pipeline.core.errors import ConfigError, ToolError
from pipeline.llamacpp.server import write_key

KEY_FILE = Path(".quench", "api-key")
MAX_BYTES = 4096
KEY = re.compile(r"[!-~]{16,}\n?")  # fits an HTTP header and can't be guessed


def new_key(root: Path) -> Path:
    """Return the key file of this project with a new key: 256 random bits that only their owner can read. It
    replaces what was there, a link or a file that others could read.

    Raises `ConfigError` if it can't be written.
    """
    path = root / KEY_FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return write_key(path, secrets.token_urlsafe(32))
    except OSError as error:
        raise _unusable(path, f"{error.strerror}: {error.filename}") from None


def read_key(path: Path) -> str:
    """Return the key in a key file. Raises `ToolError` if there is no file yet, `ConfigError` if it can't be
    read or contains no key.
    """
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise _unusable(path, "it is a link, or not a regular file")
        with path.open("rb") as file:
            text = file.read(MAX_BYTES).decode("ascii")
    except FileNotFoundError:
        raise ToolError(
            "Q-SERVE-013",
            f"{path} is missing, so nothing was served yet: start the server with `quench serve` in another "
            "terminal",
        ) from None
    except OSError as error:
        raise _unusable(path, error.strerror) from None
    except UnicodeError:
        text = ""
    if not KEY.fullmatch(text):
        raise _unusable(path, "it must hold one line of 16 or more printable ASCII characters without spaces")
    return text.strip()


def _unusable(path: Path, why: str | None) -> ConfigError:
    return ConfigError(
        "Q-SERVE-014",
        f"the key can't be taken from {path} ({why}): delete it, and `quench serve` makes a new one",
    )
