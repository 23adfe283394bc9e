"""Client of a running llama-server: the hints that `quench serve` prints, the lines of a streamed answer
(server-sent events of OpenAI's chat protocol), and its adapters, which it lists and scales
(`/lora-adapters`).
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

import httpx

from pipeline.chat.template_probe import Message
from pipeline.core.errors import ConfigError, ToolError

BROKEN_OFF = "see logs/, start it again with `quench serve`"  # remedy after a server broke off


def opening(system_prompt: str | None) -> list[Message]:
    """Return the turns that a conversation begins with: the system prompt of the training rows, if any."""
    return [{"role": "system", "content": system_prompt}] if system_prompt else []


def first_request(system_prompt: str | None, **settings: Any) -> str:
    """Return the JSON of a first request with these settings, quoted for a shell."""
    messages = [*opening(system_prompt), {"role": "user", "content": "Hello"}]
    return shlex.quote(json.dumps({"messages": messages, **settings}))


def how_to_call(
    model: str,
    url: str,
    key_file: Path,
    log: Path,
    adapters: Sequence[str] = (),
    system_prompt: str | None = None,
) -> str:
    """Return the text that `quench serve` prints once the model is loaded; `adapters` are the names of those
    on it, `system_prompt` is the one that it was trained with. The key itself is never printed.
    """
    # The key goes through a pipe because every user can read a command's arguments.
    header = f"sed 's/^/Authorization: Bearer /' {shlex.quote(str(key_file))}"
    return f"""{model} is served on {url} (Ctrl-C stops it; log: {log})
  chat here:         quench chat
{how_to_switch(adapters)}  OpenAI clients:    base URL {url}/v1, API key: what {key_file} holds
  curl:
    {header} |
    curl {url}/v1/chat/completions -H @- \\
      -H "Content-Type: application/json" -d {first_request(system_prompt)}"""


def how_to_switch(adapters: Sequence[str]) -> str:
    """Return lines on how to switch adapters of these names on a running server; none without adapters."""
    if not adapters:
        return ""
    off = shlex.quote(f"{adapters[0]}=0")
    half = shlex.quote(f"{adapters[-1]}=0.5")
    change = f"quench serve --scale {off} (off) or --scale {half} (half)"
    lines = f"  adapters:          quench status (shows them); {change}\n"
    if len(adapters) == 1:
        # Prompts are kept then, and a request's own scales don't clear them
        # (llamacpp.server_command.cache_arguments).
        return lines
    ids = ", ".join(f"{number} {name}" for number, name in enumerate(adapters))
    return (
        f'{lines}  one request only:  "lora": [{{"id": 0, "scale": 0.5}}] in its JSON, the others are off '
        f"in it ({ids})\n"
    )


@dataclass(frozen=True)
class Piece:
    """Content of one event: text of the answer or the reasoning, tool calls.

    The last ones have usage and llama-server's timings.
    """

    text: str = ""
    reasoning: str = ""
    calls: list[Any] = field(default_factory=list)
    usage: dict[str, float] = field(default_factory=dict)
    timings: dict[str, float] = field(default_factory=dict)
    error: str = ""


def parse_line(line: str) -> Piece | None:
    """Return the piece in one line; None for lines without one (empty, comments, the end mark), an error for
    a line that does not follow the protocol.
    """
    if not line.startswith("data: ") or line == "data: [DONE]":
        return None
    try:
        return _piece(json.loads(line.removeprefix("data: ")))
    except (ValueError, TypeError, AttributeError):
        return Piece(error="a line of the answer is not an event of OpenAI's protocol")


def _piece(chunk: dict[str, Any]) -> Piece:
    error = chunk.get("error")
    if error is not None:
        return Piece(error=str((error.get("message") if isinstance(error, dict) else error) or error))
    deltas = [choice.get("delta") or {} for choice in chunk.get("choices") or []]
    return Piece(
        text="".join(delta.get("content") or "" for delta in deltas),
        reasoning="".join(delta.get("reasoning_content") or "" for delta in deltas),
        calls=[call for delta in deltas for call in delta.get("tool_calls") or []],
        usage=_numbers(chunk.get("usage")),
        timings=_numbers(chunk.get("timings")),
    )


def _numbers(values: dict[str, Any] | None) -> dict[str, float]:
    return {name: value for name, value in (values or {}).items() if isinstance(value, int | float)}


def reason(body: bytes) -> str:
    """Return a refusal's reason in the server's words, from its body."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")[:300]


@dataclass(frozen=True)
class Loaded:
    """Adapter of a running server: its number there, its name, and its scale for requests that set none."""

    id: int
    name: str
    scale: float


def loaded_adapters(client: httpx.Client) -> list[Loaded]:
    """Return the adapters of the server behind `client`, in its order.

    Raises `ToolError` if it doesn't list them.
    """
    try:
        return [
            Loaded(int(adapter["id"]), PurePath(adapter["path"]).stem, float(adapter["scale"]))
            for adapter in _ask(client, "GET", "/lora-adapters")
        ]
    except (TypeError, KeyError, ValueError):
        raise ToolError(
            "Q-SERVE-015",
            f"what listens on {client.base_url} does not say which adapters it has: stop it, then run "
            "`quench serve`",
        ) from None


def set_scales(client: httpx.Client, wanted: Mapping[str, float]) -> list[Loaded]:
    """Give adapters in `wanted` these scales; the others keep theirs. Return all adapters afterwards.

    Raises `ConfigError` for a name that the server doesn't have, `ToolError` if it refuses.
    """
    adapters = loaded_adapters(client)
    names = [adapter.name for adapter in adapters]
    unknown = [name for name in wanted if name not in names]
    if unknown:
        available = ", ".join(names) or "none, start it with `quench serve --adapter FILE`"
        raise ConfigError("Q-SERVE-018", f"the server has no adapter {unknown[0]}: it has {available}")
    # All adapters are listed because llama-server turns those off that are not named.
    scales = [{"id": adapter.id, "scale": wanted.get(adapter.name, adapter.scale)} for adapter in adapters]
    _ask(client, "POST", "/lora-adapters", scales)
    # With more adapters no prompt is kept (pipeline.llamacpp.server_command.cache_arguments).
    if len(adapters) == 1:
        forget_prompts(client)
    return loaded_adapters(client)


def forget_prompts(client: httpx.Client) -> None:
    """Make every slot forget what it computed of prompts with the previous scales.

    Waits for slots that are answering.

    llama-server would continue from it, with one adapter's keys under another's weights. Its own way to erase
    a slot needs a folder to save slots in, so each slot is given another prompt, of one token.
    """
    for slot in range(int(_ask(client, "GET", "/props")["total_slots"])):
        prompt = {"prompt": [0], "n_predict": 0, "cache_prompt": False, "id_slot": slot}
        _ask(client, "POST", "/completion", prompt)


def _ask(client: httpx.Client, method: str, path: str, body: Any = None) -> Any:
    try:
        answer = client.request(method, path, json=body)
        if answer.status_code != 200:
            raise ToolError(
                "Q-SERVE-016",
                f"llama-server answered {answer.status_code} to {path}: {reason(answer.content)}",
            )
        return answer.json()
    except (httpx.RequestError, ValueError) as error:
        raise ToolError("Q-SERVE-017", f"the server broke off ({error}): {BROKEN_OFF}") from None
