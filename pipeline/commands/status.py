"""Show the state of a project's server: its model, its adapters and their scales.

Reads `.quench/api-key` and section `serve`. Connects to 127.0.0.1 only. New scales apply to all later
requests without scales of their own, until the server is restarted.

    quench status
    quench serve --scale NAME=SCALE
"""

from collections.abc import Sequence
from pathlib import Path

from pipeline.commands.chat import served_model
from pipeline.config.params import Params
from pipeline.core.errors import ConfigError, QuenchError
from pipeline.llamacpp.server import connect
from pipeline.serve.adapter import parse_scale
from pipeline.serve.client import loaded_adapters, set_scales
from pipeline.serve.key import KEY_FILE, read_key
from pipeline.serve.port import server_url

NOTHING_SERVED = "Q-SERVE-013"


def parse_changes(words: Sequence[str]) -> dict[str, float]:
    """Parse NAME=SCALE words into {name: scale}.

    Raises `ConfigError` for a malformed word or scale and for a repeated name.
    """
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


def print_server(params: Params, root: Path) -> None:
    """Print the model and the adapters of this project's server, or the reason why they are unknown."""
    try:
        change_scales(params, root, [])
    except QuenchError as error:
        if error.id == NOTHING_SERVED:
            print("nothing is served: `quench serve` does")
        else:
            print(f"server: {error}")


def change_scales(params: Params, root: Path, words: Sequence[str]) -> None:
    """Set the scales in `words` for the running server's adapters. Print the model and all adapters.

    Raises `ToolError` if no server of this project answers, and `ConfigError` for an adapter that it lacks.
    """
    changes = parse_changes(words)
    with connect(server_url(root, params.serve.port), read_key(root / KEY_FILE)) as client:
        served = served_model(client)
        adapters = set_scales(client, changes) if changes else loaded_adapters(client)
    print(f"{served} is served{'' if adapters else ' without an adapter'}")
    width = max((len(adapter.name) for adapter in adapters), default=0)
    for adapter in adapters:
        print(f"  {adapter.name:<{width}}  {adapter.scale:g}{'' if adapter.scale else ' (off)'}")
