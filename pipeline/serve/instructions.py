"""What `quench serve` prints once its model is loaded: how to talk to it, and how to switch its adapters."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path


def how_to_call(model: str, url: str, key_file: Path, log: Path, adapters: Sequence[str] = ()) -> str:
    """What `quench serve` prints once the model is loaded; `adapters` are the names of those on it. The key
    itself is never printed."""
    body = json.dumps({"messages": [{"role": "user", "content": "Hello"}]})
    # by a pipe: everybody can read a command's arguments
    header = f"sed 's/^/Authorization: Bearer /' {shlex.quote(str(key_file))}"
    return f"""{model} is served on {url} (Ctrl-C stops it; log: {log})
  chat here:         quench chat
{how_to_switch(adapters)}  OpenAI clients:    base URL {url}/v1, API key: what {key_file} holds
  curl:
    {header} |
    curl {url}/v1/chat/completions -H @- \\
      -H "Content-Type: application/json" -d '{body}'"""


def how_to_switch(adapters: Sequence[str]) -> str:
    """Lines on how to switch the adapters of these names while the server runs; none without adapters."""
    if not adapters:
        return ""
    off, strong = (shlex.quote(f"{name}={scale}") for name, scale in ((adapters[0], 0), (adapters[-1], 0.5)))
    change = f"quench serve --scale {off} (off) or --scale {strong} (half)"
    lines = f"  adapters:          quench status (shows them); {change}\n"
    if len(adapters) == 1:
        # prompts are kept then, which a request's own scales don't clear
        # (llamacpp.server_command.cache_arguments)
        return lines
    ids = ", ".join(f"{number} {name}" for number, name in enumerate(adapters))
    return (
        f'{lines}  one request only:  "lora": [{{"id": 0, "scale": 0.5}}] in its JSON, the others are off '
        f"in it ({ids})\n"
    )
