"""Talk to the model that `quench serve` serves: streamed answers, their speed, in the terminal.

Reads `.quench/api-key` and section `serve`; the conversation is kept in memory only.

    quench chat [MODEL]
"""

import contextlib
import json
import sys
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from pipeline.commands.serve import choose_model
from pipeline.errors import ConfigError, ToolError
from pipeline.params import Params
from pipeline.skeleton import Message

HELP = "/new forgets the conversation, /quit ends (so does Ctrl-D), Ctrl-C breaks an answer off"


def connect(url: str, key: str) -> httpx.Client:
    """A client that opens a connection per request: llama-server closes one after it has streamed on it, and a reuse may meet that."""
    return httpx.Client(
        base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=600, trust_env=False, limits=httpx.Limits(max_keepalive_connections=0)
    )


def served_model(client: httpx.Client) -> str:
    """The name of the model behind `client`. Raises `ToolError` where no server of this project answers."""
    try:
        answer = client.get("/v1/models", timeout=10)
    except httpx.TransportError:
        raise ToolError(f"nothing answers on {client.base_url}: start the server with `quench serve` in another terminal") from None
    if answer.status_code == 503:
        raise ToolError(f"the server on {client.base_url} is still loading its model: try again in a moment")
    if answer.status_code != 200:
        what = f"what listens on {client.base_url}"
        raise ToolError(f"{what} does not take this project's key (HTTP {answer.status_code}): stop it, then run `quench serve`")
    return str(answer.json()["data"][0]["id"])


def stream(client: httpx.Client, messages: list[Message]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (text, {}) for each piece of the answer, and ("", timings) last. Raises `ToolError` where the server refuses."""
    body = {"messages": messages, "stream": True, "stream_options": {"include_usage": True}}
    try:
        with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            if answer.status_code != 200:
                raise ToolError(f"the server answered {answer.status_code}: {_reason(answer.read())}")
            for line in answer.iter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                chunk = json.loads(line.removeprefix("data: "))
                for choice in chunk.get("choices", []):
                    yield choice["delta"].get("content") or "", {}
                if "timings" in chunk:
                    yield "", chunk["timings"]
    except httpx.TransportError as error:
        raise ToolError(f"the server broke off ({error}): see logs/, start it again with `quench serve`") from None


def printable(text: str) -> str:
    """A model's text without control and format characters (but the joiners that scripts and emoji need): none of it steers the terminal."""
    return "".join(one for one in text if one in "\n\t\u200c\u200d" or unicodedata.category(one) not in ("Cc", "Cf"))


def converse(client: httpx.Client, ask: Callable[[], str], tell: Callable[[str], None]) -> None:
    """Ask, stream the answer, again, until `/quit` or the end of input. `ask` gives a line, `tell` prints text as it is."""
    messages: list[Message] = []
    while True:
        try:
            said = ask().strip()
        except EOFError:
            return
        match said:
            case "":
                continue
            case "/quit":
                return
            case "/new":
                messages = []
                tell("a new conversation\n")
                continue
        if said.startswith("/"):
            tell(HELP + "\n")
            continue
        turn = [*messages, {"role": "user", "content": said}]
        try:
            messages = [*turn, {"role": "assistant", "content": _answer(client, turn, tell)}]
        except ToolError as error:  # the conversation stays as it was: /new goes on after a full context
            tell(f"{error}\n")


def main(params: Params, root: Path, asked: str | None) -> None:
    """Chat with the running server; `ConfigError` where it serves another model than `asked`."""
    key_file = root / ".quench" / "api-key"
    if not key_file.exists():
        raise ToolError(f"{key_file} is not there, so nothing was served yet: start the server with `quench serve` in another terminal")
    with connect(f"http://127.0.0.1:{params.serve.port}", key_file.read_text(encoding="utf-8").strip()) as client:
        served = served_model(client)
        if asked and served != f"{params.convert.name}-{choose_model(params, root, asked)}":
            raise ConfigError(f"{served} is served, not {asked}: stop that server, then `quench serve {asked}`")
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 (gives input() history and line editing)
        print(f"{served}: {HELP}")
        converse(client, lambda: input("> "), _tell)


def _answer(client: httpx.Client, messages: list[Message], tell: Callable[[str], None]) -> str:
    pieces: list[str] = []
    timings: dict[str, Any] = {}
    try:
        for piece, found in stream(client, messages):
            pieces.append(piece)
            timings = found or timings
            tell(printable(piece))
    except KeyboardInterrupt:
        tell(" (broken off)")
    speed = f"{timings['predicted_n']} tokens, {timings['predicted_per_second']:.1f} tokens/s" if timings else ""
    tell(f"\n[{speed}]\n" if speed else "\n")
    return "".join(pieces)


def _reason(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")[:300]


def _tell(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
