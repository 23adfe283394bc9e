"""The adapters of a running llama-server: list them, and set their scales (`/lora-adapters`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import httpx

from pipeline.core.errors import ConfigError, ToolError
from pipeline.serve.stream import BROKEN_OFF, reason


@dataclass(frozen=True)
class Loaded:
    """An adapter that a server holds: its number there, its name, and the scale of requests that say none."""

    id: int
    name: str
    scale: float


def loaded_adapters(client: httpx.Client) -> list[Loaded]:
    """The adapters of the server behind `client`, in its order. Raises `ToolError` if it doesn't list
    them."""
    try:
        return [
            Loaded(int(one["id"]), PurePath(one["path"]).stem, float(one["scale"]))
            for one in _ask(client, "GET", "/lora-adapters")
        ]
    except (TypeError, KeyError, ValueError):
        raise ToolError(
            "Q-SERVE-015",
            f"what listens on {client.base_url} does not say which adapters it has: stop it, then run "
            "`quench serve`",
        ) from None


def set_scales(client: httpx.Client, wanted: Mapping[str, float]) -> list[Loaded]:
    """Give the adapters named in `wanted` these scales, the others keep theirs; the adapters afterwards.

    Raises `ConfigError` for a name that the server doesn't have, `ToolError` if it refuses.
    """
    adapters = loaded_adapters(client)
    names = [adapter.name for adapter in adapters]
    if unknown := [name for name in wanted if name not in names]:
        there = ", ".join(names) or "none, start it with `quench serve --adapter FILE`"
        raise ConfigError("Q-SERVE-018", f"the server has no adapter {unknown[0]}: it has {there}")
    # all of them: llama-server turns those off that are not named
    scales = [{"id": adapter.id, "scale": wanted.get(adapter.name, adapter.scale)} for adapter in adapters]
    _ask(client, "POST", "/lora-adapters", scales)
    if len(adapters) == 1:  # of several no prompt is kept (pipeline.llamacpp.server_command.cache_arguments)
        forget_prompts(client)
    return loaded_adapters(client)


def forget_prompts(client: httpx.Client) -> None:
    """Make every slot forget what it computed of prompts with the scales before; waits for slots that are
    answering.

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
