"""Show the state of a project's server: its model, its adapters and their scales.

Reads `.quench/api-key` and section `serve`. Connects to 127.0.0.1 only. New scales apply to all later
requests without scales of their own, until the server is restarted.

    quench status
    quench serve --scale NAME=SCALE
"""

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pipeline.config.params import Params
from pipeline.config.products import is_base
from pipeline.core.errors import ConfigError, QuenchError
from pipeline.serve.port import server_url

if TYPE_CHECKING:
    import httpx

LISTENING_SECONDS = 1.0
NOTHING_SERVED = "Q-SERVE-013"


def parse_changes(words: Sequence[str]) -> dict[str, float]:
    """Parse NAME=SCALE words into {name: scale}.

    Raises `ConfigError` for a malformed word or scale and for a repeated name.
    """
    from pipeline.serve.adapter import parse_scale

    changes: dict[str, float] = {}
    for word in words:
        name, equals, scale = word.rpartition("=")
        if not equals:
            raise ConfigError(
                "Q-COMMANDS-009",
                f"{word!r} has no scale: give NAME=SCALE; {word}=0, for example, turns {word} off",
            )
        if name in changes:
            raise ConfigError("Q-COMMANDS-009", f"{name} is given two scales: give it one")
        changes[name] = parse_scale(scale, name)
    return changes


@dataclass(frozen=True)
class Served:
    """What this project's server has loaded, and where it answers. `problem` is why that is unknown.

    `is_tuned` is True if the training is in the model's own file.
    """

    url: str
    model: str = ""
    is_tuned: bool = False
    adapters: Mapping[str, float] = field(default_factory=dict)
    problem: str = ""

    def lines(self) -> Iterator[str]:
        """Yield it in words, a line for each adapter."""
        if self.problem:
            yield f"server: {self.problem}"
            return
        tuned = " (what was trained is in the file)" if self.is_tuned else ""
        yield f"{self.model}{tuned} is served at {self.url}/v1"
        yield from _adapter_lines(self.adapters)


def server(params: Params, root: Path) -> Served | None:
    """Return what this project's server serves; None if nothing listens on its port."""
    url = server_url(root, params.serve.port)
    try:
        # The client's library takes a tenth of a second to import.
        address = urlsplit(url)
        socket.create_connection((address.hostname, address.port), timeout=LISTENING_SECONDS).close()
    except OSError:
        return None
    try:
        with _connected(params, root) as client:
            model = _model(client)
            level = model.partition("+")[0].removeprefix(f"{params.convert.name}-")
            is_tuned = not params.product.with_lora and not is_base(level)
            return Served(url, model, is_tuned, _scales(client))
    except QuenchError as error:
        return None if error.id == NOTHING_SERVED else Served(url, problem=str(error))


def change_scales(params: Params, root: Path, words: Sequence[str]) -> None:
    """Set the scales in `words` for the running server's adapters. Print the model and all adapters.

    Raises `ToolError` if no server of this project answers, and `ConfigError` for an adapter that it lacks.
    """
    changes = parse_changes(words)
    with _connected(params, root) as client:
        served = _model(client)
        adapters = _scales(client, changes)
    print(f"{served} is served{'' if adapters else ' without an adapter'}")
    for line in _adapter_lines(adapters):
        print(line)


def _connected(params: Params, root: Path) -> "AbstractContextManager[httpx.Client]":
    from pipeline.llamacpp.server import connect
    from pipeline.serve.key import KEY_FILE, read_key

    return connect(server_url(root, params.serve.port), read_key(root / KEY_FILE))


def _model(client: "httpx.Client") -> str:
    from pipeline.commands.chat import served_model

    return served_model(client)


def _scales(client: "httpx.Client", changes: Mapping[str, float] | None = None) -> dict[str, float]:
    """Return {adapter: its scale}, after these changes."""
    from pipeline.serve.client import loaded_adapters, set_scales

    adapters = set_scales(client, dict(changes)) if changes else loaded_adapters(client)
    return {adapter.name: adapter.scale for adapter in adapters}


def _adapter_lines(adapters: Mapping[str, float]) -> Iterator[str]:
    width = max(map(len, adapters), default=0)
    for name, scale in adapters.items():
        yield f"  {name:<{width}}  {scale:g}{'' if scale else ' (off)'}"
