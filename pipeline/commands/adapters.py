"""Show the adapters of the running server (`quench serve` in another terminal), or give them other scales.

Reads `.quench/api-key` and section `serve`. Asks 127.0.0.1 only. New scales hold for all requests from then
on that say none themselves, until the server is started again.

    quench adapters [NAME=SCALE ...]
"""

from collections.abc import Sequence
from pathlib import Path

from pipeline.commands.chat import served_model
from pipeline.config.params import Params
from pipeline.core.errors import ConfigError
from pipeline.llamacpp.server import connect
from pipeline.serve.adapter import parse_scale
from pipeline.serve.key import KEY_FILE, read_key
from pipeline.serve.switching import loaded_adapters, set_scales


def parse_changes(words: Sequence[str]) -> dict[str, float]:
    """NAME=SCALE words as a mapping. Raises `ConfigError` for a word that is none, a scale that is none and a
    name twice.
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


def main(params: Params, root: Path, words: Sequence[str]) -> None:
    """Set the scales that `words` say and print all. `ToolError` if no server of this project answers,
    `ConfigError` for a name it lacks.
    """
    changes = parse_changes(words)
    with connect(f"http://127.0.0.1:{params.serve.port}", read_key(root / KEY_FILE)) as client:
        served = served_model(client)
        adapters = set_scales(client, changes) if changes else loaded_adapters(client)
    if not adapters:
        print(f"{served} is served without an adapter: stop it, then `quench serve --adapter FILE`")
    width = max((len(adapter.name) for adapter in adapters), default=0)
    for adapter in adapters:
        print(f"{adapter.name:<{width}}  {adapter.scale:g}{'' if adapter.scale else ' (off)'}")
